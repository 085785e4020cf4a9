package backend

import (
	"context"
	"slices"
	"testing"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/storage"
)

// client calls a store as a plugin does, and fails the test for errors.
type client struct {
	t *testing.T
	s *store
}

func newClient(t *testing.T) client {
	memory := &storage.Memory{}
	return client{t, newStorage(storage.NewView(memory, storage.NewKey(storage.Shared, "mount", "")))}
}

func (c client) put(txn, key, value string) string {
	reply, err := c.s.Put(c.t.Context(), &pb.StoragePutArgs{Txn: txn, Entry: &pb.StorageEntry{Key: key, Value: []byte(value)}})
	if err != nil {
		c.t.Fatal(err)
	}
	return reply.GetErr()
}

func (c client) remove(txn, key string) {
	if reply, err := c.s.Delete(c.t.Context(), &pb.StorageDeleteArgs{Txn: txn, Key: key}); err != nil || reply.GetErr() != "" {
		c.t.Fatal(reply, err)
	}
}

func (c client) get(txn, key string) string {
	reply, err := c.s.Get(c.t.Context(), &pb.StorageGetArgs{Txn: txn, Key: key})
	if err != nil || reply.GetErr() != "" {
		c.t.Fatal(reply, err)
	}
	return string(reply.GetEntry().GetValue())
}

func (c client) list(txn, prefix, after string, limit int) []string {
	reply, err := c.s.ListPage(c.t.Context(), &pb.StorageListPageArgs{Txn: txn, Prefix: prefix, After: after, Limit: int32(limit)})
	if err != nil || reply.GetErr() != "" {
		c.t.Fatal(reply, err)
	}
	return reply.GetKeys()
}

func (c client) begin(do func(context.Context, *pb.Empty) (*pb.StorageBeginTxReply, error)) string {
	reply, err := do(c.t.Context(), &pb.Empty{})
	if err != nil || reply.GetErr() != "" {
		c.t.Fatal(reply, err)
	}
	return reply.GetTxn()
}

func (c client) commit(txn string) string {
	reply, err := c.s.Commit(c.t.Context(), &pb.StorageCommitTxArgs{Txn: txn})
	if err != nil {
		c.t.Fatal(err)
	}
	return reply.GetErr()
}

func TestTransactions(t *testing.T) {
	c := newClient(t)
	for _, key := range []string{"a/1", "a/3", "a/b/c"} {
		c.put("", key, "old")
	}
	txn := c.begin(c.s.BeginTx)
	c.put(txn, "a/2", "new")
	c.put(txn, "a/d/e", "new")
	c.remove(txn, "a/3")
	if got, want := c.list(txn, "a/", "", 0), []string{"1", "2", "b/", "d/"}; !slices.Equal(got, want) {
		t.Errorf("the transaction lists %q, want %q", got, want)
	}
	if got, want := c.list(txn, "a", "1", 2), []string{"2", "b/"}; !slices.Equal(got, want) {
		t.Errorf("a page of it is %q, want %q", got, want)
	}
	if got := c.get(txn, "a/2") + c.get(txn, "a/3"); got != "new" {
		t.Errorf("the transaction reads %q", got)
	}
	if got, want := c.list("", "a/", "", 0), []string{"1", "3", "b/"}; !slices.Equal(got, want) {
		t.Errorf("outside of it there is %q, want %q", got, want)
	}
	if text := c.commit(txn); text != "" {
		t.Fatal(text)
	}
	if got := c.get("", "a/2") + c.get("", "a/3"); got != "new" {
		t.Errorf("afterwards there is %q", got)
	}
	if text := c.commit(txn); text != errFinished {
		t.Errorf("committing again: %q", text)
	}
	if text := c.put(txn, "a/9", "x"); text != errFinished {
		t.Errorf("writing in it afterwards: %q", text)
	}
}

func TestConflictingTransactions(t *testing.T) {
	c := newClient(t)
	c.put("", "a", "1")
	first, second := c.begin(c.s.BeginTx), c.begin(c.s.BeginTx)
	for _, txn := range []string{first, second} {
		c.put(txn, "a", c.get(txn, "a")+txn)
	}
	if text := c.commit(second); text != "" {
		t.Fatal(text)
	}
	if text := c.commit(first); text != errConflict {
		t.Errorf("the second commit: %q", text)
	}
	third := c.begin(c.s.BeginTx)
	c.put(third, "a", "never")
	if reply, err := c.s.Rollback(t.Context(), &pb.StorageRollbackTxArgs{Txn: third}); err != nil || reply.GetErr() != "" {
		t.Fatal(reply, err)
	}
	if got := c.get("", "a"); got != "1"+second {
		t.Errorf("there is %q", got)
	}
	reading := c.begin(c.s.BeginReadOnlyTx)
	if text := c.put(reading, "a", "x"); text != errReadOnly {
		t.Errorf("writing in a transaction that only reads: %q", text)
	}
}

func TestLimitsOfStorage(t *testing.T) {
	c := newClient(t)
	for _, key := range []string{"", "/a"} {
		if text := c.put("", key, "x"); text == "" {
			t.Errorf("the key %q is taken", key)
		}
	}
	for range maxTransactions {
		c.begin(c.s.BeginTx)
	}
	if reply, err := c.s.BeginTx(t.Context(), &pb.Empty{}); err != nil || reply.GetErr() == "" {
		t.Error("there is no limit of transactions")
	}
}
