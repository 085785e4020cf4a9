package namespace

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Routes declares the namespace paths on the sys router. All paths in them are relative to the namespace of the
// request.
func (s *Store) Routes(r *engines.Router) {
	engines.On(r, engines.Scan, "namespaces/{path...}", "List all namespaces below this one, or below the one at the path.", engines.Active, s.serveScan).
		Returns("keys: [string], key_info: {*: {custom_metadata: {*: string}, id, locked: boolean, path, tainted: boolean, uuid}}")
	engines.On(r, engines.List, "namespaces/{path...}", "List the namespaces right below this one, or below the one at the path.", engines.Active, s.serveList).
		Returns("key_info: {*: {custom_metadata: {*: string}, id, locked: boolean, path, tainted: boolean, uuid}}, keys: [string]")
	engines.On(r, engines.Read, "namespaces/{path...}", "Describe a namespace, and how far its deletion has come.", engines.Active, s.serveRead).
		Returns(`custom_metadata: {*: string}, id, locked: boolean, path, progress: {failures: integer, namespace, namespaces_left: integer,
			step}, status, tainted: boolean, uuid`)
	engines.On(r, engines.Update, "namespaces/{path...}", "Create a namespace. Those it lies in must exist.", 0, s.serveCreate).
		Returns(namespacesShape).Exists = s.exists
	engines.On(r, engines.Patch, "namespaces/{path...}", "Change a namespace's metadata: null removes a key.", 0, s.servePatch).
		Returns(namespacesShape)
	engines.On(r, engines.Delete, "namespaces/{path...}", "Delete a namespace, which must not have child namespaces, with everything in it, in the background.", 0, s.serveDelete).
		Returns("empty; status")

	engines.On(r, engines.Update, "namespaces/api-lock/lock", "Lock the namespace of the request: it and all below answer 503 to everything.", engines.Sudo, s.serveLockOwn).
		Returns("unlock_key")
	engines.On(r, engines.Update, "namespaces/api-lock/lock/{path...}", "Lock a namespace: it and all below answer 503 to everything.", engines.Sudo, s.serveLock).
		Returns("unlock_key")
	engines.On(r, engines.Update, "namespaces/api-lock/unlock", "Unlock the namespace of the request.", engines.Sudo, s.serveUnlockOwn)
	engines.On(r, engines.Update, "namespaces/api-lock/unlock/{path...}", "Unlock a namespace.", engines.Sudo, s.serveUnlock)

	engines.On(r, engines.Read, "internal/ui/namespaces", "List the namespaces below this one in which the caller may do anything.", engines.AnyToken, s.serveVisible).
		Returns("keys: [string]")
}

type none struct{}

type pathInput struct {
	Path string `json:"path" help:"Path of the namespace, relative to the one of the request."`
}

// describe is a namespace as clients read it.
func (s *Store) describe(n *Namespace) map[string]any {
	metadata := n.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	out := map[string]any{
		"id": n.ID, "uuid": n.UUID, "path": n.Path, "custom_metadata": metadata, "tainted": n.Deleting, "locked": n.Locked(),
	}
	if n.Deleting {
		out["status"] = "deleting"
		if p, ok := s.Progress(n); ok {
			out["progress"] = p
		}
	}
	return out
}

func (s *Store) serveList(ctx context.Context, req *engines.Request, in *pathInput) (*engines.Response, error) {
	return s.listed(ctx, req, in, false)
}

func (s *Store) serveScan(ctx context.Context, req *engines.Request, in *pathInput) (*engines.Response, error) {
	return s.listed(ctx, req, in, true)
}

// listed returns the namespaces right below the one at the path, or all of them.
func (s *Store) listed(ctx context.Context, req *engines.Request, in *pathInput, all bool) (*engines.Response, error) {
	t, n, err := s.findIn(ctx, req.Mount.NamespaceID, in.Path)
	if err != nil {
		return nil, err
	}
	keys, info := []string{}, map[string]any{}
	var add func(n *Namespace, above string)
	add = func(n *Namespace, above string) {
		for _, child := range t.children(n) {
			key := above + child.Name() + "/"
			keys = append(keys, key)
			info[key] = s.describe(child)
			if all {
				add(child, key)
			}
		}
	}
	add(n, "")
	if len(keys) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": keys, "key_info": info}}, nil
}

func (s *Store) serveRead(ctx context.Context, req *engines.Request, in *pathInput) (*engines.Response, error) {
	n, err := s.find(ctx, req.Mount.NamespaceID, in.Path)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: s.describe(n)}, nil
}

func (s *Store) exists(ctx context.Context, req *engines.Request) (bool, error) {
	t, n, err := s.from(ctx, req.Mount.NamespaceID)
	if err != nil {
		return false, err
	}
	return t.find(n, strings.Trim(req.Param("path"), "/")) != nil, nil
}

type createInput struct {
	pathInput
	Metadata engines.StringMap  `json:"custom_metadata" help:"Texts to keep with the namespace, by key."`
	Seal     string             `json:"seal" help:"Not supported: a namespace has no seal of its own."`
	PGPKeys  engines.StringList `json:"pgp_keys" help:"Not supported."`
}

func (s *Store) serveCreate(ctx context.Context, req *engines.Request, in *createInput) (*engines.Response, error) {
	if in.Seal != "" || len(in.PGPKeys) > 0 {
		return nil, engines.Invalid("fields \"seal\" and \"pgp_keys\" are not supported: a namespace has no seal of its own")
	}
	metadata := map[string]string(in.Metadata)
	if !req.Given("custom_metadata") {
		metadata = nil
	}
	n, err := s.Create(ctx, req.Mount.NamespaceID, in.Path, metadata)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: s.describe(n)}, nil
}

type patchInput struct {
	pathInput
	Metadata map[string]json.RawMessage `json:"custom_metadata" help:"Texts to change, by key; null removes one."`
}

func (s *Store) servePatch(ctx context.Context, req *engines.Request, in *patchInput) (*engines.Response, error) {
	n, err := s.find(ctx, req.Mount.NamespaceID, in.Path)
	if err != nil {
		return nil, err
	}
	changes := map[string]*string{}
	for k, raw := range in.Metadata {
		var v *string
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, engines.Invalid("field \"custom_metadata\": the values must be texts, or null to remove one")
		}
		changes[k] = v
	}
	clear := req.Null("custom_metadata")
	if !clear && len(changes) == 0 {
		return &engines.Response{Data: s.describe(n)}, nil
	}
	if n, err = s.Merge(ctx, n.ID, clear, changes); err != nil {
		return nil, err
	}
	return &engines.Response{Data: s.describe(n)}, nil
}

func (s *Store) serveDelete(ctx context.Context, req *engines.Request, in *pathInput) (*engines.Response, error) {
	t, base, err := s.from(ctx, req.Mount.NamespaceID)
	if err != nil {
		return nil, err
	}
	n := t.find(base, strings.Trim(in.Path, "/"))
	if n == nil {
		return &engines.Response{Warnings: []string{"there is no such namespace: nothing was deleted"}}, nil
	}
	if n == base {
		return nil, engines.Invalid("name the namespace to delete")
	}
	if err := s.Delete(ctx, n.ID); err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"status": "in-progress"}}, nil
}

func (s *Store) serveLock(ctx context.Context, req *engines.Request, in *pathInput) (*engines.Response, error) {
	n, err := s.find(ctx, req.Mount.NamespaceID, in.Path)
	if err != nil {
		return nil, err
	}
	key, err := s.Lock(ctx, n.ID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"unlock_key": key.Reveal()}}, nil
}

// serveLockOwn takes no path: policies would know nothing of it.
func (s *Store) serveLockOwn(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	return s.serveLock(ctx, req, &pathInput{})
}

type unlockOwnInput struct {
	UnlockKey engines.Sensitive `json:"unlock_key" max:"128" help:"What locking answered. A root token of the root namespace needs none."`
}

type unlockInput struct {
	pathInput
	unlockOwnInput
}

func (s *Store) serveUnlockOwn(ctx context.Context, req *engines.Request, in *unlockOwnInput) (*engines.Response, error) {
	return s.serveUnlock(ctx, req, &unlockInput{unlockOwnInput: *in})
}

func (s *Store) serveUnlock(ctx context.Context, req *engines.Request, in *unlockInput) (*engines.Response, error) {
	n, err := s.find(ctx, req.Mount.NamespaceID, in.Path)
	if err != nil {
		return nil, err
	}
	force := req.Caller.Root && (req.Caller.NamespaceID == "" || req.Caller.NamespaceID == RootID)
	return nil, s.Unlock(ctx, n.ID, in.UnlockKey, force)
}

// serveVisible lists every namespace below that of the request in which the caller may do anything. The paths are
// relative.
func (s *Store) serveVisible(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	t, base, err := s.from(ctx, req.Mount.NamespaceID)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	var visit func(*Namespace) (bool, error)
	visit = func(n *Namespace) (any bool, err error) {
		for _, child := range t.children(n) {
			if child.Deleting {
				continue
			}
			visible, err := visit(child)
			path := strings.TrimPrefix(child.Path, base.Path)
			if err == nil && !visible {
				visible, err = s.mayEnter(ctx, req.Caller, child, path)
			}
			if err != nil {
				return false, err
			}
			found[path] = visible
			any = any || visible
		}
		return any, nil
	}
	if _, err := visit(base); err != nil {
		return nil, err
	}
	maps.DeleteFunc(found, func(_ string, visible bool) bool { return !visible })
	return &engines.Response{Data: map[string]any{"keys": append([]string{}, slices.Sorted(maps.Keys(found))...)}}, nil
}

// mayEnter reports whether a caller may do anything in a namespace, whose path relative to that of the request is given.
func (s *Store) mayEnter(ctx context.Context, c engines.Caller, n *Namespace, path string) (bool, error) {
	if s.opts.Access == nil {
		return c.Access != nil && c.Access.AnyUnder(path), nil
	}
	return s.opts.Access.MayEnter(ctx, c, n)
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	namespacesShape = "custom_metadata: {*: string}, id, locked: boolean, path, tainted: boolean, uuid"
)
