// Package role decides whom a role admits: its stored form, its bounds, which a user of the identity provider is held against,
// and the paths that read, write and explain it. It says nothing of logins. Start reading at Role, then Admits in bound.go.
package role

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/storage"
)

const rolePrefix storage.Key = "role/"

// Role is the stored form of one, as JSON.
type Role struct {
	Format int `json:"format"` // 1

	BoundSubjects       engines.StringList            `json:"bound_subjects,omitempty"`
	BoundSubjectsType   string                        `json:"bound_subjects_type"` // "string" or "glob"
	BoundAttributes     map[string]engines.StringList `json:"bound_attributes,omitempty"`
	BoundAttributesType string                        `json:"bound_attributes_type"`
	GroupsAttribute     string                        `json:"groups_attribute,omitempty"`
	// AliasMetadata is where older versions have stored it; it is Token's.
	AliasMetadata engines.StringMap `json:"alias_metadata,omitempty"`
	// AuthnContext are the AuthnContextClassRefs of which the user must have signed in by one.
	AuthnContext engines.StringList `json:"authn_context_class_refs,omitempty"`
	// RequireSameAddress demands that the login is started, confirmed in the browser and redeemed from one address.
	RequireSameAddress bool `json:"require_same_address,omitempty"`
	// Confirm says which logins end with a click on a page of ours: one of the constants; "" is confirmCLI.
	Confirm string              `json:"confirm,omitempty"`
	Token   engines.TokenFields `json:"token"`
	// Older are the older names of token fields that were used last: reads return these, too.
	Older engines.Older `json:"older,omitempty"`

	Name string `json:"-"` // where it is stored
}

func (r *Role) RecordFormat() *int { return &r.Format }

// The two types of a bound.
const (
	stringType = "string" // values are compared as they are
	globType   = "glob"   // "*" in an expected value stands for any text
)

// Types of the clients that start logins.
const (
	CLI     = "cli"     // the page says to go back to the terminal
	Browser = "browser" // sees nothing: its opener closes the window
)

// Which logins the user confirms in the browser.
const (
	confirmCLI    = "cli" // those of terminals
	confirmAlways = "always"
	confirmNever  = "never"
)

// Confirms reports whether logins of the client type need the user's click.
func (r *Role) Confirms(clientType string) bool {
	switch r.Confirm {
	case confirmAlways:
		return true
	case confirmNever:
		return false
	}
	return clientType == CLI
}

// Limits of what a role may hold.
const (
	maxBoundAttributes    = 64
	maxBoundValues        = 256 // of the subject, or of one attribute
	maxBoundValueBytes    = 1024
	maxAttributeNameBytes = 512
)

// normalName returns the form of a role's name that is stored and compared.
func normalName(name string) (string, error) { return engines.FoldName("name", name, "_-.@") }

// Get returns a role, nil if there is none. Names are compared in lower case.
func Get(ctx context.Context, s engines.Getter, name string) (*Role, error) {
	name, err := normalName(name)
	if err != nil {
		return nil, nil //nolint:nilerr // what cannot be a name is the name of no role
	}
	r := &Role{Name: name}
	if found, err := engines.GetRecord(ctx, s, rolePrefix+storage.Key(name), r); !found || err != nil {
		return nil, err
	}
	if r.AliasMetadata != nil {
		r.Token.AliasMetadata, r.AliasMetadata = r.AliasMetadata, nil
	}
	return r, nil
}

// check brings the role into its stored form and rejects what cannot work.
func (r *Role) check() error {
	if r.BoundSubjectsType == "" {
		r.BoundSubjectsType = stringType
	}
	if r.BoundAttributesType == "" {
		r.BoundAttributesType = stringType
	}
	if err := checkBound(r.BoundSubjects); err != nil {
		return engines.Invalid("field \"bound_subjects\": %v", err)
	}
	if len(r.BoundAttributes) > maxBoundAttributes {
		return engines.Invalid("field \"bound_attributes\": has more than %d attributes", maxBoundAttributes)
	}
	for name, values := range r.BoundAttributes {
		if err := checkAttributeName(name); err != nil {
			return engines.Invalid("field \"bound_attributes\": a name %v", err)
		}
		if len(values) == 0 {
			return engines.Invalid("field \"bound_attributes\": %q has no values: leave it out, or give the values that are expected", name)
		}
		if err := checkBound(values); err != nil {
			return engines.Invalid("field \"bound_attributes\": %q %v", name, err)
		}
	}
	if r.GroupsAttribute != "" {
		if err := checkAttributeName(r.GroupsAttribute); err != nil {
			return engines.Invalid("field \"groups_attribute\": %v", err)
		}
	}
	for _, ref := range r.AuthnContext {
		if !idp.IsURI(ref) {
			return engines.Invalid("field \"authn_context_class_refs\": has an element that is no URI, such as urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport")
		}
	}
	if strings.HasPrefix(r.Token.TokenType, "default-") {
		return engines.Invalid("field \"token_type\": must be one of \"default\", \"service\", \"batch\": the others are for roles of the token store")
	}
	return r.Token.Validate()
}

func checkBound(values engines.StringList) error {
	if len(values) > maxBoundValues {
		return fmt.Errorf("has more than %d values", maxBoundValues)
	}
	for _, v := range values {
		switch {
		case v == "":
			return fmt.Errorf("has an empty value")
		case len(v) > maxBoundValueBytes:
			return fmt.Errorf("has a value that is longer than %d bytes", maxBoundValueBytes)
		}
	}
	return nil
}

func checkAttributeName(name string) error {
	switch {
	case len(name) > maxAttributeNameBytes:
		return fmt.Errorf("is longer than %d bytes", maxAttributeNameBytes)
	case name == "":
		return fmt.Errorf("is empty")
	case strings.TrimSpace(name) != name || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("begins or ends with a blank, or has a control character")
	}
	return nil
}

// data is what a read of the role returns.
func (r *Role) data() map[string]any {
	attributes := map[string]engines.StringList{}
	maps.Copy(attributes, r.BoundAttributes)
	data := r.Token.Data()
	data["bound_subjects"] = append(engines.StringList{}, r.BoundSubjects...)
	data["bound_subjects_type"] = r.BoundSubjectsType
	data["bound_attributes"] = attributes
	data["bound_attributes_type"] = r.BoundAttributesType
	data["groups_attribute"] = r.GroupsAttribute
	data["require_same_address"] = r.RequireSameAddress
	data["authn_context_class_refs"] = append(engines.StringList{}, r.AuthnContext...)
	data["confirm"] = cmp.Or(r.Confirm, confirmCLI)
	for _, older := range r.Older {
		data[older] = data["token_"+older]
	}
	return data
}

// roleIn is the input of routes that need nothing but the role's name.
type roleIn struct {
	Name string `json:"name" help:"Name of the role, in any case."`
}

type rolesIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

// olderFields are older names of the token fields.
type olderFields struct {
	Policies engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"1024" help:"Older name of token_policies."`
	TTL      engines.Duration   `json:"ttl" alias:"token_ttl" help:"Older name of token_ttl."`
	MaxTTL   engines.Duration   `json:"max_ttl" alias:"token_max_ttl" help:"Older name of token_max_ttl."`
}

// apply sets what came under an older name and not under the newer one.
func (o *olderFields) apply(req *engines.Request, r *Role) {
	take := func(older string, set func()) { r.Older.Take(req, older, "token_"+older, set) }
	take("policies", func() { r.Token.TokenPolicies = o.Policies })
	take("ttl", func() { r.Token.TokenTTL = o.TTL })
	take("max_ttl", func() { r.Token.TokenMaxTTL = o.MaxTTL })
}

type writeRoleIn struct {
	roleIn
	BoundSubjects       engines.StringList `json:"bound_subjects" max:"256" help:"Subjects that may log in: a list, or a text with commas. Empty: any subject."`
	BoundSubjectsType   string             `json:"bound_subjects_type" enum:"string,glob" help:"How subjects are compared: string, as they are; glob, with * for any text."`
	BoundAttributes     expected           `json:"bound_attributes" max:"262144" help:"Attribute names and the values that are expected of each: a list, or a text with commas. Each attribute must have at least one of its values."`
	BoundAttributesType string             `json:"bound_attributes_type" enum:"string,glob" help:"How values of attributes are compared: string, as they are; glob, with * for any text."`
	GroupsAttribute     string             `json:"groups_attribute" form:"trim" help:"The attribute whose values are the user's groups."`
	AuthnContext        engines.StringList `json:"authn_context_class_refs" max:"16" help:"AuthnContextClassRefs: the identity provider is asked to sign users in by one of them, and must say that it did. Empty: any."`
	Confirm             string             `json:"confirm" enum:"cli,always,never" help:"Which logins the user confirms by a click on a page that shows the login's code: those of terminals, which is the default, all or none."`
	RequireSameAddress  bool               `json:"require_same_address" help:"Whether a login must be started, confirmed in the browser and finished from one address."`
	engines.TokenFields
	olderFields
}

// apply sets what the request gave.
func (in *writeRoleIn) apply(req *engines.Request, r *Role) error {
	if req.Given("bound_subjects") {
		if len(in.BoundSubjects) == 0 && !lifts(req, "bound_subjects") {
			return engines.Invalid("field \"bound_subjects\": has blank values only: give subjects, or an empty list to admit any")
		}
		r.BoundSubjects = in.BoundSubjects
	}
	if req.Given("bound_subjects_type") {
		r.BoundSubjectsType = in.BoundSubjectsType
	}
	if req.Given("bound_attributes") {
		attributes, err := boundAttributes(in.BoundAttributes)
		if err != nil {
			return engines.Invalid("field \"bound_attributes\": %v", err)
		}
		r.BoundAttributes = attributes
	}
	if req.Given("bound_attributes_type") {
		r.BoundAttributesType = in.BoundAttributesType
	}
	if req.Given("groups_attribute") {
		r.GroupsAttribute = strings.TrimSpace(in.GroupsAttribute)
	}
	if req.Given("authn_context_class_refs") {
		if len(in.AuthnContext) == 0 && !lifts(req, "authn_context_class_refs") {
			return engines.Invalid("field \"authn_context_class_refs\": has blank values only: give URIs, or an empty list for any")
		}
		r.AuthnContext = in.AuthnContext
	}
	if req.Given("confirm") {
		r.Confirm = in.Confirm
	}
	if req.Given("require_same_address") {
		r.RequireSameAddress = in.RequireSameAddress
	}
	fields := in.TokenFields
	fields.Keep(req, r.Token)
	r.Token = fields
	in.olderFields.apply(req, r)
	return nil
}

// lifts reports whether the request's list is empty on purpose: "" or []. A list of blanks, from a variable that was
// not set for instance, must not admit every user.
func lifts(req *engines.Request, field string) bool {
	var body map[string]json.RawMessage
	if json.Unmarshal(req.Body, &body) != nil {
		return false
	}
	values, ok := texts(body[field], func(text string) []string { return []string{text} })
	return ok && (len(values) == 0 || string(body[field]) == `""`)
}

// Routes declares the paths of roles.
func Routes(r *engines.Router) {
	engines.On(r, engines.List, "role", "List the roles.", 0, listRoles).Returns("keys: [string]")
	engines.On(r, engines.Read, "role/{name}", "Read a role.", 0, readRole).
		Returns(`alias_metadata: {*: string}, authn_context_class_refs: [string], bound_attributes: {*: [string]}, bound_attributes_type,
			bound_subjects: [string], bound_subjects_type, confirm, groups_attribute, max_ttl: integer, policies: [string],
			require_same_address: boolean, token_bound_cidrs: [string], token_explicit_max_ttl: integer, token_max_ttl: integer,
			token_no_default_policy: boolean, token_num_uses: integer, token_period: integer, token_policies: [string], token_ttl:
			integer, token_type, ttl: integer`)
	engines.On(r, engines.Update, "role/{name}", "Create a role, or change what is given.", 0, writeRole).Exists = roleExists
	engines.On(r, engines.Delete, "role/{name}", "Delete a role. Tokens of the role live on until they expire.", 0, deleteRole)
	engines.On(r, engines.Update, "role/{name}/explain", "Say which bound values a user has and which not: for given attributes, or for the last login that was rejected.",
		engines.ClusterLocal|engines.Active, explain).
		Returns(`admitted: boolean, attributes: {*: [string]?}, checks: [{bound, expected: [string], given: [string], hint, name, passed:
			boolean, type}], groups: [string], policies: [string], refused: {address, at, detail, reason}, subject`)
}

func listRoles(ctx context.Context, req *engines.Request, in *rolesIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, rolePrefix, in.After, in.Limit))
}

func roleExists(ctx context.Context, req *engines.Request) (bool, error) {
	name, err := normalName(req.Param("name"))
	if err != nil {
		return false, err
	}
	r, err := Get(ctx, req.Mount.Storage, name)
	return r != nil, err
}

func readRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	r, err := Get(ctx, req.Mount.Storage, name)
	if err == nil && r == nil {
		err = engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: r.data()}, nil
}

func writeRole(ctx context.Context, req *engines.Request, in *writeRoleIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	var warnings []string
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		r, err := Get(ctx, t, name)
		if err != nil {
			return err
		}
		if r == nil {
			r = new(Role)
		}
		if err := in.apply(req, r); err != nil {
			return err
		}
		if err := r.check(); err != nil {
			return err
		}
		warnings = r.warnings()
		if limit := engines.Duration(req.Mount.MaxLeaseTTL); limit > 0 && r.Token.TokenMaxTTL > limit {
			warnings = append(warnings, "token_max_ttl is greater than the mount's maximum: tokens get the mount's")
		}
		return engines.PutRecord(t, rolePrefix+storage.Key(name), r)
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

func deleteRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	// The rejection goes first. On a secondary cluster the role is the primary's to delete, so the request goes there next:
	// it leaves a rejection in neither.
	if _, err := req.Mount.ClusterStorage.Commit(ctx, storage.Batch{Deletes: []storage.Key{RejectedPrefix + storage.Key(name)}}); err != nil {
		return nil, err
	}
	_, err = req.Mount.Storage.Commit(ctx, storage.Batch{Deletes: []storage.Key{rolePrefix + storage.Key(name)}})
	return nil, err
}
