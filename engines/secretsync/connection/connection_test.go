package connection

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

func TestBudget(t *testing.T) {
	of := func(writes float64, writeBurst int, reads float64, readBurst int) destination.Rate {
		return destination.Rate{Writes: writes, WriteBurst: writeBurst, Reads: reads, ReadBurst: readBurst, Concurrency: 4}
	}
	usual := of(25, 30, 100, 120)
	tests := []struct {
		name     string
		operator Endpoint
		want     destination.Rate
	}{
		{"that of the type", Endpoint{URL: "http://elsewhere"}, usual},
		{"more", Endpoint{WritesPerSecond: 1000, ReadsPerSecond: 4000}, of(1000, 1000, 4000, 4000)},
		{"less", Endpoint{WritesPerSecond: 0.5, ReadsPerSecond: 2}, of(0.5, 30, 2, 120)},
		{"other writes", Endpoint{WritesPerSecond: 50}, of(50, 50, 100, 120)},
		{"other reads", Endpoint{ReadsPerSecond: 50}, of(25, 30, 50, 120)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			kind := destination.Type{Name: "place", Rules: destination.Rules{Rate: usual}}
			s := NewPool(Options{Types: map[string]destination.Type{"place": kind}, Operator: Operator{Endpoints: map[string]Endpoint{"place": test.operator, "other": {WritesPerSecond: 1}}}})
			if got := s.RateOf(&state.Destination{Type: "place"}); got != test.want {
				t.Errorf("budget = %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestKnown: a record is decoded once, and again when it is stored again.
func TestKnown(t *testing.T) {
	var store storage.Memory
	types := map[string]destination.Type{}
	for _, kind := range syncsim.NewSites().Types() {
		types[kind.Name] = kind
	}
	pool := NewPool(Options{Types: types})
	d := &state.Destination{ID: "id", NS: "root", Type: syncsim.Plain, Name: "one", Config: map[string]json.RawMessage{"site": json.RawMessage(`"first"`)}}
	known := func() *Known {
		t.Helper()
		k, err := pool.Known(t.Context(), &store, d.Key())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	put := func() storage.Index {
		t.Helper()
		at, err := storage.Update(t.Context(), &store, func(tx *storage.Txn) error { return engines.PutRecord(tx, d.Key(), d) })
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	if k := known(); k != nil {
		t.Fatalf("%+v before it is stored", k)
	}
	at := put()
	first := known()
	if n := pool.LinksAtOnce("id"); n < 1 {
		t.Errorf("%d links at once", n)
	}
	if first.ID != "id" || first.Version != at || !strings.Contains(first.Location, "first") || known() != first {
		t.Errorf("%+v, decoded again: %v", first, known() != first)
	}
	d.Config["site"] = json.RawMessage(`"second"`)
	at = put()
	if k := known(); k.Version != at || !strings.Contains(k.Location, "second") {
		t.Errorf("%+v after it was stored again", k)
	}
	d.Type = "later" // its key is another one
	put()
	if _, err := pool.Known(t.Context(), &store, d.Key()); !errors.Is(err, ErrUnknownType) {
		t.Errorf("of a type that is not known: %v", err)
	}
}
