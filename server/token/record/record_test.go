package record_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token/record"
	"github.com/coffer-project/coffer/storage"
)

func TestPutKeepsThePlaceInTheExpiryIndex(t *testing.T) {
	store, at := new(storage.Memory), time.Unix(1_900_000_000, 0)
	write := func(e *record.Entry, before time.Time) {
		t.Helper()
		if _, err := storage.Update(t.Context(), store, func(tx *storage.Txn) error { record.Put(tx, e, before); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	e := &record.Entry{Key: "k", Accessor: "a", Policies: []string{"app"}, Type: "service", Namespace: "root", ExpiresAt: at}
	write(e, time.Time{})
	got, err := record.Get(t.Context(), store, "k")
	if err != nil || got.Key != "k" || got.Accessor != "a" || !got.ExpiresAt.Equal(at) {
		t.Errorf("Get = %+v, %v", got, err)
	}
	later := *e
	later.ExpiresAt = at.Add(time.Hour)
	write(&later, at)
	var due []storage.Key
	for entry, err := range record.Scan(t.Context(), store, record.ExpiryPrefix) {
		if err != nil {
			t.Fatal(err)
		}
		due = append(due, entry.Key)
	}
	if want := []storage.Key{record.ExpiryKey(later.ExpiresAt, "k")}; !reflect.DeepEqual(due, want) {
		t.Errorf("the expiry index has %q, want %q", due, want)
	}
	if when, key, ok := record.SplitExpiryKey(due[0]); !ok || key != "k" || !when.Equal(later.ExpiresAt) {
		t.Errorf("SplitExpiryKey = %v, %q, %v", when, key, ok)
	}
	if _, err := record.Get(t.Context(), store, "other"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Get of another token = %v, want ErrNotFound", err)
	}
}

func TestAccessors(t *testing.T) {
	e := &record.Entry{Key: "k", Accessor: "a", Namespace: "n1"}
	if got, err := record.DecodeAccessor(e.Ref().Encode()); err != nil || got.Token != "k" || got.Accessor != "a" || got.Namespace != "n1" {
		t.Errorf("DecodeAccessor = %+v, %v", got, err)
	}
	if got, err := record.DecodeAccessor([]byte(`{"format":1,"accessor":"a","token":"k"}`)); err != nil || got.Namespace != "root" {
		t.Errorf("one of the first release = %+v, %v", got, err)
	}
	if _, err := record.DecodeAccessor([]byte(`{"format":2}`)); err == nil {
		t.Error("another format is accepted")
	}
}

func TestScanReadsAllPages(t *testing.T) {
	store := new(storage.Memory)
	var b storage.Batch
	for i := range 1100 {
		b.Puts = append(b.Puts, storage.Put{Key: record.ExpiryKey(time.Unix(0, int64(i)), "k"), Value: record.Present})
	}
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range record.Scan(t.Context(), store, record.ExpiryPrefix) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 1100 {
		t.Errorf("Scan found %d entries, want 1100", n)
	}
}
