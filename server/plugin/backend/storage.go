package backend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/storage"
)

// Texts by which plugins know errors of the storage.
const (
	errReadOnly = "cannot write to readonly storage"
	errConflict = "transaction commit failure"
	errFinished = "the transaction was already committed or rolled back"
)

// Limits of transactions: how many a mount has at a time, and how long each may take.
const (
	maxTransactions    = 64
	transactionTimeout = 90 * time.Second
)

// store is the storage of a mount, as its plugin sees it.
type store struct {
	pb.UnimplementedStorageServer
	store storage.Store

	mu           sync.Mutex
	transactions map[string]*transaction

	// readOnly is why the last write that was rejected cannot be made here, as the server knows it. nil: all were accepted.
	readOnly atomic.Pointer[error]
}

// transaction is one that the plugin has begun.
type transaction struct {
	mu       sync.Mutex // a plugin may use it from several goroutines
	txn      *storage.Txn
	written  map[string]bool // keys, and whether they are there now
	readOnly bool
	begun    time.Time
}

func newStorage(s storage.Store) *store {
	return &store{store: s, transactions: map[string]*transaction{}}
}

// text is an error as plugins get it.
func (s *store) text(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, storage.ErrReadOnly), errors.Is(err, storage.ErrPrimaryOnly):
		s.readOnly.Store(&err)
		return errReadOnly
	case errors.Is(err, storage.ErrConflict):
		return errConflict
	}
	return err.Error()
}

// in returns a transaction by its id, locked; nil for none.
func (s *store) in(id string) (*transaction, error) {
	if id == "" {
		return nil, nil
	}
	s.mu.Lock()
	t := s.transactions[id]
	s.mu.Unlock()
	if t == nil {
		return nil, errors.New(errFinished)
	}
	t.mu.Lock()
	return t, nil
}

// Get implements pb.StorageServer.
func (s *store) Get(ctx context.Context, in *pb.StorageGetArgs) (*pb.StorageGetReply, error) {
	t, err := s.in(in.GetTxn())
	if err != nil {
		return &pb.StorageGetReply{Err: s.text(err)}, nil
	}
	var e storage.Entry
	if t != nil {
		defer t.mu.Unlock()
		e, err = t.txn.Get(ctx, storage.Key(in.GetKey()))
	} else {
		e, err = s.store.Get(ctx, storage.Key(in.GetKey()))
	}
	if errors.Is(err, storage.ErrNotFound) {
		return &pb.StorageGetReply{}, nil
	}
	if err != nil {
		return &pb.StorageGetReply{Err: s.text(err)}, nil
	}
	return &pb.StorageGetReply{Entry: &pb.StorageEntry{Key: in.GetKey(), Value: e.Value}}, nil
}

// Put implements pb.StorageServer.
func (s *store) Put(ctx context.Context, in *pb.StoragePutArgs) (*pb.StoragePutReply, error) {
	key, value := in.GetEntry().GetKey(), in.GetEntry().GetValue()
	err := s.write(ctx, in.GetTxn(), key, true, func(txn *storage.Txn) { txn.Put(storage.Key(key), value) })
	return &pb.StoragePutReply{Err: s.text(err)}, nil
}

// Delete implements pb.StorageServer.
func (s *store) Delete(ctx context.Context, in *pb.StorageDeleteArgs) (*pb.StorageDeleteReply, error) {
	key := in.GetKey()
	err := s.write(ctx, in.GetTxn(), key, false, func(txn *storage.Txn) { txn.Delete(storage.Key(key)) })
	return &pb.StorageDeleteReply{Err: s.text(err)}, nil
}

// write changes a key, at once or when the transaction is committed.
func (s *store) write(ctx context.Context, id, key string, there bool, change func(*storage.Txn)) error {
	if key == "" || strings.HasPrefix(key, "/") {
		return errors.New("the key must not be empty, nor begin with a slash")
	}
	t, err := s.in(id)
	switch {
	case err != nil:
		return err
	case t == nil:
		txn := storage.Begin(s.store)
		change(txn)
		_, err := s.store.Commit(ctx, txn.Batch())
		return err
	}
	defer t.mu.Unlock()
	if t.readOnly {
		return errors.New(errReadOnly)
	}
	change(t.txn)
	t.written[key] = there
	return nil
}

// List implements pb.StorageServer.
func (s *store) List(ctx context.Context, in *pb.StorageListArgs) (*pb.StorageListReply, error) {
	return s.list(ctx, in.GetTxn(), in.GetPrefix(), "", 0)
}

// ListPage implements pb.StorageServer.
func (s *store) ListPage(ctx context.Context, in *pb.StorageListPageArgs) (*pb.StorageListReply, error) {
	return s.list(ctx, in.GetTxn(), in.GetPrefix(), in.GetAfter(), int(in.GetLimit()))
}

func (s *store) list(ctx context.Context, id, prefix, after string, limit int) (*pb.StorageListReply, error) {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	t, err := s.in(id)
	if err != nil {
		return &pb.StorageListReply{Err: s.text(err)}, nil
	}
	if t == nil {
		names, err := s.store.List(ctx, storage.Key(prefix), after, limit)
		return &pb.StorageListReply{Keys: names, Err: s.text(err)}, nil
	}
	defer t.mu.Unlock()
	names, err := t.list(ctx, prefix, after, limit)
	return &pb.StorageListReply{Keys: names, Err: s.text(err)}, nil
}

// list adds what the transaction has written to what is stored.
func (t *transaction) list(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	stored, err := t.txn.List(ctx, storage.Key(prefix), after, 0)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(stored)
	for key, there := range t.written {
		name, below := strings.CutPrefix(key, prefix)
		if !below || name == "" {
			continue
		}
		if folder, _, deeper := strings.Cut(name, "/"); deeper {
			if name = folder + "/"; !there {
				continue // whether the folder is empty now, nothing asks in a transaction
			}
		}
		if i, found := slices.BinarySearch(names, name); found && !there {
			names = slices.Delete(names, i, i+1)
		} else if !found && there && name > after {
			names = slices.Insert(names, i, name)
		}
	}
	if limit > 0 && len(names) > limit {
		names = names[:limit]
	}
	return names, nil
}

// IsTransactional implements pb.StorageServer.
func (s *store) IsTransactional(context.Context, *pb.Empty) (*pb.StorageIsTransactionalReply, error) {
	return &pb.StorageIsTransactionalReply{Transactional: true}, nil
}

// BeginTx implements pb.StorageServer.
func (s *store) BeginTx(context.Context, *pb.Empty) (*pb.StorageBeginTxReply, error) {
	return s.begin(false), nil
}

// BeginReadOnlyTx implements pb.StorageServer.
func (s *store) BeginReadOnlyTx(context.Context, *pb.Empty) (*pb.StorageBeginTxReply, error) {
	return s.begin(true), nil
}

func (s *store) begin(readOnly bool) *pb.StorageBeginTxReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.transactions {
		if time.Since(t.begun) > transactionTimeout {
			delete(s.transactions, id)
		}
	}
	if len(s.transactions) >= maxTransactions {
		return &pb.StorageBeginTxReply{Err: "too many transactions are open"}
	}
	id := uuid.NewString()
	s.transactions[id] = &transaction{txn: storage.Begin(s.store), written: map[string]bool{}, readOnly: readOnly, begun: time.Now()}
	return &pb.StorageBeginTxReply{Txn: id}
}

// finish takes a transaction out.
func (s *store) finish(id string) (*transaction, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.transactions[id]
	if t == nil {
		return nil, errors.New(errFinished)
	}
	delete(s.transactions, id)
	return t, nil
}

// Commit implements pb.StorageServer.
func (s *store) Commit(ctx context.Context, in *pb.StorageCommitTxArgs) (*pb.StorageCommitTxReply, error) {
	t, err := s.finish(in.GetTxn())
	if err != nil {
		return &pb.StorageCommitTxReply{Err: s.text(err)}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.txn.Batch(); !b.Empty() {
		_, err = s.store.Commit(ctx, b)
	}
	return &pb.StorageCommitTxReply{Err: s.text(err)}, nil
}

// Rollback implements pb.StorageServer.
func (s *store) Rollback(_ context.Context, in *pb.StorageRollbackTxArgs) (*pb.StorageRollbackTxReply, error) {
	_, err := s.finish(in.GetTxn())
	return &pb.StorageRollbackTxReply{Err: s.text(err)}, nil
}
