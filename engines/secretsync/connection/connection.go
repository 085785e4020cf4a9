// Package connection opens destinations, and keeps them open until their record changes. It applies what the operator of the server has
// decided: which addresses a destination may connect to (network.go), the rate of its calls, and whether it may use credentials of the
// server's environment. Start reading at Pool.
package connection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Options configures a Pool.
type Options struct {
	Types    map[string]destination.Type // by name
	Operator Operator
	// Store has the apps that destinations sign in as; nil: there are none.
	Store  func() storage.Store
	Log    *slog.Logger
	Tokens Tokens // nil: there are none
}

// Tokens issues tokens by which a provider knows a destination: engines.Host.
type Tokens interface {
	IdentityToken(ctx context.Context, namespaceID, subject, audience string, ttl time.Duration) (engines.Sensitive, error)
}

// Pool opens destinations, and keeps each open until its record changes. Safe for concurrent use.
type Pool struct {
	Types map[string]destination.Type // by name; do not modify
	// OnCircuit is called when the circuit of a destination opens and when it closes; nil: not. Set it before the first Get.
	OnCircuit func(ns, name string, c workqueue.Circuit)
	opts      Options

	mu    sync.Mutex
	open  map[string]*connection // by destination id
	known map[storage.Key]*Known // by key of the destination
	links map[string]int         // at once, by id of the destination
}

// connection is an open destination.
type connection struct {
	key     storage.Key   // of the destination's record
	version storage.Index // of the record when it was opened
	dest    *workqueue.RateLimited
}

// NewPool returns a Pool without open destinations.
func NewPool(o Options) *Pool { return &Pool{Types: o.Types, opts: o} }

// Get returns the destination of a record that was stored at a version, within its rate limit.
func (p *Pool) Get(d *state.Destination, version storage.Index) (*workqueue.RateLimited, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.open[d.ID]
	if old != nil && old.version == version {
		return old.dest, nil
	}
	dest, err := p.Open(d)
	if err != nil {
		return nil, fmt.Errorf("opening the destination: %w", err)
	}
	now := &connection{d.Key(), version, workqueue.NewRateLimited(dest, p.RateOf(d), p.circuitChanged(d.NS, d.Type+"/"+d.Name))}
	if old != nil { // its calls end by themselves, and count against the same rate
		now.dest.Share(old.dest)
		old.dest.Close() //nolint:errcheck // there is nothing to lose
	}
	if p.open == nil {
		p.open = map[string]*connection{}
	}
	for id, other := range p.open { // the same record, with the id of its former location
		if other.key == now.key && id != d.ID {
			p.closeLocked(id)
		}
	}
	p.open[d.ID] = now
	return now.dest, nil
}

// circuitChanged returns what logs and reports the changes of a destination's circuit.
func (p *Pool) circuitChanged(ns, name string) func(workqueue.Circuit) {
	return func(c workqueue.Circuit) {
		if p.OnCircuit != nil {
			p.OnCircuit(ns, name, c)
		}
		if c.Open {
			p.opts.Log.Warn("calls to a destination have stopped for a while", "namespace", ns, "destination", name, "code", c.Cause.Code, "cause", c.Cause.Text, "until", c.Until.UTC())
			return
		}
		p.opts.Log.Info("a destination responds again", "namespace", ns, "destination", name)
	}
}

// Circuit returns the circuit of a destination; one that was not called yet has a closed one.
func (p *Pool) Circuit(id string) workqueue.Circuit {
	p.mu.Lock()
	c := p.open[id]
	p.mu.Unlock()
	if c == nil {
		return workqueue.Circuit{}
	}
	return c.dest.Circuit()
}

// HalfOpen lets the next call of an open circuit through, unless the destination has asked to wait. It returns the state before.
func (p *Pool) HalfOpen(id string) workqueue.Circuit {
	p.mu.Lock()
	c := p.open[id]
	p.mu.Unlock()
	if c == nil {
		return workqueue.Circuit{}
	}
	return c.dest.HalfOpen()
}

func (p *Pool) closeLocked(id string) {
	p.open[id].dest.Close() //nolint:errcheck // there is nothing to lose
	delete(p.open, id)
}

// Drop closes a destination.
func (p *Pool) Drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] != nil {
		p.closeLocked(id)
	}
}

// DropByKey closes the destination of a record that was deleted.
func (p *Pool) DropByKey(key storage.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.known[key]; k != nil {
		delete(p.known, key)
		delete(p.links, k.ID)
	}
	for id, c := range p.open {
		if c.key == key {
			p.closeLocked(id)
		}
	}
}

// Close closes all destinations.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.open {
		p.closeLocked(id)
	}
	p.known, p.links = nil, nil
}

// ConfigOf returns the configuration of a destination.
func (p *Pool) ConfigOf(d *state.Destination) (destination.Config, error) {
	kind, ok := p.Types[d.Type]
	if !ok {
		return nil, fmt.Errorf("%w: the type is %s", ErrUnknownType, d.Type)
	}
	c := kind.New()
	if err := state.DecodeConfig(d.Config, c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownType, err)
	}
	return c, nil
}

// RedeploysBy returns what redeploys a destination, "" if nothing does.
func (p *Pool) RedeploysBy(d *state.Destination) string {
	c, err := p.ConfigOf(d)
	if err != nil {
		return ""
	}
	return destination.RedeploysBy(c)
}

// Location returns where the names of a destination are, as its vendor identifies it. The address by which the operator has the vendor
// reached is not a part of it: all destinations of a type use the same one, and claims survive a new address. If the address leads to
// another installation with locations of the same name, claims keep names apart that need not be, but nothing is overwritten: the
// state of the destination decides who owns a name.
func (p *Pool) Location(d *state.Destination) (string, error) {
	c, err := p.ConfigOf(d)
	if err != nil {
		return "", err
	}
	return c.Location(), nil
}

// AppliedFingerprint returns a hash of what is written with every value: tags, and fields of the destination that count for what was
// written before.
func (p *Pool) AppliedFingerprint(d *state.Destination) string {
	tags := state.TagsFingerprint(d.CustomTags)
	c, err := p.ConfigOf(d)
	if err != nil {
		return tags
	}
	if a, ok := c.(destination.Applied); ok && a.Applied() != "" {
		return state.Hash(tags, a.Applied())
	}
	return tags
}

// RateOf is how much may be asked of a destination: what its type says, unless the operator has another agreement with the
// vendor. A second's worth may always come at once.
func (p *Pool) RateOf(d *state.Destination) destination.Rate {
	r, end := p.Types[d.Type].Rules.Rate, p.opts.Operator.Endpoints[d.Type]
	if w := end.WritesPerSecond; w > 0 {
		r.Writes, r.WriteBurst = w, max(r.WriteBurst, int(w))
	}
	if n := end.ReadsPerSecond; n > 0 {
		r.Reads, r.ReadBurst = n, max(r.ReadBurst, int(n))
	}
	return r
}

// RejectEnvironment returns why a destination may not be without credentials of its own, "" if it may, or is not.
func (p *Pool) RejectEnvironment(ns string, c destination.Config) string {
	if len(Credentials(c)) > 0 || AppOf(c) != "" || p.allowsEnvironment(ns) {
		return ""
	}
	use := p.opts.Operator.EnvironmentCredentials
	return fmt.Sprintf("the destination has no credentials: give it some of its own, since those of the server's environment are not for it (environment_credentials is %q in the server's configuration)", use)
}

// allowsEnvironment reports whether destinations of a namespace may use credentials of the server's environment.
func (p *Pool) allowsEnvironment(ns string) bool {
	use := p.opts.Operator.EnvironmentCredentials
	return use == "" || use == EnvironmentAll || use == EnvironmentRoot && ns == state.RootNS
}

// Open opens the destination of a record.
func (p *Pool) Open(d *state.Destination) (destination.Destination, error) {
	c, err := p.ConfigOf(d)
	if err != nil {
		return nil, err
	}
	if problem := p.RejectEnvironment(d.NS, c); problem != "" {
		return nil, &destination.Error{Class: destination.Client, Code: destination.Denied, Text: problem}
	}
	env, err := p.environmentOf(d)
	if err != nil {
		return nil, err
	}
	if env.App, err = p.app(d.NS, AppOf(c)); err != nil {
		return nil, err
	}
	return p.Types[d.Type].Open(c, env)
}

// AppOf returns the name of the app that a configuration signs in as, "" for none.
func AppOf(c destination.Config) string {
	if u, ok := c.(destination.AppUser); ok {
		return u.App()
	}
	return ""
}

// app returns the app of a namespace, nil if there is none. The record is read from this node, without waiting. When it
// changes, package api also stores the destinations that name it, so that they are opened again.
func (p *Pool) app(ns, name string) (*destination.App, error) {
	if name == "" || p.opts.Store == nil {
		return nil, nil
	}
	var a githubapp.App
	found, err := engines.GetRecord(context.Background(), p.opts.Store(), githubapp.Key(ns, name), &a)
	if err != nil || !found {
		return nil, err
	}
	return a.Credentials()
}

// ErrUnknownType says that a destination is of a later version: its type or a field is unknown. It is not changed, and the next full scan
// tries it again.
var ErrUnknownType = errors.New("this version does not know such destinations")

// Operator is the part of the server's configuration that callers of the API cannot change.
type Operator struct {
	// AllowPrivate lets destinations be at private, link-local and loopback addresses.
	AllowPrivate bool
	// EnvironmentCredentials says which destinations that have no credentials of their own may use those of the server's environment:
	// EnvironmentAll, of any namespace, also if it is ""; EnvironmentRoot, of the root namespace; EnvironmentNone.
	EnvironmentCredentials string
	// NoAliases rejects the vendors' names of types.
	NoAliases bool
	// Endpoints replace the addresses of vendors, by type.
	Endpoints map[string]Endpoint
}

// The values of Operator.EnvironmentCredentials.
const (
	EnvironmentAll  = "all"
	EnvironmentRoot = "root"
	EnvironmentNone = "none"
)

// Endpoint is where a type of destination is, instead of at the vendor's.
type Endpoint struct {
	URL          string
	AuthorityURL string
	TokenURL     string
	CAFile       string
	// WritesPerSecond and ReadsPerSecond are the budget of each destination of the type; 0: what the type says.
	WritesPerSecond float64
	ReadsPerSecond  float64
}

// Credentials returns the sensitive fields of a configuration that are set, by name.
func Credentials(c destination.Config) map[string]string {
	set := map[string]string{}
	state.EachField(c, func(name string, v reflect.Value) {
		if v.Type() == state.SensitiveType && v.String() != "" {
			set[name] = v.String()
		}
	})
	return set
}
