package inventory

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"golang.org/x/sync/errgroup"
)

// method is what there is to read of auth methods of a type.
type method struct {
	roles  string // folder of roles or users
	kind   string // of one
	config bool
	note   string // about the config
	about  string // about each role
}

var methods = map[string]method{
	"token":      {roles: "roles", kind: "token role"},
	"approle":    {roles: "role", kind: "approle role"},
	"cert":       {roles: "certs", kind: "cert role", config: true, note: "revocation lists cannot be read: write them to crls/ again"},
	"userpass":   {roles: "users", kind: "user", about: "its password does not come: no login works until one is set"},
	"saml":       {roles: "role", kind: "role", config: true},
	"jwt":        {roles: "role", kind: "role", config: true, note: "oidc_client_secret cannot be read: set it again if there is one"},
	"oidc":       {roles: "role", kind: "role", config: true, note: "oidc_client_secret cannot be read: set it again"},
	"kubernetes": {roles: "role", kind: "role", config: true, note: "token_reviewer_jwt cannot be read: set it again if there is one"},
}

// olderNames are names of fields that have newer ones.
var olderNames = map[string]string{
	"policies": "token_policies", "period": "token_period", "ttl": "token_ttl", "max_ttl": "token_max_ttl", "bound_cidrs": "token_bound_cidrs",
	"explicit_max_ttl": "token_explicit_max_ttl", "bound_cidr_list": "secret_id_bound_cidrs", "num_uses": "token_num_uses",
}

// current keeps of a field with two names the newer one.
func current(fields map[string]any) map[string]any {
	for older, newer := range olderNames {
		value, both := fields[older]
		if _, has := fields[newer]; !both || !has {
			continue
		}
		delete(fields, older)
		if len(move.Differences(map[string]any{"": fields[newer]}, nil)) == 0 { // nothing is in the newer one
			fields[newer] = value
		}
	}
	return fields
}

// imported returns the auth methods of types that are read, whose mount is at the destination.
func (v *Inventory) imported() (out []*Mount) {
	for _, m := range v.Methods {
		if _, ok := methods[m.Type]; ok && !v.skipped[m] {
			out = append(out, m)
		}
	}
	return out
}

func (v *Inventory) methodConfigs(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	for _, m := range v.imported() {
		if !methods[m.Type].config {
			continue
		}
		at := "auth/" + m.Path + "/config"
		fields, err := v.Source.Fields(ctx, m.Namespace, at)
		if err != nil {
			return nil, err
		}
		if fields == nil {
			continue
		}
		o := &move.Object{
			Kind: "auth method config", Namespace: m.Namespace, Name: m.Path + "/", Want: fields,
			Current: v.reader(m.Namespace, at), Write: v.Destination.Post(at),
		}
		if m.Type == "cert" {
			read := o.Current
			o.Current = func(ctx context.Context) (map[string]any, error) {
				now, err := read(ctx)
				if now["disable_binding"] == false && now["enable_identity_alias_metadata"] == false && now["enable_metadata_on_failures"] == false {
					now = nil // there is always one: this is that of a method which has not been configured
				}
				return now, err
			}
		}
		if note := methods[m.Type].note; note != "" {
			o.Notes = []string{note}
		}
		out = append(out, o)
	}
	return out, nil
}

func (v *Inventory) roles(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	for _, m := range v.imported() {
		about := methods[m.Type]
		folder := "auth/" + m.Path + "/" + about.roles
		names, err := v.list(ctx, m.Namespace, folder, about.kind)
		if err != nil {
			return nil, err
		}
		all, err := v.readAll(ctx, m.Namespace, below(folder, names))
		if err != nil {
			return nil, err
		}
		objects := make([]*move.Object, len(names))
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(workers)
		for i, name := range names {
			if all[i] == nil {
				continue
			}
			g.Go(func() (err error) {
				objects[i], err = v.role(ctx, m, folder+"/"+name, name, all[i])
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(objects, func(o *move.Object) bool { return o == nil })...)
	}
	return out, nil
}

// role is the object of a role or a user.
func (v *Inventory) role(ctx context.Context, m *Mount, at, name string, fields map[string]any) (*move.Object, error) {
	about := methods[m.Type]
	o := &move.Object{
		Kind: about.kind, Namespace: m.Namespace, Name: m.Path + "/" + name, Want: current(without(fields, "name")),
		Current: v.reader(m.Namespace, at), Write: v.Destination.Post(at),
	}
	if about.about != "" {
		o.Notes = []string{about.about}
	}
	switch m.Type {
	case "approle":
		return o, v.appRole(ctx, m, o, at)
	case "userpass":
		o.Write = func(ctx context.Context, o *move.Object) (*command.Response, error) {
			body := o.Body()
			if o.Now == nil {
				// Which password it is, is not known to anyone: an operator sets another one.
				body["password"] = rand.Text()
			}
			return v.Destination.Send(ctx, http.MethodPost, m.Namespace, at, body)
		}
	}
	return o, nil
}

// appRole completes the object of an AppRole with its role id.
func (v *Inventory) appRole(ctx context.Context, m *Mount, o *move.Object, at string) error {
	id, err := v.Source.Fields(ctx, m.Namespace, at+"/role-id")
	if err != nil {
		return err
	}
	o.Want["role_id"] = id["role_id"]
	secrets, err := v.Source.List(ctx, m.Namespace, at+"/secret-id")
	switch {
	case err != nil:
		o.Notes = append(o.Notes, "its secret ids do not come: make new ones")
	case len(secrets) > 0:
		o.Notes = append(o.Notes, fmt.Sprintf("its secret ids (%d) do not come: make new ones", len(secrets)))
	}
	read := o.Current
	o.Current = func(ctx context.Context) (map[string]any, error) {
		now, err := read(ctx)
		if now == nil || err != nil {
			return nil, err
		}
		id, err := v.Destination.Fields(ctx, m.Namespace, at+"/role-id")
		now["role_id"] = id["role_id"]
		return now, err
	}
	o.Write = func(ctx context.Context, o *move.Object) (*command.Response, error) {
		body := o.Body()
		if o.Now != nil {
			delete(body, "local_secret_ids") // of a new one only
		}
		return v.Destination.Send(ctx, http.MethodPost, m.Namespace, at, body)
	}
	return nil
}
