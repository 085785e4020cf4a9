package passpolicy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Store keeps the policies of all namespaces, which are given by id ("root" for the root namespace). It holds no
// state of its own. Safe for concurrent use.
type Store struct{ store storage.Store }

// NewStore returns a Store over the decrypted store.
func NewStore(s storage.Store) *Store { return &Store{s} }

// record is what is stored, as JSON, under s/sys/<namespace>/password-policies/<name>.
type record struct {
	Format int    `json:"format"` // 1
	Text   string `json:"text"`   // in HCL, as written
	Source string `json:"entropy_source,omitempty"`
}

func prefix(ns string) storage.Key {
	return storage.NewKey(storage.Shared, "sys", ns+"/password-policies/")
}

func key(ns, name string) storage.Key { return prefix(ns) + storage.Key(name) }

const maxNameBytes = 128

func checkName(name string) error {
	switch {
	case len(name) > maxNameBytes:
		return engines.Invalid("field \"name\": is longer than %d bytes", maxNameBytes)
	case name == "" || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@") != "":
		return engines.Invalid("field \"name\": may hold letters, digits and _-.@ only")
	}
	return nil
}

// get returns a policy as written, or storage.ErrNotFound.
func (s *Store) get(ctx context.Context, ns, name string) (r record, err error) {
	if err := checkName(name); err != nil {
		return r, err
	}
	e, err := s.store.Get(ctx, key(ns, name))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(e.Value, &r); err != nil || r.Format != 1 {
		return r, fmt.Errorf("reading password policy %q: unknown format", name)
	}
	return r, nil
}

// Generate returns a new password as the named policy says. The error is storage.ErrNotFound if there is no such
// policy, and an engines.Error for what cannot be a name.
func (s *Store) Generate(ctx context.Context, ns, name string) (string, error) {
	r, err := s.get(ctx, ns, name)
	if err != nil {
		return "", err
	}
	p, err := restore(r.Text)
	if err != nil {
		return "", fmt.Errorf("reading password policy %q: %w", name, err)
	}
	return p.Generate(ctx)
}

// set stores a policy, whatever was there.
func (s *Store) set(ctx context.Context, ns, name, text, source string) error {
	if err := checkName(name); err != nil {
		return err
	}
	p, err := Parse(text)
	if err != nil {
		return engines.Invalid("field \"policy\": %v", err)
	}
	value, err := json.Marshal(record{Format: 1, Text: p.text, Source: source})
	if err != nil {
		return err
	}
	_, err = s.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: key(ns, name), Value: value}}})
	return err
}

// Routes declares the password policies' paths on the sys router.
func Routes(r *engines.Router, s *Store) {
	engines.On(r, engines.List, "policies/password", "List the names of the password policies.", 0, s.list).Returns("keys: [string]")
	engines.On(r, engines.Read, "policies/password/{name}", "Read a password policy.", 0, s.read).Returns("entropy_source, policy")
	engines.On(r, engines.Delete, "policies/password/{name}", "Delete a password policy.", 0, s.remove)
	engines.On(r, engines.Update, "policies/password/{name}", "Write a password policy, whatever was there.", 0, s.write).Exists = s.exists
	engines.On(r, engines.Read, "policies/password/{name}/generate", "Make a password as a policy says.", 0, s.generate).Returns("password")
}

type listInput struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

type nameInput struct {
	Name string `json:"name" help:"Name of the policy."`
}

type writeInput struct {
	nameInput
	Policy string `json:"policy" required:"true" max:"16384" help:"The policy in HCL, perhaps in base64: a length, and rules that name charsets and how many of their characters there must be."`
	Source string `json:"entropy_source" max:"64" help:"Where randomness comes from: \"platform\", the operating system, is all there is."`
}

func namespace(req *engines.Request) string { return cmp.Or(req.Mount.NamespaceID, "root") }

func (s *Store) list(ctx context.Context, req *engines.Request, in *listInput) (*engines.Response, error) {
	return engines.Listed(s.store.List(ctx, prefix(namespace(req)), in.After, in.Limit))
}

func (s *Store) exists(ctx context.Context, req *engines.Request) (bool, error) {
	_, err := s.get(ctx, namespace(req), req.Param("name"))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s *Store) read(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	r, err := s.get(ctx, namespace(req), in.Name)
	data := map[string]any{"policy": r.Text}
	if r.Source != "" {
		data["entropy_source"] = r.Source
	}
	return answer(data, err)
}

func (s *Store) generate(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	password, err := s.Generate(ctx, namespace(req), in.Name)
	return answer(map[string]any{"password": password}, err)
}

func answer(data map[string]any, err error) (*engines.Response, error) {
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: data}, nil
}

func (s *Store) write(ctx context.Context, req *engines.Request, in *writeInput) (*engines.Response, error) {
	if in.Source != "" && in.Source != "platform" {
		return nil, engines.Invalid("field \"entropy_source\": unsupported entropy source: leave it out, or give \"platform\"")
	}
	return nil, s.set(ctx, namespace(req), in.Name, in.Policy, in.Source)
}

func (s *Store) remove(ctx context.Context, req *engines.Request, in *nameInput) (*engines.Response, error) {
	if err := checkName(in.Name); err != nil {
		return nil, err
	}
	_, err := s.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{key(namespace(req), in.Name)}})
	return nil, err
}
