package quota

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Routes declares the quotas paths on the sys router.
func (q *Quotas) Routes(r *engines.Router) {
	const flags = engines.RootNamespace
	engines.On(r, engines.List, "quotas", "List the types of quotas.", flags, q.serveTypes).Returns("keys: [string]")
	engines.On(r, engines.Read, "quotas/config", "Read what concerns all quotas.", flags, q.serveConfig).
		Returns(`absolute_rate_limit_exempt_paths: [string], enable_rate_limit_audit_logging: boolean, enable_rate_limit_response_headers:
			boolean, rate_limit_exempt_paths: [string]`)
	engines.On(r, engines.Update, "quotas/config", "Change what concerns all quotas. Fields that are not given stay.", flags, q.serveConfigure)

	engines.On(r, engines.List, "quotas/rate-limit", "List the rate limits.", flags, q.serveList(RateLimit)).Returns("keys: [string]")
	engines.On(r, engines.Read, "quotas/rate-limit/{name}", "Read a rate limit.", flags, q.serveRate).
		Returns("block_interval: integer, group_by, inheritable: boolean, interval: integer, name, path, rate: number, role, type")
	engines.On(r, engines.Update, "quotas/rate-limit/{name}", "Write a rate limit, whatever was there.", flags, q.serveSetRate)
	engines.On(r, engines.Delete, "quotas/rate-limit/{name}", "Delete a rate limit.", flags, q.serveDelete(RateLimit))

	engines.On(r, engines.List, "quotas/lease-count", "List the limits of leases.", flags, q.serveList(LeaseCount)).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "quotas/lease-count/{name}", "Read a limit of leases.", flags, q.serveLeases).
		Returns("inheritable: boolean, max_leases: integer, name, path, role, type")
	engines.On(r, engines.Update, "quotas/lease-count/{name}", "Write a limit of leases, whatever was there.", flags, q.serveSetLeases)
	engines.On(r, engines.Delete, "quotas/lease-count/{name}", "Delete a limit of leases.", flags, q.serveDelete(LeaseCount))

	engines.On(r, engines.List, "quotas/storage", "List the limits of what is stored.", flags, q.serveList(Storage)).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "quotas/storage/{name}", "Read a limit of what is stored.", flags, q.serveStorage).
		Returns("inheritable: boolean, max_bytes: integer, name, path, type")
	engines.On(r, engines.Update, "quotas/storage/{name}", "Write a limit of what is stored, whatever was there.", flags, q.serveSetStorage)
	engines.On(r, engines.Delete, "quotas/storage/{name}", "Delete a limit of what is stored.", flags, q.serveDelete(Storage))
}

type noInput struct{}

type nameInput struct {
	Name string `json:"name" help:"Name of the quota."`
}

// whatInput says what a quota concerns.
type whatInput struct {
	nameInput
	Type        string `json:"type" help:"Type of the quota, as in the path."`
	Path        string `json:"path" form:"relative" help:"Path of a namespace, a mount, or something below a mount, perhaps with * at the end. Empty: everything."`
	Role        string `json:"role" help:"Count only logins with this role; path must be that of an auth method."`
	Inheritable bool   `json:"inheritable" help:"Of a namespace: count its child namespaces, too, together. Default true if path is empty."`
}

func (in *whatInput) rule(kind string) (Rule, error) {
	if in.Type != "" && in.Type != kind {
		return Rule{}, engines.Invalid(`field "type": must be %q at this path`, kind)
	}
	return Rule{Name: in.Name, Type: kind, Path: strings.TrimLeft(in.Path, "/"), Role: in.Role, Inheritable: in.Inheritable}, nil
}

type rateInput struct {
	whatInput
	GroupBy       string           `json:"group_by" enum:",ip" help:"What counts as a client: \"ip\", the address, is all there is."`
	Rate          float64          `json:"rate" required:"true" help:"Requests that a client may send in an interval."`
	Interval      engines.Duration `json:"interval" default:"1s" help:"The interval."`
	SecondaryRate float64          `json:"secondary_rate" help:"Not supported: must be 0."`
	BlockInterval engines.Duration `json:"block_interval" help:"How long a client that sent too many gets nothing at all. 0: only until its bucket has a request again."`
}

type leasesInput struct {
	whatInput
	MaxLeases int64 `json:"max_leases" required:"true" help:"Leases that there may be at once."`
}

type storageInput struct {
	nameInput
	Type        string `json:"type" help:"Type of the quota, as in the path."`
	Path        string `json:"path" help:"Path of a namespace or mount. Empty: everything."`
	Inheritable bool   `json:"inheritable" help:"Of a namespace: count its child namespaces, too, together. Default true if path is empty."`
	MaxBytes    int64  `json:"max_bytes" required:"true" help:"Bytes of secrets of key/value engines, of cubbyholes and of wrapped responses that may be stored, with their keys, encrypted."`
}

type configInput struct {
	Exempt         engines.StringList `json:"rate_limit_exempt_paths" help:"Paths that rate limits do not count, relative to the request's namespace, perhaps with * at the end. Replaces the list."`
	AbsoluteExempt engines.StringList `json:"absolute_rate_limit_exempt_paths" help:"The same, with the namespace."`
	Headers        bool               `json:"enable_rate_limit_response_headers" help:"Tell clients of their limits in the header of each response."`
	Audit          bool               `json:"enable_rate_limit_audit_logging" help:"Record requests that a rate limit rejected in the audit log."`
}

func (q *Quotas) serveTypes(context.Context, *engines.Request, *noInput) (*engines.Response, error) {
	return &engines.Response{Data: map[string]any{"keys": []string{"config", LeaseCount + "/", RateLimit + "/", Storage + "/"}}}, nil
}

func (q *Quotas) serveConfig(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	c, err := readConfig(ctx, q.opts.Store)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"rate_limit_exempt_paths": listed(c.Exempt), "absolute_rate_limit_exempt_paths": listed(c.AbsoluteExempt),
		"enable_rate_limit_response_headers": c.RateLimitHeaders, "enable_rate_limit_audit_logging": c.AuditRateLimits,
	}}, nil
}

// listed makes an empty list of no list.
func listed(paths []string) []string {
	if paths == nil {
		return []string{}
	}
	return paths
}

func (q *Quotas) serveConfigure(ctx context.Context, req *engines.Request, in *configInput) (*engines.Response, error) {
	return nil, q.configure(ctx, func(c *Config) {
		if req.Given("rate_limit_exempt_paths") {
			c.Exempt = in.Exempt
		}
		if req.Given("absolute_rate_limit_exempt_paths") {
			c.AbsoluteExempt = in.AbsoluteExempt
		}
		if req.Given("enable_rate_limit_response_headers") {
			c.RateLimitHeaders = in.Headers
		}
		if req.Given("enable_rate_limit_audit_logging") {
			c.AuditRateLimits = in.Audit
		}
	})
}

func (q *Quotas) serveList(kind string) engines.Handler[noInput] {
	return func(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
		return engines.Listed(q.list(ctx, kind))
	}
}

func (q *Quotas) serveDelete(kind string) engines.Handler[nameInput] {
	return func(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
		return nil, q.remove(ctx, kind, in.Name)
	}
}

// read returns a rule and what clients see of it whatever its type.
func (q *Quotas) read(ctx context.Context, kind, name string) (Rule, map[string]any, error) {
	r, err := get(ctx, q.opts.Store, kind, name)
	if errors.Is(err, storage.ErrNotFound) {
		return Rule{}, nil, engines.NotFound("")
	}
	return r, map[string]any{"name": r.Name, "type": r.Type, "path": r.Path, "role": r.Role, "inheritable": r.Inheritable}, err
}

func (q *Quotas) serveRate(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	r, data, err := q.read(ctx, RateLimit, in.Name)
	if err != nil {
		return nil, err
	}
	data["rate"], data["interval"], data["block_interval"], data["group_by"] = r.Rate, r.Interval, r.BlockInterval, "ip"
	return &engines.Response{Data: data}, nil
}

func (q *Quotas) serveLeases(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	r, data, err := q.read(ctx, LeaseCount, in.Name)
	if err != nil {
		return nil, err
	}
	data["max_leases"] = r.MaxLeases
	return &engines.Response{Data: data}, nil
}

func (q *Quotas) serveSetRate(ctx context.Context, req *engines.Request, in *rateInput) (*engines.Response, error) {
	r, err := in.rule(RateLimit)
	if err != nil {
		return nil, err
	}
	if in.SecondaryRate != 0 {
		return nil, engines.Invalid(`field "secondary_rate": is not supported, as "group_by" is always "ip": leave it out`)
	}
	for name, d := range map[string]engines.Duration{"interval": in.Interval, "block_interval": in.BlockInterval} {
		if time.Duration(d)%time.Second != 0 {
			return nil, engines.Invalid("field %q: must be whole seconds", name)
		}
	}
	r.Rate, r.Interval, r.BlockInterval = in.Rate, in.Interval.Seconds(), in.BlockInterval.Seconds()
	return nil, q.set(ctx, req, r)
}

func (q *Quotas) serveSetLeases(ctx context.Context, req *engines.Request, in *leasesInput) (*engines.Response, error) {
	r, err := in.rule(LeaseCount)
	if err != nil {
		return nil, err
	}
	r.MaxLeases = in.MaxLeases
	return nil, q.set(ctx, req, r)
}

func (q *Quotas) serveStorage(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	r, data, err := q.read(ctx, Storage, in.Name)
	if err != nil {
		return nil, err
	}
	delete(data, "role")
	data["max_bytes"] = r.MaxBytes
	return &engines.Response{Data: data}, nil
}

func (q *Quotas) serveSetStorage(ctx context.Context, req *engines.Request, in *storageInput) (*engines.Response, error) {
	what := whatInput{nameInput: in.nameInput, Type: in.Type, Path: in.Path, Inheritable: in.Inheritable}
	r, err := what.rule(Storage)
	if err != nil {
		return nil, err
	}
	r.MaxBytes = in.MaxBytes
	return nil, q.set(ctx, req, r)
}

func (q *Quotas) set(ctx context.Context, req *engines.Request, r Rule) error {
	if err := checkPath(r.Path); err != nil {
		return err
	}
	if err := q.locate(ctx, &r, req.Given("inheritable")); err != nil {
		return err
	}
	return q.put(ctx, r)
}
