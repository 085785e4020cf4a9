// Package lease keeps the leases of what engines issue: it hands them out, renews them, and takes back what they
// stand for when they expire or a caller asks for it.
//
// It promises that a lease that was handed out is stored; that revocation is marked durably before an engine is
// asked, so that it is finished by whichever node is the active one, and that a marked lease is never renewed;
// that an engine is asked at least once; and that a broken engine, or one that is slow, does not keep the leases
// of others waiting. A lease that cannot be revoked in six tries becomes irrevocable: it stays, is listed, and
// waits for an operator.
//
// There is nothing to restore when a node becomes the active one: Run holds only what falls due in the next
// minutes, and reads on as time passes. A clock that was set back delays expiry. If one that was set forward lets
// too much expire at once, a brake gives operators the time to notice.
//
// It assumes that all writes run on the active node, and that leases of the engines' own storage are all it holds:
// tokens look after themselves. What is stored of one is in package record; the names of index
// entries, and what falls due next, in package index; what is due and waits in package queue; the time in package clock; counts in package tally; the paths in
// package api. Start reading at Options, then Register, Revoke and Run.
package lease

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease/clock"
	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/server/lease/tally"
	"github.com/coffer-project/coffer/storage"
	"golang.org/x/time/rate"
)

// Refusals that clients recognise by their text. Use errors.Is.
var (
	// ErrNotFound means that there is no such lease in the namespace.
	ErrNotFound = engines.Invalid("lease not found")
	// ErrNotRenewable means that the lease was never renewable.
	ErrNotRenewable = engines.Invalid("lease is not renewable")
	// ErrExpired means that the lease's time is over, or that it is being revoked.
	ErrExpired = engines.Invalid("lease expired")
)

// Options of a Manager. Store and Mounts are required.
type Options struct {
	Store      storage.Store // decrypted
	Mounts     Mounts
	Namespaces Namespaces // nil: none lies below another
	Quotas     Quotas     // nil: there are none
	Tokens     Tokens     // nil: every token is valid
	Logger     *slog.Logger
}

// Mounts has the engines that leases are of: mount.Table. EngineOf returns the engine of a mount, also while the mount is being
// disabled. It reports false only if the mount is gone for good: leases of such a mount are dropped without asking an engine. A nil
// engine and true mean that it cannot tell now: it is tried again later.
type Mounts interface {
	EngineOf(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool)
}

// Namespaces knows whether the namespace id is ancestor itself or below it: namespace.Store.
type Namespaces interface {
	Below(ctx context.Context, ancestor, id string) bool
}

// Quotas limit how many leases there may be: quota.Quotas. AdmitLease is asked before a lease is stored; its error refuses the lease.
type Quotas interface {
	AdmitLease(ctx context.Context, namespace, mountPath, path string) error
}

// Tokens are what leases belong to: token.Store. CheckKey is asked after a lease of a token was stored: an error takes the lease
// back. So a lease cannot slip in between a token's end and RevokeToken.
type Tokens interface {
	CheckKey(ctx context.Context, tokenKey string) error
}

// Manager keeps the leases. Safe for concurrent use.
type Manager struct {
	opts  Options
	store storage.Store
	log   *slog.Logger
	clock clock.Clock

	// counting is held for reading from before a commit that moves index entries until the counts have followed,
	// and for writing while the first count looks at some of them. It comes before mu.
	counting sync.RWMutex

	mu     sync.Mutex
	work   *work                    // nil unless Run is at work
	busy   map[string]chan struct{} // lease ids that an engine is being asked about; closed when done
	counts *tally.Tally             // follow only while Run is at work
	again  *tally.Tally             // what follows too, while all leases are counted again; then it becomes counts

	replaced atomic.Bool // all that is stored was replaced, and Run has not seen it yet

	created, renewed, revoked, failed atomic.Int64
	warnings                          *rate.Limiter // of the log, which a broken engine must not flood
}

// New returns a Manager.
func New(o Options) *Manager {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		opts: o, store: o.Store, log: o.Logger, clock: clock.Clock{Read: time.Now},
		busy: map[string]chan struct{}{}, counts: tally.New(), warnings: rate.NewLimiter(1, 20),
	}
}

// Changed takes every applied change. It reads nothing and does not block.
func (m *Manager) Changed(ch storage.Change) {
	if !ch.Reset {
		return
	}
	m.replaced.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.work != nil {
		m.work.alert()
	}
}

// Clear forgets everything, for instance when the server seals. Run must have ended.
func (m *Manager) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts, m.again = tally.New(), nil
	m.clock.Reset()
}

// Registration is what a lease is to be like.
type Registration struct {
	NamespaceID string // "" is "root"
	MountUUID   string
	MountPath   string // relative to the namespace, "aws/"
	Path        string // of the request, below the mount
	TokenKey    string // "" for none, as with batch tokens
	// TokenExpiresAt, if set, is a time that the lease may not outlive, as with batch tokens.
	TokenExpiresAt time.Time
	Lease          engines.Lease
	// DefaultTTL and MaxTTL are the effective ones of the mount.
	DefaultTTL time.Duration
	MaxTTL     time.Duration
}

// Info is what a client is told of its lease.
type Info struct {
	ID        string
	TTL       time.Duration // what is left
	Renewable bool
	Warnings  []string
}

// Register stores a lease for what an engine has just issued. If it fails, it has asked the engine to take that
// back: without a lease it would stay.
func (m *Manager) Register(ctx context.Context, r Registration) (Info, error) {
	rec, info, err := m.draft(r)
	if err == nil {
		err = m.insert(ctx, rec, r.Lease.Done)
	}
	if err != nil {
		m.undoIssue(ctx, rec)
		return Info{}, err
	}
	m.created.Add(1)
	if rec.Token == "" || m.opts.Tokens == nil {
		return info, nil
	}
	if err := m.opts.Tokens.CheckKey(ctx, rec.Token); err != nil {
		if _, e := m.markAndRevoke(context.WithoutCancel(ctx), []index.Ref{{Namespace: rec.Namespace, ID: rec.ID}}, byHand, true); e != nil {
			m.warn("revoking the lease of a token that has ended", rec, e)
		}
		return Info{}, engines.Denied(err)
	}
	return info, nil
}

// draft makes the record. It is there, with what an engine needs, also when there is an error.
func (m *Manager) draft(r Registration) (*record.Record, Info, error) {
	now := m.clock.Now()
	if r.NamespaceID == "" {
		r.NamespaceID = record.RootNamespace
	}
	rec := &record.Record{
		ID: newID(r, now), Namespace: r.NamespaceID, Mount: r.MountUUID, MountPath: r.MountPath, Path: r.Path, Token: r.TokenKey,
		Kind: r.Lease.Kind, Internal: r.Lease.Internal, Renewable: r.Lease.Renewable, Until: r.TokenExpiresAt.Round(0), IssuedAt: now,
	}
	rec.ExpiresAt, rec.IndexedAt = now, now
	switch {
	case len(index.Escape(rec.ID)) > record.MaxNameBytes:
		return rec, Info{}, engines.Invalid("the path is too long for a lease: its limit is about %d bytes", record.MaxNameBytes)
	case len(rec.Internal) > record.MaxInternalBytes:
		return rec, Info{}, fmt.Errorf("the engine keeps %d bytes with a lease, the limit is %d", len(rec.Internal), record.MaxInternalBytes)
	case len(rec.Internal) > 0 && !json.Valid(rec.Internal):
		return rec, Info{}, errors.New("what the engine keeps with a lease is not JSON")
	}
	rec.MaxTTL = record.Shortest(r.Lease.MaxTTL, r.MaxTTL)
	wanted := r.Lease.TTL
	if wanted <= 0 {
		wanted = r.DefaultTTL
	}
	ttl, warnings := rec.Lifetime(wanted, now)
	if ttl <= 0 {
		return rec, Info{}, engines.Invalid("the token ends before a lease could begin")
	}
	rec.TTL, rec.ExpiresAt, rec.IndexedAt = ttl, now.Add(ttl), now.Add(ttl)
	return rec, Info{ID: rec.ID, TTL: ttl, Renewable: rec.Renewable, Warnings: warnings}, nil
}

// newID returns "<mount path><path>/<time><random>", with the namespace's id at the end outside the root namespace.
func newID(r Registration, now time.Time) string {
	id := r.MountPath + r.Path
	if id != "" && id[len(id)-1] != '/' {
		id += "/"
	}
	if id += storage.TimeText(now) + rand.Text(); r.NamespaceID != record.RootNamespace {
		id += "." + r.NamespaceID
	}
	return id
}

// insert stores a lease, and removes what the engine has noted until then.
func (m *Manager) insert(ctx context.Context, rec *record.Record, done []storage.Key) error {
	if m.opts.Quotas != nil {
		if err := m.opts.Quotas.AdmitLease(ctx, rec.Namespace, rec.MountPath, rec.Path); err != nil {
			return err
		}
	}
	b := storage.Batch{
		Reads: []storage.Read{{Key: rec.Key()}},
		Puts:  []storage.Put{{Key: rec.Key(), Value: rec.Encode()}, {Key: rec.IndexKey(), Value: record.Present}},
	}
	if k := rec.TokenKey(); k != "" {
		b.Puts = append(b.Puts, storage.Put{Key: k, Value: record.Present})
	}
	for _, key := range done {
		b.Deletes = append(b.Deletes, storage.NewKey(storage.Local, rec.Mount, string(key)))
	}
	err := m.commitAndIndex(func() ([]step, error) {
		_, err := m.store.Commit(ctx, b)
		return []step{{is: rec.IndexKey()}}, err
	})
	if err != nil {
		return fmt.Errorf("storing a lease: %w", err)
	}
	return nil
}

// undoIssue asks the engine to revoke what got no lease.
func (m *Manager) undoIssue(ctx context.Context, rec *record.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := m.revokeAtEngine(ctx, rec); err != nil {
		m.warn("taking back what got no lease failed: look for it at the engine's backend", rec, err)
	}
}

// warn logs, unless there was much of it lately.
func (m *Manager) warn(text string, rec *record.Record, err error) {
	if m.warnings.Allow() {
		m.log.Warn(text, "mount", rec.MountPath, "lease", rec.ID, "try", rec.Tries, "err", err)
	}
}

// step is a lease's way from one key of the index to another; "" is nowhere.
type step struct{ was, is storage.Key }

// commitAndIndex runs commit, and if that succeeds lets counts and schedule follow. A lease that stays where it is in the
// index is scheduled too, in case an earlier commit put it there and failed to tell.
func (m *Manager) commitAndIndex(commit func() ([]step, error)) error {
	m.counting.RLock()
	defer m.counting.RUnlock()
	steps, err := commit()
	if errors.Is(err, storage.ErrOutcomeUnknown) {
		m.noteUnknown(steps)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.work == nil {
		return nil
	}
	before := m.counts.All()
	for _, s := range steps {
		m.indexLocked(s)
	}
	if before < manyLeases && m.counts.All() >= manyLeases {
		m.log.Warn("there are very many leases: look for clients that ask for new ones instead of renewing, or shorten TTLs", "leases", m.counts.All())
	}
	return nil
}

func (m *Manager) indexLocked(s step) {
	for _, c := range []*tally.Tally{m.counts, m.again} {
		if c == nil || s.was == s.is {
			continue
		}
		if s.was != "" {
			c.Remove(s.was)
		}
		if s.is != "" {
			c.Add(s.is)
		}
	}
	if name, ok := strings.CutPrefix(string(s.is), string(index.ExpPrefix)); ok && m.work.window.Note(name) {
		m.work.alert()
	}
}

// update is storage.Update for what moves leases.
func (m *Manager) update(ctx context.Context, fn func(*storage.Txn) ([]step, error)) error {
	return m.commitAndIndex(func() (steps []step, err error) {
		_, err = storage.Update(ctx, m.store, func(t *storage.Txn) (err error) {
			steps, err = fn(t)
			return err
		})
		return steps, err
	})
}

// remove deletes leases, in one batch.
func (m *Manager) remove(ctx context.Context, recs ...*record.Record) error {
	return m.commitAndIndex(func() (steps []step, err error) {
		var b storage.Batch
		for _, rec := range recs {
			b.Deletes = append(b.Deletes, rec.Keys()...)
			steps = append(steps, step{was: rec.IndexKey()})
		}
		_, err = m.store.Commit(ctx, b)
		return steps, err
	})
}

// removeOne deletes a lease that may have been moved in the index since rec was read.
func (m *Manager) removeOne(ctx context.Context, rec *record.Record) error {
	return m.update(ctx, func(t *storage.Txn) ([]step, error) {
		now, err := record.Get(ctx, t, rec.Namespace, rec.ID)
		if errors.Is(err, storage.ErrNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		for _, k := range now.Keys() {
			t.Delete(k)
		}
		return []step{{was: now.IndexKey()}}, nil
	})
}

// manyLeases is where a warning is due; a variable for tests.
var manyLeases = 256 << 10

// Details is what is known of a lease.
type Details struct {
	ID        string
	IssuedAt  time.Time
	ExpiresAt time.Time
	RenewedAt time.Time // zero: never
	Renewable bool
	TTL       time.Duration // what is left, not below zero
	// State is "", "revoking" or "irrevocable".
	State  string
	Reason string // why it could not be revoked, or ""
}

// Lookup returns what is known of a lease of namespace ns or one below it, or ErrNotFound.
func (m *Manager) Lookup(ctx context.Context, ns, id string) (Details, error) {
	rec, err := m.find(ctx, ns, id)
	if err != nil {
		return Details{}, err
	}
	now := m.clock.Now()
	return Details{
		ID: rec.ID, IssuedAt: rec.IssuedAt, ExpiresAt: rec.ExpiresAt, RenewedAt: rec.RenewedAt, State: string(rec.State), Reason: rec.Reason,
		Renewable: rec.Renewable && rec.State == record.Living && rec.ExpiresAt.After(now), TTL: max(rec.ExpiresAt.Sub(now), 0),
	}, nil
}

// find reads a lease that ns may see.
func (m *Manager) find(ctx context.Context, ns, id string) (*record.Record, error) {
	of := record.NamespaceOf(id)
	if !m.sees(ctx, ns, of) {
		return nil, ErrNotFound
	}
	rec, err := record.Get(ctx, m.store, of, id)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, ErrNotFound
	}
	return rec, err
}

// sees reports whether requests in namespace ns concern leases of namespace of.
func (m *Manager) sees(ctx context.Context, ns, of string) bool {
	if ns == "" {
		ns = record.RootNamespace
	}
	return ns == of || m.opts.Namespaces != nil && m.opts.Namespaces.Below(ctx, ns, of)
}
