// Package api is the policy and capability paths of the sys router.
package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/storage"
)

// rootNS is the id of the root namespace.
const rootNS = "root"

// Deps are what Routes needs besides the router.
type Deps struct {
	Store *policy.Store
	// OfToken, OfAccessor and OfCaller return what a valid token may do, looking from the namespace of the request. Any
	// error of the first two is answered as an invalid token or accessor, unless it wraps a storage sentinel.
	OfToken    func(ctx context.Context, req *engines.Request, token string) (*policy.ACL, error)
	OfAccessor func(ctx context.Context, req *engines.Request, accessor string) (*policy.ACL, error)
	OfCaller   func(ctx context.Context, req *engines.Request) (*policy.ACL, error)
	// Synonym returns a path one segment of which has another name with that name, and with engines.Unnamed in its place. May be nil.
	Synonym func(path string) (other, neutral string)
}

// namespace is the id of the request's namespace.
func (d *Deps) namespace(req *engines.Request) string { return cmp.Or(req.Mount.NamespaceID, rootNS) }

// Routes declares the policy and capability paths on the sys router.
func Routes(r *engines.Router, d Deps) {
	const (
		listHelp   = "List the names of all policies."
		readHelp   = "Read a policy."
		writeHelp  = "Write a policy, whatever was there."
		deleteHelp = "Delete a policy."
	)
	engines.On(r, engines.List, "policies/acl", listHelp, 0, d.list).Returns("keys: [string]")
	engines.On(r, engines.Read, "policies/acl", listHelp, 0, d.list).Returns("keys: [string]")
	engines.On(r, engines.Read, "policies/acl/{name...}", readHelp, 0, d.read).Returns("name, policy")
	engines.On(r, engines.Update, "policies/acl/{name...}", writeHelp, 0, d.write)
	engines.On(r, engines.Delete, "policies/acl/{name...}", deleteHelp, 0, d.delete)

	// The older paths, with the older names beside the newer ones.
	engines.On(r, engines.List, "policy", listHelp, 0, d.oldList).Returns("top; keys: [string], policies: [string]")
	engines.On(r, engines.Read, "policy", listHelp, 0, d.oldList).Returns("top; keys: [string], policies: [string]")
	engines.On(r, engines.Read, "policy/{name...}", readHelp, 0, d.oldRead).Returns("top; name, rules")
	engines.On(r, engines.Update, "policy/{name...}", writeHelp, 0, d.oldWrite)
	engines.On(r, engines.Delete, "policy/{name...}", deleteHelp, 0, d.delete)

	// Tokens are local to the cluster, so these paths are too.
	engines.On(r, engines.Update, "capabilities", "Tell the capabilities on paths of a token, or of one that has given policies.", engines.ClusterLocal, d.capabilities).
		Returns("top; *: [string]")
	engines.On(r, engines.Update, "capabilities-self", "Tell the caller's capabilities on paths.", engines.ClusterLocal, d.capabilitiesSelf).
		Returns("top; *: [string]")
	engines.On(r, engines.Update, "capabilities-accessor", "Tell the capabilities of a token, given by accessor, on paths.", engines.ClusterLocal, d.capabilitiesAccessor).
		Returns("top; *: [string]")
	engines.On(r, engines.Read, "internal/ui/resultant-acl", "All that the caller's policies say, for the web UI.", engines.ClusterLocal, d.resultant).
		Returns("exact_paths: {*: {capabilities: [string]}}, glob_paths: {*: {capabilities: [string]}}, root: boolean")
}

type noInput struct{}

type nameInput struct {
	Name string `json:"name" help:"Name of the policy."`
}

type writeInput struct {
	Name   string `json:"name" help:"Name of the policy."`
	Policy string `json:"policy" help:"The policy, in HCL or JSON, perhaps in base64."`
}

type oldWriteInput struct {
	writeInput
	Rules string `json:"rules" alias:"policy" help:"Older name of policy."`
}

func (d *Deps) list(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	names, err := d.Store.List(ctx, d.namespace(req))
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"keys": names}}, nil
}

func (d *Deps) oldList(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	names, err := d.Store.List(ctx, d.namespace(req))
	if err != nil {
		return nil, err
	}
	data := map[string]any{"keys": names, "policies": names}
	return &engines.Response{Data: data, Top: data}, nil
}

func (d *Deps) get(ctx context.Context, req *engines.Request, name string) (*policy.Policy, error) {
	p, err := d.Store.Get(ctx, d.namespace(req), name)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	return p, err
}

func (d *Deps) read(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	p, err := d.get(ctx, req, in.Name)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"name": p.Name, "policy": p.Text}}, nil
}

func (d *Deps) oldRead(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	p, err := d.get(ctx, req, in.Name)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"name": p.Name, "rules": p.Text}
	return &engines.Response{Data: data, Top: data}, nil
}

func (d *Deps) write(ctx context.Context, req *engines.Request, in *writeInput) (*engines.Response, error) {
	if strings.TrimSpace(in.Policy) == "" {
		return nil, engines.Invalid("'policy' parameter not supplied or empty")
	}
	return nil, d.Store.Set(ctx, d.namespace(req), in.Name, in.Policy)
}

func (d *Deps) oldWrite(ctx context.Context, req *engines.Request, in *oldWriteInput) (*engines.Response, error) {
	switch {
	case in.Policy == "":
		in.Policy = in.Rules
	case in.Rules != "" && in.Rules != in.Policy:
		return nil, engines.Invalid("'policy' and 'rules' are given and differ: give only 'policy'")
	}
	return d.write(ctx, req, &in.writeInput)
}

func (d *Deps) delete(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	return nil, d.Store.Delete(ctx, d.namespace(req), in.Name)
}

type pathsInput struct {
	Paths engines.StringList `json:"paths" max:"1024" help:"Paths to tell the capabilities of."`
	Path  engines.StringList `json:"path" alias:"paths" max:"1024" help:"Older name of paths."`
}

type capabilitiesInput struct {
	pathsInput
	Token    engines.Sensitive  `json:"token" help:"The token; or give policies, policy or both."`
	Policies engines.StringList `json:"policies" form:"name" max:"1024" help:"Instead of a token, names of policies, which the caller must be allowed to read. Those that do not exist allow nothing."`
	Policy   string             `json:"policy" help:"Instead of a token, a policy that need not be stored, in HCL or JSON."`
}

type accessorInput struct {
	pathsInput
	Accessor string `json:"accessor" required:"true" help:"Accessor of the token."`
}

func (d *Deps) capabilities(ctx context.Context, req *engines.Request, in *capabilitiesInput) (*engines.Response, error) {
	given := in.Token.Reveal() != ""
	switch simulated := len(in.Policies) > 0 || in.Policy != ""; {
	case given && simulated:
		return nil, engines.Invalid("a token and policies are given: give one of them")
	case simulated:
		return d.simulate(ctx, req, in)
	case !given:
		return nil, engines.Invalid("token must be supplied, or policies, or a policy")
	}
	acl, err := d.OfToken(ctx, req, in.Token.Reveal())
	if err != nil {
		return nil, invalidUnlessStorage(err, "invalid token")
	}
	return d.answer(acl, in.pathsInput)
}

// simulate tells what a token with policies of the request's namespace could do, and says of each policy no more than reading it would.
func (d *Deps) simulate(ctx context.Context, req *engines.Request, in *capabilitiesInput) (*engines.Response, error) {
	caller, err := d.OfCaller(ctx, req)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, given := range in.Policies {
		name, err := policy.NormalName(given)
		if err != nil {
			return nil, err
		}
		may := caller.Capabilities("sys/policies/acl/" + name)
		if !slices.Contains(may, "read") && !slices.Contains(may, policy.RootName) {
			return nil, engines.Denied(nil)
		}
		names = append(names, name)
	}
	acl, err := d.Store.Simulate(ctx, d.namespace(req), names, in.Policy)
	if err != nil {
		return nil, err
	}
	return d.answer(acl, in.pathsInput)
}

func (d *Deps) capabilitiesAccessor(ctx context.Context, req *engines.Request, in *accessorInput) (*engines.Response, error) {
	acl, err := d.OfAccessor(ctx, req, in.Accessor)
	if err != nil {
		return nil, invalidUnlessStorage(err, "invalid accessor")
	}
	return d.answer(acl, in.pathsInput)
}

func (d *Deps) capabilitiesSelf(ctx context.Context, req *engines.Request, in *pathsInput) (*engines.Response, error) {
	acl, err := d.OfCaller(ctx, req)
	if err != nil {
		return nil, err
	}
	return d.answer(acl, *in)
}

func invalidUnlessStorage(err error, text string) error {
	for _, sentinel := range []error{storage.ErrUnavailable, storage.ErrSealed, storage.ErrReadOnly, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, sentinel) {
			return err
		}
	}
	return &engines.Error{Kind: engines.KindInvalid, Detail: text, Err: err}
}

// answer tells the capabilities on each path, and those on the first also as "capabilities".
func (d *Deps) answer(acl *policy.ACL, in pathsInput) (*engines.Response, error) {
	paths := in.Paths
	if len(paths) == 0 {
		paths = in.Path
	}
	if len(paths) == 0 {
		return nil, engines.Invalid("paths must be supplied")
	}
	data := make(map[string]any, len(paths)+1)
	for _, path := range paths {
		data[path] = d.capabilitiesOn(acl, path)
	}
	first := data[paths[0]]
	data["capabilities"] = first
	// Only this one goes to the top level: a path could have the name of a field of the envelope.
	return &engines.Response{Data: data, Top: map[string]any{"capabilities": first}}, nil
}

func (d *Deps) capabilitiesOn(acl *policy.ACL, path string) []string {
	if d.Synonym != nil {
		if other, neutral := d.Synonym(strings.TrimLeft(path, "/")); other != "" {
			return acl.CapabilitiesSynonym(path, other, neutral)
		}
	}
	return acl.Capabilities(path)
}

func (d *Deps) resultant(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	acl, err := d.OfCaller(ctx, req)
	if err != nil {
		return nil, err
	}
	exact, glob := acl.Summary()
	return &engines.Response{Data: map[string]any{"root": acl.Root(), "exact_paths": exact, "glob_paths": glob}}, nil
}
