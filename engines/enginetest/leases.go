package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Leases is an engine that issues leases, and plays the backend that their credentials are of: it knows what it
// issued, what was revoked, and fails when told to. What it issued is in memory, so all nodes of a test that are
// to know of each other's credentials share one.
//
//	config/{name}  the terms of a role: ttl, max_ttl, renewable
//	creds/{name}   issues a lease by these terms
type Leases struct {
	router *engines.Router

	mu       sync.Mutex
	issued   map[string]bool // by serial: whether it is still good
	calls    map[string]int  // of RevokeLease, by serial
	serial   int
	failures int           // calls that still fail; below 0: all
	cause    error         // why they fail
	hold     chan struct{} // calls wait until it is closed; nil: they do not
	waiting  int           // calls that do
	refusal  error         // of renewals
}

const leaseKind = "creds"

// NewLeases returns an engine without roles.
func NewLeases() *Leases {
	e := &Leases{router: engines.NewRouter(), issued: map[string]bool{}, calls: map[string]int{}}
	engines.On(e.router, engines.Update, "config/{name}", "Write a role.", 0, e.writeRole)
	engines.On(e.router, engines.Read, "config/{name}", "Read a role.", 0, e.readRole)
	engines.On(e.router, engines.Read, "creds/{name}", "Issue a credential with a lease.", engines.Active, e.creds)
	return e
}

// Factory is an engines.Factory that returns this engine for every mount.
func (e *Leases) Factory(engines.Mount) (engines.Engine, error) { return e, nil }

// Router implements engines.Engine.
func (e *Leases) Router() *engines.Router { return e.router }

type leaseRole struct {
	TTL       engines.Duration `json:"ttl" help:"TTL of the leases; 0 is the mount's default."`
	MaxTTL    engines.Duration `json:"max_ttl" help:"Maximum TTL of the leases; 0 is the mount's."`
	Renewable bool             `json:"renewable" default:"true" help:"Whether the leases can be renewed."`
}

type leaseRoleInput struct {
	Name string `json:"name" help:"Name of the role."`
	leaseRole
}

type leaseNameInput struct {
	Name string `json:"name" help:"Name of the role."`
}

func (e *Leases) writeRole(ctx context.Context, req *engines.Request, in *leaseRoleInput) (*engines.Response, error) {
	value, err := json.Marshal(in.leaseRole)
	if err != nil {
		return nil, err
	}
	_, err = req.Mount.Storage.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: storage.Key("config/" + in.Name), Value: value}}})
	return nil, err
}

func (e *Leases) role(ctx context.Context, m engines.Mount, name string) (leaseRole, error) {
	var r leaseRole
	found, err := m.Storage.Get(ctx, storage.Key("config/"+name))
	if errors.Is(err, storage.ErrNotFound) {
		return r, engines.NotFound("")
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(found.Value, &r)
}

func (e *Leases) readRole(ctx context.Context, req *engines.Request, in *leaseNameInput) (*engines.Response, error) {
	r, err := e.role(ctx, req.Mount, in.Name)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"ttl": r.TTL.Seconds(), "max_ttl": r.MaxTTL.Seconds(), "renewable": r.Renewable,
	}}, nil
}

// leaseInternal is what a lease keeps.
type leaseInternal struct {
	Role   string `json:"role"`
	Serial string `json:"serial"`
}

func (e *Leases) creds(ctx context.Context, req *engines.Request, in *leaseNameInput) (*engines.Response, error) {
	r, err := e.role(ctx, req.Mount, in.Name)
	if err != nil {
		return nil, err
	}
	serial := e.Issue()
	internal, err := json.Marshal(leaseInternal{Role: in.Name, Serial: serial})
	if err != nil {
		return nil, err
	}
	lease := r.lease()
	lease.Kind, lease.Internal = leaseKind, internal
	return &engines.Response{Data: map[string]any{"serial": serial}, Lease: &lease}, nil
}

func (r leaseRole) lease() engines.Lease {
	return engines.Lease{TTL: time.Duration(r.TTL), MaxTTL: time.Duration(r.MaxTTL), Renewable: r.Renewable}
}

// Issue makes a credential, as creds does, and returns its serial.
func (e *Leases) Issue() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.serial++
	serial := fmt.Sprintf("serial-%d", e.serial)
	e.issued[serial] = true
	return serial
}

// Lease is a lease for a credential that Issue made, without a role.
func (e *Leases) Lease(serial string, ttl, maxTTL time.Duration) engines.Lease {
	internal, err := json.Marshal(leaseInternal{Serial: serial})
	if err != nil {
		panic(err) // texts
	}
	return engines.Lease{TTL: ttl, MaxTTL: maxTTL, Renewable: true, Kind: leaseKind, Internal: internal}
}

// RevokeLease implements engines.Leaser.
func (e *Leases) RevokeLease(ctx context.Context, _ engines.Mount, l engines.LeaseRecord) error {
	var in leaseInternal
	if err := json.Unmarshal(l.Internal, &in); err != nil || l.Kind != leaseKind {
		return fmt.Errorf("not a lease of this engine: kind %q", l.Kind)
	}
	if err := e.wait(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[in.Serial]++
	if e.failures != 0 {
		e.failures = max(e.failures-1, -1)
		return e.cause
	}
	e.issued[in.Serial] = false
	return nil
}

// wait hangs as long as Hold says.
func (e *Leases) wait(ctx context.Context) error {
	e.mu.Lock()
	hold := e.hold
	e.mu.Unlock()
	if hold == nil {
		return nil
	}
	e.hang(1)
	defer e.hang(-1)
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Leases) hang(by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting += by
}

// RenewLease implements engines.Leaser: it answers the terms of the role as they are now.
func (e *Leases) RenewLease(ctx context.Context, m engines.Mount, l engines.LeaseRecord) (engines.Lease, error) {
	e.mu.Lock()
	refusal := e.refusal
	e.mu.Unlock()
	if refusal != nil {
		return engines.Lease{}, refusal
	}
	var in leaseInternal
	if err := json.Unmarshal(l.Internal, &in); err != nil {
		return engines.Lease{}, err
	}
	if in.Role == "" {
		return engines.Lease{TTL: l.ExpiresAt.Sub(l.IssuedAt), Renewable: true}, nil
	}
	r, err := e.role(ctx, m, in.Role)
	if err != nil {
		return engines.Lease{}, err
	}
	return r.lease(), nil
}

// FailRevoke makes the next n calls of RevokeLease fail with cause, or all if n is below 0; 0 ends that.
func (e *Leases) FailRevoke(n int, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures, e.cause = n, cause
}

// FailRenew makes RenewLease fail with cause until it is nil.
func (e *Leases) FailRenew(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusal = cause
}

// Hold makes calls of RevokeLease hang until release is called or their context ends. Call release once.
func (e *Leases) Hold() (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hold := make(chan struct{}) // closed by release
	e.hold = hold
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.hold = nil
		close(hold)
	}
}

// Waiting returns how many calls of RevokeLease hang.
func (e *Leases) Waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting
}

// Outstanding returns the serials of the credentials that are still good, sorted.
func (e *Leases) Outstanding() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for serial, good := range e.issued {
		if good {
			out = append(out, serial)
		}
	}
	slices.Sort(out)
	return out
}

// Revoked returns how many credentials were revoked.
func (e *Leases) Revoked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, good := range e.issued {
		if !good {
			n++
		}
	}
	return n
}

// Calls returns how often RevokeLease was called for a credential.
func (e *Leases) Calls(serial string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[serial]
}
