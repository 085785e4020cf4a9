package adoption

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// The actions on a name that is to be imported, besides Skip.
const (
	Create = "create"
	Same   = "same" // the secret is there, with the same value
)

// Import copies the values of names at a destination into secrets that are not there yet. It overwrites none.
type Import struct {
	Dest     *state.Destination
	Mount    *engines.Mounted
	Prefix   string   // of the names of the secrets
	Patterns []string // names at the destination to import, with * for any text; none: all
	Plan     bool     // change nothing, and read no value
	// Caller is on whose behalf, and must be able to create each secret; without read it is not compared.
	Caller engines.Caller
	// Check returns why a text cannot be the name of a secret.
	Check func(name string) (problem string)
}

// maxImport bounds the names that are chosen at a destination.
const maxImport = 100_000

// Import imports the names that come after a cursor, in their order.
func (s *Adopter) Import(ctx context.Context, in *Import, after string) (*Report, error) {
	version, err := state.GetDestination(ctx, s.Host.Store(), in.Dest.Key(), new(state.Destination))
	if err != nil {
		return nil, err
	}
	dest, err := s.Pool.Get(in.Dest, version)
	if err != nil {
		return nil, err
	}
	names, err := in.list(ctx, dest, after)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	until := time.Now().Add(pageTime)
	for i, name := range names {
		full := time.Now().After(until) || len(r.Entries) >= maxListed
		e := Entry{Mount: in.Mount.Path, Name: name}
		if !full {
			e.Secret = in.secretOf(name)
			e.Action, e.Reason, err = s.importName(ctx, in, dest, &e)
		}
		if i > 0 && (full || isExternal(err)) { // the next page begins with the failure
			r.Next = names[i-1]
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		r.add(e)
	}
	return r, nil
}

// list returns the names at the destination that are chosen and come after a cursor.
func (in *Import) list(ctx context.Context, dest destination.Destination, after string) (names []string, err error) {
	for f, err := range dest.List(ctx) {
		if err != nil {
			return nil, err
		}
		chosen := len(in.Patterns) == 0 || slices.ContainsFunc(in.Patterns, func(glob string) bool { return template.Match(glob, f.Name) })
		if chosen && f.Name > after {
			names = append(names, f.Name)
		}
		if len(names) > maxImport {
			return nil, engines.Invalid("the destination has more than %d such names: choose fewer with names", maxImport)
		}
	}
	slices.Sort(names)
	return names, nil
}

// secretOf returns the name of the secret that a name at the destination becomes.
func (in *Import) secretOf(name string) string {
	prefix := strings.Trim(in.Prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return prefix + strings.TrimLeft(name, "/")
}

// importName imports one name, and returns what was done, or would be. An error is of the destination or the store.
func (s *Adopter) importName(ctx context.Context, in *Import, dest destination.Destination, e *Entry) (action, reason string, err error) {
	source := in.Mount.Engine.(engines.SecretSource)
	path := source.ReadPath(e.Secret)
	if problem := in.Check(e.Secret); problem != "" {
		return Skip, problem, nil
	}
	switch access := in.Caller.Access; {
	case !access.Allowed(engines.Create, in.Mount.Path+path):
		return Skip, "you cannot create " + in.Mount.Path + path, nil
	case !access.AllowedAlways(engines.Create, in.Mount.Path+path): // what is written is not known yet
		return Skip, "your policies have conditions for creating " + in.Mount.Path + path + ", with which it is not imported", nil
	}
	place, err := s.Pool.Location(in.Dest)
	if err != nil {
		return "", "", err
	}
	claimed, err := engines.GetRecord(ctx, s.Host.Store(), state.ClaimKey(in.Dest.Type, place, state.Fold(s.Pool.Types[in.Dest.Type].Rules, e.Name)), new(state.Claim))
	switch {
	case err != nil && !s.Unreadable(err):
		return "", "", err
	case claimed || err != nil:
		return Skip, "is synced from here already", nil
	}
	had, err := source.LatestSecret(ctx, in.Mount.Mount, e.Secret)
	if err != nil {
		return "", "", err
	}
	compared := had.Live && in.Caller.Access.Allowed(engines.Read, in.Mount.Path+path)
	switch {
	case had.Version > 0 && (in.Plan || !compared):
		return Skip, "the secret exists already, and stays as it is", nil
	case in.Plan:
		return Create, "", nil
	}
	found, err := dest.Read(ctx, e.Name)
	switch {
	case isExternal(err) || err != nil && ctx.Err() != nil:
		return "", "", err
	case err != nil:
		return Skip, state.OutcomeOf(err).Cause, nil
	case found.State != destination.Present:
		return Skip, "is not there any more", nil
	case !found.Known || !utf8.Valid(found.Value):
		return Skip, "its value cannot be read back as text", nil
	}
	data, err := dataOf(found.Value)
	switch {
	case err != nil:
		return "", "", err
	case had.Version > 0 && (plan.SameValue(data, had.Data) || s.makes(in, e, had.Data, found.Value)):
		return Same, "the secret exists already, with the same value", nil
	case had.Version > 0:
		return Skip, "the secret exists already with another value, and stays as it is", nil
	}
	return s.create(ctx, in, path, e, data)
}

// makes reports whether an association with the destination makes the value of a name from the data of the entry's secret.
func (s *Adopter) makes(in *Import, e *Entry, data json.RawMessage, value []byte) bool {
	rules := s.Pool.Types[in.Dest.Type].Rules
	src := template.NewSource(in.Dest.Type, in.Dest.Name, s.Host.NamespacePath(in.Dest.NS), in.Dest.NS, in.Mount.Path, in.Mount.Accessor, e.Secret)
	return slices.ContainsFunc(s.Associations.OfSecret(in.Mount.UUID, e.Secret), func(a *state.Association) bool {
		if a.Destination != in.Dest.ID {
			return false
		}
		items, err := a.Plan(rules).Items(src, data)
		return err == nil && slices.ContainsFunc(items, func(it template.Item) bool {
			return it.Problem == "" && state.Fold(rules, it.Name) == state.Fold(rules, e.Name) && plan.SameValue(it.Value, value)
		})
	})
}

// dataOf returns a value as the data of a secret: a JSON object as it is, any other text under the key "value".
func dataOf(value []byte) (json.RawMessage, error) {
	if plan.IsObject(value) {
		return value, nil
	}
	return json.Marshal(map[string]string{"value": string(value)})
}

// create writes a new secret, as a request of the caller would, after it was recorded in the audit log.
func (s *Adopter) create(ctx context.Context, in *Import, path string, e *Entry, data json.RawMessage) (action, reason string, err error) {
	body, err := json.Marshal(map[string]any{"data": data, "options": map[string]int{"cas": 0}})
	if err != nil {
		return "", "", err
	}
	err = s.Host.Record(ctx, engines.Event{
		NamespaceID: in.Mount.NamespaceID, Operation: engines.Create, Path: in.Mount.Path + path, Who: engines.PrincipalOf(in.Caller),
		Data: map[string]any{"imported_from": in.Dest.Type + "/" + in.Dest.Name, "external": e.Name},
	})
	if err != nil {
		return "", "", err
	}
	_, err = in.Mount.Engine.Router().Handle(ctx, &engines.Request{Op: engines.Create, Path: path, Mount: in.Mount.Mount, Caller: in.Caller, Body: body})
	switch rejected, ok := errors.AsType[*engines.Error](err); {
	case err == nil:
		return Create, "", nil
	case ok && slices.Contains([]engines.Kind{engines.KindInvalid, engines.KindNotFound, engines.KindPrecondition, engines.KindTooLarge}, rejected.Kind):
		return Skip, cmp.Or(rejected.Detail, "the mount does not take it"), nil
	}
	return "", "", fmt.Errorf("importing %s: %w", e.Secret, err)
}

// isExternal reports whether an error is one of a destination that may be gone later.
func isExternal(err error) bool {
	e, ok := errors.AsType[*destination.Error](err)
	return ok && e.Class != destination.Client
}
