// Package role is what a role of the cloud engine says: its stored form and the paths that read and write it, what the provider
// takes, templates, and what one request for credentials gets of it. It asks nothing of the provider. Start reading at Role, then
// Filled and Grant.
package role

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const rolePrefix storage.Key = "role/"

// Types of credentials.
const (
	IAMUser         = "iam_user"
	AssumedRole     = "assumed_role"
	FederationToken = "federation_token"
	SessionToken    = "session_token"
)

var credentialTypes = []string{IAMUser, AssumedRole, FederationToken, SessionToken}

// Role is the stored form of one, as JSON.
type Role struct {
	Format int `json:"format"` // 1

	// Types is one type, or for legacy roles those that their policy or ARN allows.
	Types          []string           `json:"types"`
	RoleARNs       engines.StringList `json:"role_arns,omitempty"`
	AssumeRoleARNs engines.StringList `json:"assume_role_arns,omitempty"` // to go through first
	PolicyARNs     engines.StringList `json:"policy_arns,omitempty"`
	PolicyDocument string             `json:"policy_document,omitempty"` // compact JSON, perhaps with templates
	IAMGroups      engines.StringList `json:"iam_groups,omitempty"`
	IAMTags        map[string]string  `json:"iam_tags,omitempty"`
	SessionTags    map[string]string  `json:"session_tags,omitempty"` // values may be templates
	SessionName    string             `json:"session_name,omitempty"` // a template
	ExternalID     string             `json:"external_id,omitempty"`
	SourceIdentity string             `json:"source_identity,omitempty"` // a template
	MaxUsers       int                `json:"max_users,omitempty"`       // issued at once, on a cluster; 0: no limit
	DefaultSTSTTL  time.Duration      `json:"default_sts_ttl,omitempty"`
	MaxSTSTTL      time.Duration      `json:"max_sts_ttl,omitempty"`
	UserPath       string             `json:"user_path,omitempty"` // "" is "/"
	BoundaryARN    string             `json:"permissions_boundary_arn,omitempty"`
	MFASerial      string             `json:"mfa_serial_number,omitempty"`
	WaitUntilValid time.Duration      `json:"wait_until_valid,omitempty"` // how long a new key may be waited for
	Legacy         string             `json:"legacy,omitempty"`           // "policy" or "arn": the parameter it was made with
	InvalidData    string             `json:"invalid_data,omitempty"`     // what an earlier version stored and no request can use

	Name string `json:"-"` // where it is stored
}

func (r *Role) RecordFormat() *int { return &r.Format }

// has reports whether the role is of a type.
func (r *Role) has(kind string) bool { return slices.Contains(r.Types, kind) }

// invalid returns what keeps a stored role from being used, "" if nothing does.
func (r *Role) invalid() string {
	if r.InvalidData != "" {
		return r.InvalidData
	}
	return strings.Join(r.check(), "; ")
}

const maxRoleNameBytes = 128

// CheckName rejects what cannot be the name of a role. Names are compared as they are.
func CheckName(name string) error {
	const word = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	switch {
	case len(name) > maxRoleNameBytes:
		return engines.Invalid("field \"name\": is longer than %d bytes", maxRoleNameBytes)
	case name == "" || strings.Trim(name, word+"-.@") != "" || strings.Trim(name[:1]+name[len(name)-1:], word) != "":
		return engines.Invalid("field \"name\": may hold letters, digits and _-.@ only, with a letter, a digit or _ at both ends")
	}
	return nil
}

// Get returns a role, nil if there is none.
func Get(ctx context.Context, s engines.Getter, name string) (*Role, error) {
	e, err := s.Get(ctx, rolePrefix+storage.Key(name))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := decode(e.Value)
	if err != nil {
		return nil, fmt.Errorf("decoding role %q: %w", name, err)
	}
	r.Name = name
	return r, nil
}

// decode reads a stored role. Before there were types of credentials a role was only the text of its policy, or an ARN;
// what is neither becomes InvalidData, and the next write clears it.
func decode(value []byte) (*Role, error) {
	var stored struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(value, &stored); err != nil || stored.Format == 0 {
		return earlierRole(strings.ToValidUTF8(strings.TrimSpace(string(value)), "\uFFFD")), nil
	}
	if stored.Format != 1 {
		return nil, errors.New("unknown format")
	}
	r := new(Role)
	return r, json.Unmarshal(value, r)
}

func earlierRole(text string) *Role {
	for _, parameter := range []string{legacyPolicy, legacyARN} {
		if r, problem := legacyRole(parameter, text); problem == "" && len(r.check()) == 0 {
			return r
		}
	}
	if text == "" {
		text = "(nothing)"
	}
	return &Role{InvalidData: text}
}

// data is the response to a read of the role.
func (r *Role) data() map[string]any {
	list := func(l []string) []string { return append([]string{}, l...) }
	tags := func(m map[string]string) map[string]string {
		out := map[string]string{}
		maps.Copy(out, m)
		return out
	}
	data := map[string]any{
		"credential_type":          strings.Join(r.Types, ","),
		"credential_types":         list(r.Types),
		"role_arns":                list(r.RoleARNs),
		"assume_role_arns":         list(r.AssumeRoleARNs),
		"policy_arns":              list(r.PolicyARNs),
		"policy_document":          r.PolicyDocument,
		"iam_groups":               list(r.IAMGroups),
		"iam_tags":                 tags(r.IAMTags),
		"session_tags":             tags(r.SessionTags),
		"session_name":             r.SessionName,
		"external_id":              r.ExternalID,
		"source_identity":          r.SourceIdentity,
		"max_users":                r.MaxUsers,
		"default_sts_ttl":          int64(r.DefaultSTSTTL / time.Second),
		"max_sts_ttl":              int64(r.MaxSTSTTL / time.Second),
		"user_path":                r.UserPath,
		"permissions_boundary_arn": r.BoundaryARN,
		"mfa_serial_number":        r.MFASerial,
		"wait_until_valid":         int64(r.WaitUntilValid / time.Second),
	}
	if text := r.invalid(); text != "" {
		data["invalid_data"] = text
	}
	return data
}

type roleIn struct {
	Name string `json:"name" help:"Name of the role."`
}

type rolesIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

// Routes declares the paths of roles.
func Routes(r *engines.Router) {
	engines.On(r, engines.List, "roles", "List the roles.", 0, listRoles).Returns("keys: [string]")
	engines.On(r, engines.Read, "roles/{name}", "Read a role.", 0, readRole).
		Returns(`assume_role_arns: [string], credential_type, credential_types: [string], default_sts_ttl: integer, external_id, iam_groups:
			[string], iam_tags: {*: string}, invalid_data, max_sts_ttl: integer, max_users: integer, mfa_serial_number,
			permissions_boundary_arn, policy_arns: [string], policy_document, role_arns: [string], session_name, session_tags: {*:
			string}, source_identity, user_path, wait_until_valid: integer`)
	engines.On(r, engines.Update, "roles/{name}", "Create a role, or change what is given.", engines.Strict, writeRole).Exists = roleExists
	engines.On(r, engines.Delete, "roles/{name}", "Delete a role. Credentials that it issued live on until they expire.", 0, deleteRole)
}

func roleExists(ctx context.Context, req *engines.Request) (bool, error) {
	if err := CheckName(req.Param("name")); err != nil {
		return false, err
	}
	_, err := req.Mount.Storage.Get(ctx, rolePrefix+storage.Key(req.Param("name")))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func listRoles(ctx context.Context, req *engines.Request, in *rolesIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, rolePrefix, in.After, in.Limit))
}

func readRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	if err := CheckName(in.Name); err != nil {
		return nil, err
	}
	r, err := Get(ctx, req.Mount.Storage, in.Name)
	if err == nil && r == nil {
		err = engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: r.data()}, nil
}

func writeRole(ctx context.Context, req *engines.Request, in *writeRoleIn) (*engines.Response, error) {
	if err := CheckName(in.Name); err != nil {
		return nil, err
	}
	var warnings []string
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		old, err := Get(ctx, t, in.Name)
		if err != nil {
			return err
		}
		r, problems := in.apply(req, old)
		if problems != nil {
			return engines.Invalid("%s", strings.Join(problems, "; "))
		}
		warnings = r.warnings()
		if old != nil && old.invalid() != "" {
			warnings = append(warnings, "the role held data of an earlier version that was not valid; it has been cleared")
		}
		return engines.PutRecord(t, rolePrefix+storage.Key(in.Name), r)
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

// warnings are about what is allowed and probably not meant.
func (r *Role) warnings() []string {
	var warnings []string
	if r.Legacy != "" {
		warnings = append(warnings, fmt.Sprintf("%q is kept for backward compatibility: use credential_type with %s", r.Legacy, newerFields[r.Legacy]))
	}
	if len(r.IAMTags) > 0 && !r.has(IAMUser) {
		warnings = append(warnings, "iam_tags are for users only: credentials of this role have none")
	}
	return warnings
}

func deleteRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	if err := CheckName(in.Name); err != nil {
		return nil, err
	}
	key := rolePrefix + storage.Key(in.Name)
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		_, err := t.Get(ctx, key)
		if errors.Is(err, storage.ErrNotFound) {
			return engines.NotFound("no role has this name")
		}
		t.Delete(key)
		return err
	})
	return nil, err
}
