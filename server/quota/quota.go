// Package quota limits how often clients may ask, how many leases and tokens there may be, and how many bytes may be stored.
//
// A quota concerns everything (path ""), a namespace ("team/"), a mount ("team/secret/"), a path below a mount
// ("team/secret/data/app", or many with a "*" at the end), or the logins of one role of an auth mount. Of all
// quotas of a kind that concern a request the most specific one counts, and no other: role, path, mount,
// namespace, the nearest namespace above whose quota is inheritable, everything.
//
// Rates are counted by each node for itself and by client address; IPv6 clients are told apart by their /64,
// because that is what one subscriber gets. Counters live in memory and start over with the node, and when a
// quota changes. Lease counts and stored bytes are Usage's to know: this package compares.
//
// Without quotas a request costs two atomic loads. Start reading at Rate and AdmitLease, then table.
package quota

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Options of Quotas. Store is required, and all but Logger to admit leases, tokens and writes.
type Options struct {
	// Store is the plaintext store, Raw the one that it encrypts to.
	Store storage.Store
	Raw   storage.Reader
	// Namespaces and Usage tell what quotas are about. Without Usage, the paths of quotas are taken as they are, and those of
	// namespaces and mounts must end in a slash.
	Namespaces Namespaces
	Usage      Usage
	Logger     *slog.Logger
}

// Namespaces knows the paths of namespaces: namespace.Store.
type Namespaces interface{ Path(id string) string }

// Usage is what there is for quotas to count.
type Usage interface {
	// Split splits a path from the root namespace, with a trailing slash, into the path of its namespace ("" or "a/b/") and that
	// of its mount below it ("secret/", "auth/approle/"; "" if nothing is mounted there).
	Split(ctx context.Context, path string) (namespace, mount string, err error)
	// MountPath returns the path of the mount that a path of a namespace leads to; "" if nothing is mounted there.
	MountPath(ctx context.Context, namespace, path string) (string, error)
	// Leases counts the leases and tokens in a scope.
	Leases(ctx context.Context, scope Scope) (int, error)
	// Bytes measures what is stored in a scope.
	Bytes(ctx context.Context, scope Scope) (int64, error)
}

// Request is what quotas need to know of a request.
type Request struct {
	NamespacePath string // "" or "a/b/"
	MountPath     string // relative to the namespace, ends in "/"; "" if nothing is mounted there
	Path          string // relative to the namespace, with the mount
	Synonym       string // Path by the other name of one of its segments; "" if none has one
	Role          string // of a login; "" if there is none
	// FindRole finds the role instead, if a rule is about one; nil: it is Role.
	FindRole func() string
	ClientIP netip.Addr
}

// Decision is what a rate limit quota says of a request.
type Decision struct {
	Quota      string // name of the quota that counted; "" if there is none
	Allowed    bool
	Limit      int           // requests in the quota's interval
	Remaining  int           // requests that the client may send at once from now on
	ResetAfter time.Duration // until the client has its whole limit again
	RetryAfter time.Duration // until the next request is allowed; 0 if one is now
	// Audit says that a rejection is to be recorded in the audit log.
	Audit bool

	headers bool
}

// Header returns the response's header: the limits, if that is enabled, and when to retry after a rejection, always.
// Nil if there is none.
func (d Decision) Header() http.Header {
	if d.Quota == "" || d.Allowed && !d.headers {
		return nil
	}
	h := http.Header{}
	if d.headers {
		h.Set("X-Ratelimit-Limit", strconv.Itoa(d.Limit))
		h.Set("X-Ratelimit-Remaining", strconv.Itoa(d.Remaining))
		h.Set("X-Ratelimit-Reset", wholeSeconds(d.ResetAfter))
	}
	if !d.Allowed {
		h.Set("Retry-After", wholeSeconds(d.RetryAfter))
	}
	return h
}

// wholeSeconds rounds up: who comes back then is not early.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}

// Err returns the error that rejects a request, with the response's header in it; nil if it is allowed.
func (d Decision) Err(path string) error {
	if d.Allowed {
		return nil
	}
	err := limited(path, "rate limit")
	err.Header = d.Header()
	return err
}

func limited(path, kind string) *engines.Error {
	const most = 256
	if len(path) > most {
		path = path[:most] + "…"
	}
	return &engines.Error{Kind: engines.KindLimited, Detail: fmt.Sprintf("request path %q: %s quota exceeded", path, kind)}
}

// Scope is what a lease count or storage quota counts.
type Scope struct {
	Namespace string // path, "" for root
	Below     bool   // also in the namespaces below
	Mount     string // relative to Namespace; "": all mounts
	Path      string // below Mount; "": all; all that begin so, if it ends in "*"
	Role      string // of the login; "": all
}

// Quotas keeps the quotas in storage and decides by them. Give Changed every change of the feed. Safe for
// concurrent use.
type Quotas struct {
	opts Options
	log  *slog.Logger

	changes atomic.Uint64         // counts announced changes to stored quotas
	table   atomic.Pointer[table] // made when it held table.at; nil before the first use

	mu sync.Mutex // held while the table is read again

	rateViolations, leaseViolations, storageViolations atomic.Uint64
}

// New returns the quotas of a store. They are read when first needed.
func New(o Options) *Quotas {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Quotas{opts: o, log: o.Logger}
}

// Changed notes whether quotas changed. It runs on the apply path and reads nothing: the next request does.
func (q *Quotas) Changed(ch storage.Change) {
	if ch.Touches(prefix) {
		q.changes.Add(1)
	}
}

// Clear forgets everything, when the server seals.
func (q *Quotas) Clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes.Add(1)
	q.table.Store(nil)
}

// current returns the table of what is stored now.
func (q *Quotas) current(ctx context.Context) (*table, error) {
	if t := q.table.Load(); t != nil && t.at == q.changes.Load() {
		return t, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	at, old := q.changes.Load(), q.table.Load()
	if old != nil && old.at == at {
		return old, nil
	}
	rules, config, err := q.load(ctx)
	if err != nil {
		return nil, err
	}
	t := newTable(rules, config, old)
	t.at = at
	q.table.Store(t)
	return t, nil
}

// Rate counts a request and says whether it is allowed. Exempt paths are not counted. describe is only called if there are rate
// limits. The error is one of reading the quotas.
func (q *Quotas) Rate(ctx context.Context, describe func() Request) (Decision, error) {
	t, err := q.current(ctx)
	if err != nil || len(t.rates.all) == 0 {
		return Decision{Allowed: true}, err
	}
	r := describe()
	full := []string{r.NamespacePath + r.Path}
	if r.Synonym != "" {
		full = append(full, r.NamespacePath+r.Synonym)
	}
	for _, path := range full {
		if t.exempt.match(path[len(r.NamespacePath):]) || t.absolute.match(path) {
			return Decision{Allowed: true}, nil
		}
	}
	found := t.rates.find(r, full...)
	if found == nil {
		return Decision{Allowed: true}, nil
	}
	d := found.limiter.take(r.ClientIP, time.Now())
	d.Quota, d.Audit, d.headers = found.Name, t.config.AuditRateLimits, t.config.RateLimitHeaders
	if !d.Allowed {
		found.violations.Add(1)
		q.rateViolations.Add(1)
	}
	return d, nil
}

// Leases says whether one more lease may be made: nil, an engines.Error of KindLimited, or an error of reading
// the quotas or of count. count tells how many leases there are in a scope; it is only called if a quota
// concerns the request. Requests at the same moment may pass the limit together.
func (q *Quotas) Leases(ctx context.Context, r Request, count func(context.Context, Scope) (int, error)) error {
	t, err := q.current(ctx)
	if err != nil {
		return err
	}
	if len(t.leases.all) == 0 {
		return nil
	}
	found := t.leases.find(r, r.NamespacePath+r.Path)
	if found == nil {
		return nil
	}
	n, err := count(ctx, found.scope(r))
	if err != nil {
		return fmt.Errorf("counting leases: %w", err)
	}
	if int64(n) < found.MaxLeases {
		return nil
	}
	found.violations.Add(1)
	q.leaseViolations.Add(1)
	return limited(r.Path, "lease count")
}

// Numbers are the counters for the metrics, of all quotas together: their names are users' choice.
func (q *Quotas) Numbers() map[string]float64 {
	n := map[string]float64{
		"quota_rate_limits": 0, "quota_lease_counts": 0, "quota_storage_limits": 0, "quota_rate_limit_clients": 0,
		"quota_storage_violations_total":     float64(q.storageViolations.Load()),
		"quota_rate_limit_violations_total":  float64(q.rateViolations.Load()),
		"quota_lease_count_violations_total": float64(q.leaseViolations.Load()),
	}
	if t := q.table.Load(); t != nil {
		n["quota_rate_limits"], n["quota_lease_counts"] = float64(len(t.rates.all)), float64(len(t.leases.all))
		n["quota_storage_limits"] = float64(len(t.storage.all))
		for _, r := range t.rates.all {
			n["quota_rate_limit_clients"] += float64(r.limiter.clients())
		}
	}
	return n
}
