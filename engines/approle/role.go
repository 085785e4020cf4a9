package approle

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// role is the stored form of one, as JSON.
type role struct {
	Format int    `json:"format"` // 1
	UID    string `json:"uid"`
	RoleID string `json:"role_id"`

	BindSecretID       bool                `json:"bind_secret_id"`
	LocalSecretIDs     bool                `json:"local_secret_ids,omitempty"`
	SecretIDBoundCIDRs engines.StringList  `json:"secret_id_bound_cidrs,omitempty"`
	SecretIDNumUses    int                 `json:"secret_id_num_uses,omitempty"`
	SecretIDTTL        engines.Duration    `json:"secret_id_ttl,omitempty"`
	Token              engines.TokenFields `json:"token"`
	// Older are the older names of fields that were used last: reads answer these, too.
	Older engines.Older `json:"older,omitempty"`

	name string // where it is stored
}

const (
	rolePrefix   storage.Key = "role/"
	roleIDPrefix storage.Key = "role-id/"
)

func roleKey(name string) storage.Key   { return rolePrefix + storage.Key(name) }
func roleIDKey(hash string) storage.Key { return roleIDPrefix + storage.Key(hash) }

// newerNames of the fields that have an older one.
var newerNames = map[string]string{
	"policies": "token_policies", "period": "token_period", "bound_cidr_list": "secret_id_bound_cidrs",
}

// normalName returns the form of a role's name that is stored and compared.
func normalName(name string) (string, error) { return engines.FoldName("role_name", name, "_-.@") }

// getRole returns a role by normal name, nil if there is none.
func getRole(ctx context.Context, s engines.Getter, name string) (*role, error) {
	ro := &role{name: name}
	found, err := get(ctx, s, roleKey(name), ro)
	if !found || err != nil {
		return nil, err
	}
	if ro.Format != 1 {
		return nil, fmt.Errorf("role %q has format %d, this version knows 1", name, ro.Format)
	}
	return ro, nil
}

// findRole is getRole for a name as a client wrote it. A role that is not there is the given error.
func findRole(ctx context.Context, s engines.Getter, name string, missing error) (*role, error) {
	name, err := normalName(name)
	if err != nil {
		return nil, err
	}
	ro, err := getRole(ctx, s, name)
	if err == nil && ro == nil {
		err = missing
	}
	return ro, err
}

// noRole is the answer to who wants to change something of a role that is not there.
func noRole() error { return engines.NotFound("no role has this name") }

// check brings the role into its stored form and refuses what cannot work.
func (ro *role) check() error {
	if ro.SecretIDNumUses < 0 {
		return engines.Invalid("field \"secret_id_num_uses\": must not be negative")
	}
	var err error
	if ro.SecretIDBoundCIDRs, err = networks("secret_id_bound_cidrs", ro.SecretIDBoundCIDRs); err != nil {
		return err
	}
	if err := ro.Token.Validate(); err != nil {
		return err
	}
	if !ro.BindSecretID && len(ro.SecretIDBoundCIDRs) == 0 && len(ro.Token.TokenBoundCIDRs) == 0 {
		return engines.Invalid("at least one constraint should be enabled on the role: set bind_secret_id, secret_id_bound_cidrs or token_bound_cidrs")
	}
	return nil
}

// data is what a read of the role answers.
func (ro *role) data() map[string]any {
	data := ro.Token.Data()
	data["bind_secret_id"] = ro.BindSecretID
	data["local_secret_ids"] = ro.LocalSecretIDs
	data["secret_id_bound_cidrs"] = append(engines.StringList{}, ro.SecretIDBoundCIDRs...)
	data["secret_id_num_uses"] = ro.SecretIDNumUses
	data["secret_id_ttl"] = ro.SecretIDTTL.Seconds()
	for _, older := range ro.Older {
		data[older] = data[newerNames[older]]
	}
	return data
}

// roleIn is the input of routes that need nothing but the role's name.
type roleIn struct {
	RoleName string `json:"role_name" help:"Name of the role, in any case."`
}

type listIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

type writeIn struct {
	roleIn
	RoleID             string             `json:"role_id" max:"512" help:"Id of the role; a random one by default."`
	BindSecretID       bool               `json:"bind_secret_id" default:"true" help:"Whether logins need a secret id."`
	SecretIDBoundCIDRs engines.StringList `json:"secret_id_bound_cidrs" form:"network" max:"256" help:"Addresses and networks that may log in."`
	BoundCIDRList      engines.StringList `json:"bound_cidr_list" alias:"secret_id_bound_cidrs" form:"network" max:"256" help:"Older name of secret_id_bound_cidrs."`
	SecretIDNumUses    int                `json:"secret_id_num_uses" help:"How many logins a secret id is good for; 0 is without limit."`
	SecretIDTTL        engines.Duration   `json:"secret_id_ttl" help:"Lifetime of a secret id; 0 is without end."`
	LocalSecretIDs     bool               `json:"local_secret_ids" help:"Keep the role's secret ids in this cluster. It cannot be changed later."`
	engines.TokenFields
	Policies engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"1024" help:"Older name of token_policies."`
	Period   engines.Duration   `json:"period" alias:"token_period" help:"Older name of token_period."`
}

// apply sets what the request gave.
func (in *writeIn) apply(req *engines.Request, ro *role) {
	if req.Given("bind_secret_id") {
		ro.BindSecretID = in.BindSecretID
	}
	if req.Given("secret_id_bound_cidrs") {
		ro.SecretIDBoundCIDRs = in.SecretIDBoundCIDRs
	}
	if req.Given("secret_id_num_uses") {
		ro.SecretIDNumUses = in.SecretIDNumUses
	}
	if req.Given("secret_id_ttl") {
		ro.SecretIDTTL = in.SecretIDTTL
	}
	fields := in.TokenFields
	fields.Keep(req, ro.Token)
	ro.Token = fields
	ro.Older.Take(req, "bound_cidr_list", newerNames["bound_cidr_list"], func() { ro.SecretIDBoundCIDRs = in.BoundCIDRList })
	ro.Older.Take(req, "policies", newerNames["policies"], func() { ro.Token.TokenPolicies = in.Policies })
	ro.Older.Take(req, "period", newerNames["period"], func() { ro.Token.TokenPeriod = in.Period })
}

func listRoles(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, req.Mount.Storage, rolePrefix, in)
}

func list(ctx context.Context, s storage.Reader, prefix storage.Key, in *listIn) (*engines.Response, error) {
	return engines.Listed(s.List(ctx, prefix, in.After, in.Limit))
}

func roleExists(ctx context.Context, req *engines.Request) (bool, error) {
	name, err := normalName(req.Param("role_name"))
	if err != nil {
		return false, err
	}
	ro, err := getRole(ctx, req.Mount.Storage, name)
	return ro != nil, err
}

func readRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, engines.NotFound(""))
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: ro.data()}, nil
}

func (e *engine) writeRole(ctx context.Context, req *engines.Request, in *writeIn) (*engines.Response, error) {
	name, err := normalName(in.RoleName)
	if err != nil {
		return nil, err
	}
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	var warnings []string
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		ro, err := getRole(ctx, t, name)
		if err != nil {
			return err
		}
		id := in.RoleID
		switch {
		case ro == nil:
			ro = &role{name: name, UID: newUUID(), BindSecretID: true, LocalSecretIDs: in.LocalSecretIDs}
			if id == "" {
				id = newUUID()
			}
		case req.Given("local_secret_ids") && in.LocalSecretIDs != ro.LocalSecretIDs:
			return engines.Invalid("local_secret_ids can only be modified during role creation")
		case id == "":
			id = ro.RoleID
		}
		in.apply(req, ro)
		if err := ro.check(); err != nil {
			return err
		}
		warnings = nil
		if limit := engines.Duration(req.Mount.MaxLeaseTTL); limit > 0 && ro.Token.TokenMaxTTL > limit {
			warnings = []string{"token_max_ttl is greater than the mount's maximum: tokens get the mount's"}
		}
		return ro.save(ctx, t, h, id)
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

// save stores the role under the role id, which no other role may have.
func (ro *role) save(ctx context.Context, t *storage.Txn, h hasher, id string) error {
	if id != ro.RoleID {
		if strings.ContainsFunc(id, unicode.IsControl) {
			return engines.Invalid("field \"role_id\": contains a control character")
		}
		key := roleIDKey(h(roleDomain, id))
		switch taken, err := getReference(ctx, t, key); {
		case err != nil:
			return err
		case taken != nil:
			return engines.Invalid("field \"role_id\": is the id of another role")
		}
		if ro.RoleID != "" {
			t.Delete(roleIDKey(h(roleDomain, ro.RoleID)))
		}
		if err := put(t, key, reference{Format: 1, Role: ro.name}); err != nil {
			return err
		}
		ro.RoleID = id
	}
	ro.Format = 1
	return put(t, roleKey(ro.name), ro)
}

// changeRole rewrites a role that must be there; its id stays.
func changeRole(ctx context.Context, req *engines.Request, name string, fn func(*role)) error {
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		ro, err := findRole(ctx, t, name, noRole())
		if err != nil {
			return err
		}
		fn(ro)
		if err := ro.check(); err != nil {
			return err
		}
		return put(t, roleKey(ro.name), ro)
	})
	return err
}

func (e *engine) deleteRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	name, err := normalName(in.RoleName)
	if err != nil {
		return nil, err
	}
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	var gone *role
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		ro, err := getRole(ctx, t, name)
		if gone = ro; ro == nil || err != nil {
			return err
		}
		t.Delete(roleKey(name))
		t.Delete(roleIDKey(h(roleDomain, ro.RoleID)))
		return nil
	})
	if err != nil || gone == nil {
		return nil, err
	}
	// The secret ids can no longer be found. The accessors go first: what a crash leaves is found by its secret id.
	s := gone.secrets(req.Mount)
	if err := storage.DeletePrefix(ctx, s, accessorsPrefix(gone.UID)); err != nil {
		return nil, err
	}
	return nil, storage.DeletePrefix(ctx, s, secretsPrefix(gone.UID))
}

type roleIDIn struct {
	roleIn
	RoleID string `json:"role_id" required:"true" max:"512" help:"The new id."`
}

func readRoleID(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, engines.NotFound(""))
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"role_id": ro.RoleID}}, nil
}

func (e *engine) writeRoleID(ctx context.Context, req *engines.Request, in *roleIDIn) (*engines.Response, error) {
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		ro, err := findRole(ctx, t, in.RoleName, noRole())
		if err != nil {
			return err
		}
		return ro.save(ctx, t, h, in.RoleID)
	})
	return nil, err
}

// StoredPath returns a path with the role's name in it as it is stored: in lower case. Policies are asked about it, too.
func (e *engine) StoredPath(path string) string { return engines.FoldPath(path, "role") }
