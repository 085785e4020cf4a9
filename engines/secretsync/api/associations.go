package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
	"github.com/coffer-project/coffer/storage"
)

func (s *API) associationRoutes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}/associations"
	route(r, engines.Read, of, "The associations of a destination, with the state of every secret.", flags, s.readAssociations).Returns(associated)
	route(r, engines.Update, of+"/set", "Associate a secret, or all below a prefix, with a destination; or sync it again.", flags, s.setAssociation).Returns(associated)
	route(r, engines.Update, of+"/remove", "Remove an association, with what was synced.", flags, s.removeAssociation).Returns(associated)
	route(r, engines.List, "sync/associations", "All associated secrets, by mount.", flags, s.listAssociations).
		Returns("key_info: {*: [{mount, secret_path}]}, keys: [string], total_associations: integer, total_secrets: integer")
	route(r, engines.Read, "sync/associations/destinations", "The destinations of a secret.", flags, s.destinationsOf).
		Returns(`associated_destinations: {*: {accessor, attempts: integer, external_name, external_version, last_attempt, last_success,
			mount, name, secret_name, secret_prefix, sub_key, sync_status, type, type_names: [string], updated_at, version: integer}}`)
	route(r, engines.Read, "sync/associations/{mount}/{secret_name...}", "The destinations of a secret.", flags, s.destinationsOf).
		Returns(`associated_destinations: {*: {accessor, attempts: integer, cause, code, external_name, external_version, last_attempt,
			last_success, mount, name, next_retry, secret_name, secret_prefix, sub_key, sync_status, type, type_names: [string],
			updated_at, version: integer}}`)
}

// AssociationsIn names a destination where "name" is something else.
type AssociationsIn struct {
	Type        string `json:"type" max:"64" help:"Type of the destination."`
	Destination string `json:"destination" max:"128" help:"Name of the destination."`
}

// SecretIn names a secret or a prefix. Clients of the Vault-compatible API remove associations with name in place of secret_name.
type SecretIn struct {
	AssociationsIn
	Mount      string `json:"mount" form:"path" max:"512" help:"Mount that holds the secret: its path, or its accessor."`
	Name       string `json:"name" alias:"secret_name" max:"512" help:"Another word for secret_name."`
	SecretName string `json:"secret_name" max:"512" help:"Name of the secret, without a leading slash."`
	Prefix     string `json:"secret_prefix" max:"512" help:"In place of secret_name: all secrets whose names begin so, also those to come; * for all of the mount."`
}

// associationIn is an association.
type associationIn struct {
	SecretIn
	Granularity string             `json:"granularity" help:"In place of the destination's: secret-path or secret-key."`
	Template    string             `json:"secret_name_template" max:"4096" help:"In place of the destination's."`
	Format      string             `json:"format" help:"json, raw or dotenv; without it json for whole secrets and raw for keys. dotenv: a line KEY=\"value\" for each key of a whole secret."`
	Include     engines.StringList `json:"include" max:"200" help:"Only these keys of the secret; * stands for any text."`
	Exclude     engines.StringList `json:"exclude" max:"200" help:"Not these keys."`
	Rename      engines.StringMap  `json:"rename" max:"200" help:"What keys of the secret are called at the destination, such as {\"password\": \"DB_PASSWORD\"}. Others keep their names."`
	Value       string             `json:"value_template" max:"4096" help:"Template of the values, in place of a format: .Secrets.KEY is the value of a key. With granularity secret-key, .SecretValue is that of the key."`
	Deletion    string             `json:"deletion_policy" default:"delete" enum:"delete,retain" help:"What becomes of what was synced when the secret, or the association, goes."`
	Drift       string             `json:"drift_policy" default:"report" enum:"report,repair,conflict,ignore" help:"What becomes of changes that other clients make at the destination to names of secret sync. conflict: they are not overwritten."`
}

// Selection is what a request names.
type Selection struct {
	Dest     *state.Destination
	Mount    *engines.Mounted
	Secret   string // or the prefix; "" is all of the mount
	source   engines.SecretSource
	selector bool
}

func (c *Selection) id() string {
	return state.AssociationID(c.Dest.ID, c.Mount.UUID, c.Secret, c.selector)
}

func (c *Selection) key() storage.Key { return state.AssociationKey(c.Dest.NS, c.Dest.ID, c.id()) }

// ResolveSelection finds what a request names.
func (s *API) ResolveSelection(ctx context.Context, req *engines.Request, in *SecretIn) (*Selection, error) {
	c, err := s.resolveName(ctx, req, in)
	if err != nil {
		return nil, err
	}
	c.Mount, c.source, err = s.SourceAt(ctx, req, in.Mount)
	return c, err
}

// resolveName is ResolveSelection without the mount.
func (s *API) resolveName(ctx context.Context, req *engines.Request, in *SecretIn) (*Selection, error) {
	c := new(Selection)
	var err error
	if c.Dest, err = s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination); err != nil {
		return nil, err
	}
	name := cmp.Or(in.SecretName, in.Name)
	switch {
	case in.Name != "" && in.Name != name:
		return nil, engines.Invalid(`fields "name" and "secret_name" are two words for one thing, and differ`)
	case in.Mount == "":
		return nil, engines.Invalid(`field "mount" is required: the mount that holds the secret`)
	case name == "" && in.Prefix == "":
		return nil, engines.Invalid(`field "secret_name", or "name", is required: the name of the secret, or secret_prefix for several`)
	case name != "" && in.Prefix != "":
		return nil, engines.Invalid(`fields "secret_name" and "secret_prefix" exclude each other`)
	}
	c.Secret, c.selector = cmp.Or(name, in.Prefix), in.Prefix != ""
	field := "secret_name"
	switch {
	case c.selector:
		field = "secret_prefix"
	case in.SecretName == "":
		field = "name"
	}
	if in.Prefix == "*" {
		c.Secret = ""
	}
	if problem := CheckSecretName(c.Secret, c.selector); problem != "" {
		return nil, engines.Invalid("field %q: %s", field, problem)
	}
	return c, nil
}

// CheckSecretName returns why a name, or with selector a prefix, cannot be one of secrets.
func CheckSecretName(name string, selector bool) string {
	switch {
	case strings.HasPrefix(name, "/"):
		return "has a leading slash; leave it out"
	case strings.HasSuffix(name, "/") && !selector:
		return "ends in a slash, which is a folder: give the full path of a secret, or use secret_prefix for all below it"
	case strings.Contains(name, "//") || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }):
		return "is not the name of a secret"
	}
	for _, segment := range strings.Split(name, "/") {
		if segment == "." || segment == ".." {
			return "is not the name of a secret"
		}
	}
	return ""
}

// SourceAt returns the KV version 2 mount at a path of the request's namespace, or with an accessor.
func (s *API) SourceAt(ctx context.Context, req *engines.Request, path string) (*engines.Mounted, engines.SecretSource, error) {
	m, err := s.Host.MountAt(ctx, req.Mount.NamespaceID, path)
	if err != nil {
		return nil, nil, err
	}
	if m == nil || !req.Caller.Sees(m.UUID) {
		return nil, nil, engines.Invalid(`field "mount": there is no such mount in this namespace of the primary cluster, which is the one that syncs`)
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil, nil, engines.Invalid(`field "mount": it is not a KV version 2 engine, and only secrets of those can be synced`)
	}
	return m, source, nil
}

// setAssociation makes an association, or refreshes the one that there is, and waits a while for the first sync.
func (s *API) setAssociation(ctx context.Context, req *engines.Request, in *associationIn) (*engines.Response, error) {
	c, err := s.ResolveSelection(ctx, req, &in.SecretIn)
	if err != nil {
		return nil, err
	}
	if err := s.CheckReadable(ctx, req, c); err != nil {
		return nil, err
	}
	a := s.buildAssociation(req, c, in)
	named := c.Dest.NamedType
	if c.Dest, err = s.PutAssociation(ctx, c.Dest, a, givenOf(req)); err != nil {
		return nil, err
	}
	c.Dest.NamedType = named
	s.Associations.Put(a)
	if !c.selector {
		s.SyncAndWait(ctx, a.LinkID(a.Secret))
		return s.RespondAssociations(ctx, c.Dest, a)
	}
	if err := s.ScanAssociation(ctx, a); err != nil {
		return nil, err
	}
	resp, err := s.RespondAssociations(ctx, c.Dest, a)
	if err == nil {
		resp.Warnings = []string{"the secrets below the prefix are synced in the background: read the associations to see how far it is"}
	}
	return resp, err
}

// CheckReadable holds the caller to what they may read themselves, and the secret to being there.
func (s *API) CheckReadable(ctx context.Context, req *engines.Request, c *Selection) error {
	denied := engines.Denied(errors.New("the caller cannot read what is to be associated"))
	denied.Detail = fmt.Sprintf("permission denied: to sync a secret one must be able to read it: %q of mount %q", c.Secret, c.Mount.Path)
	if c.selector {
		denied.Detail = fmt.Sprintf("permission denied: to sync secrets one must be able to read them: none below %q of mount %q", c.Secret, c.Mount.Path)
	}
	path := c.Mount.Path + c.source.ReadPath(c.Secret)
	if c.selector {
		if !req.Caller.Access.Allowed(engines.Read, path) && !req.Caller.Access.AnyUnder(path) {
			return denied
		}
		return nil
	}
	if !req.Caller.Access.Allowed(engines.Read, path) {
		return denied
	}
	secret, err := c.source.LatestSecret(ctx, c.Mount.Mount, c.Secret)
	if err != nil {
		return err
	}
	if secret.Version == 0 {
		return engines.NotFound(fmt.Sprintf("there is no secret %q in mount %q", c.Secret, c.Mount.Path))
	}
	return nil
}

// buildAssociation makes the record of an association, as far as the request says.
func (s *API) buildAssociation(req *engines.Request, c *Selection, in *associationIn) *state.Association {
	now := time.Now().UTC()
	return &state.Association{
		ID: c.id(), Destination: c.Dest.ID, Type: c.Dest.Type, Name: c.Dest.Name, NS: c.Dest.NS,
		MountUUID: c.Mount.UUID, Accessor: c.Mount.Accessor, MountPath: c.Mount.Path, Secret: c.Secret, Selector: c.selector,
		Granularity: in.Granularity, OwnGranularity: in.Granularity != "", Template: in.Template, OwnTemplate: in.Template != "",
		ValueFormat: in.Format, Include: in.Include, Exclude: in.Exclude, Rename: in.Rename, ValueTemplate: in.Value, Deletion: in.Deletion, Drift: in.Drift,
		Owner: engines.PrincipalOf(req.Caller), CreatedAt: now, UpdatedAt: now,
	}
}

// givenOf reports for a field whether it came with a request.
func givenOf(req *engines.Request) func(field string) bool {
	return func(field string) bool { return req.Given(field) || req.Null(field) }
}

type removeIn struct {
	SecretIn
	Retain bool `json:"retain" help:"Leave what was synced where it is."`
}

// removeAssociation has what was synced removed, and waits a while for it. One that is not there, or whose mount is not, has been
// removed.
func (s *API) removeAssociation(ctx context.Context, req *engines.Request, in *removeIn) (*engines.Response, error) {
	c, err := s.resolveName(ctx, req, &in.SecretIn)
	if err != nil {
		return nil, err
	}
	if err := s.resolveRemoval(ctx, req, c, in.Mount); err != nil {
		return nil, err
	}
	a, err := s.RemoveAssociation(ctx, c.key(), in.Retain)
	if err != nil {
		return nil, err
	}
	if a == nil {
		if over, err := s.SelectorsOf(ctx, c.Dest, c.Mount.UUID, c.Secret); err != nil {
			return nil, err
		} else if len(over) > 0 && !c.selector {
			return nil, engines.Invalid("the secret is not associated by itself, but by the association with secret_prefix %q: remove that one", status.PrefixText(over[0]))
		}
		return s.respondRemoved(c, nil), nil
	}
	began := time.Now().UTC()
	if c.selector {
		if err := s.ScanAssociation(ctx, a); err != nil {
			return nil, err
		}
		return s.respondRemoved(c, &state.Link{}), nil
	}
	s.SyncAndWait(ctx, a.LinkID(a.Secret))
	var l state.Link
	left, err := engines.GetRecord(ctx, s.Host.Store(), state.LinkKey(a.NS, a.Destination, a.ID, a.Secret), &l)
	if err != nil {
		return nil, err
	}
	warnings, err := s.orphanWarnings(ctx, c, began)
	if err != nil {
		return nil, err
	}
	resp := s.respondRemoved(c, nil)
	if left {
		resp = s.respondRemoved(c, &l)
	}
	resp.Warnings = append(resp.Warnings, warnings...)
	return resp, nil
}

// orphanWarnings says which names of a secret were let go since a moment.
func (s *API) orphanWarnings(ctx context.Context, c *Selection, since time.Time) ([]string, error) {
	var o state.Orphans
	if _, err := engines.GetRecord(ctx, s.Host.Store(), state.OrphansKey(c.Dest.NS, c.Dest.Type, c.Dest.Name), &o); err != nil {
		return nil, err
	}
	var failed, changed, warnings []string
	for _, left := range o.Names {
		switch {
		case left.Secret != c.Secret || left.Mount != c.Mount.Path || left.At.Before(since):
		case left.Changed:
			changed = append(changed, left.Name)
		default:
			failed = append(failed, left.Name)
		}
	}
	if len(failed) > 0 {
		warnings = append(warnings, fmt.Sprintf("what was synced could not be removed, and stays at the destination, as its removal_attempts says: %q", failed))
	}
	if len(changed) > 0 {
		warnings = append(warnings, fmt.Sprintf("what was changed by another client stays at the destination; remove it there if it is not needed: %q", changed))
	}
	return warnings, nil
}

// resolveRemoval finds the mount of an association that is to be removed. It may be gone, or another one may be at its path.
func (s *API) resolveRemoval(ctx context.Context, req *engines.Request, c *Selection, path string) error {
	var err error
	c.Mount, c.source, err = s.SourceAt(ctx, req, path)
	var e *engines.Error
	if !errors.As(err, &e) {
		return err
	}
	path = strings.TrimSuffix(path, "/")
	c.Mount = &engines.Mounted{Mount: engines.Mount{Path: path + "/", Accessor: path}}
	return state.Scan(ctx, s.Host.Store(), state.Area(c.Dest.NS, "a/"+c.Dest.ID+"/"), func(_ storage.Key, a *state.Association) bool { // one that cannot be read may be it
		if !req.Caller.Sees(a.MountUUID) || a.Secret != c.Secret || a.Selector != c.selector || a.MountPath != c.Mount.Path && a.Accessor != path {
			return true
		}
		c.Mount.UUID, c.Mount.Path, c.Mount.Accessor = a.MountUUID, a.MountPath, a.Accessor
		return false
	})
}

// respondRemoved returns the response about an association that is being removed: left is its link, nil if it is gone.
func (s *API) respondRemoved(c *Selection, left *state.Link) *engines.Response {
	entry := map[string]any{
		"accessor": c.Mount.Accessor, "mount": c.Mount.Path, "secret_name": c.Secret, "sub_key": "", "sync_status": state.Unsynced, "updated_at": time.Now().UTC(),
	}
	if c.selector {
		entry["secret_prefix"] = cmp.Or(c.Secret, "*")
	}
	resp := &engines.Response{Data: map[string]any{
		"associated_secrets": map[string]any{c.Mount.Accessor + "/" + c.Secret: entry}, "store_name": c.Dest.Name, "store_type": c.Dest.TypeName(),
	}}
	if left == nil {
		return resp
	}
	entry["sync_status"] = state.Unsyncing
	if left.Cause != "" {
		entry["cause"], entry["code"] = left.Cause, left.Code
	}
	resp.Warnings = []string{"what was synced is still being removed; the association goes when it is"}
	if c.Dest.Paused {
		resp.Warnings = []string{"syncing to the destination is paused: what was synced is removed when it is resumed"}
	}
	return resp
}

// associated is the shape of responses that have associations: see engines.Route.Returns.
const associated = `associated_secrets: {*: {accessor, adopting: boolean, attempts: integer, cause, code, drift, external_name, external_version,
	format, last_attempt, last_success, mount, next_retry, paused: boolean, rename: {*: string}, secret_name, secret_prefix, sub_key,
	sync_status, updated_at, value_template, version: integer}}, queued: integer, store_name, store_type`
