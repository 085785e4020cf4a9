package mfa

import (
	"context"
	"encoding/json"

	"github.com/coffer-project/coffer/engines"
)

// Routes declares the paths of methods, secrets and enforcements on the router of the identity mounts.
func (s *Store) Routes(r *engines.Router) {
	const (
		list    = "List all methods."
		write   = "Change a TOTP method; secrets that are there keep the form of their codes."
		enforce = "Create or change an enforcement: which logins need a code of which methods."
	)
	engines.On(r, engines.List, "mfa/method", list, 0, s.listMethods).Returns(mfaMethodShape)
	engines.On(r, engines.Read, "mfa/method/{id}", "Read a method.", 0, s.readMethod).Returns(allMfaMethodShape)
	engines.On(r, engines.List, "mfa/method/totp", list, 0, s.listMethods).Returns(mfaMethodShape)
	engines.On(r, engines.Update, "mfa/method/totp", "Create a TOTP method.", 0, s.createMethod).Returns("method_id")
	engines.On(r, engines.Read, "mfa/method/totp/{id}", "Read a TOTP method.", 0, s.readMethod).Returns(allMfaMethodShape)
	engines.On(r, engines.Update, "mfa/method/totp/{id}", write, 0, s.updateMethod)
	engines.On(r, engines.Delete, "mfa/method/totp/{id}", "Delete a TOTP method and its secrets.", 0, s.deleteMethod)
	engines.On(r, engines.Update, "mfa/method/totp/generate", "Generate the secret of the caller's entity.", 0, s.generateOwn).
		Returns("empty; barcode, url")
	engines.On(r, engines.Update, "mfa/method/totp/admin-generate", "Generate the secret of an entity.", 0, s.generateFor).
		Returns("empty; barcode, url")
	engines.On(r, engines.Update, "mfa/method/totp/admin-destroy", "Remove the secret of an entity.", 0, s.destroy)

	engines.On(r, engines.List, "mfa/login-enforcement", "List all enforcements.", 0, s.listEnforcements).
		Returns(`key_info: {*: {auth_method_accessors: [string], auth_method_types: [string], id, identity_entity_ids: [string],
			identity_group_ids: [string], mfa_method_ids: [string], name, namespace_id, namespace_path}}, keys: [string]`)
	engines.On(r, engines.Read, "mfa/login-enforcement/{name}", "Read an enforcement.", 0, s.readEnforcement).
		Returns(`auth_method_accessors: [string], auth_method_types: [string], id, identity_entity_ids: [string], identity_group_ids:
			[string], mfa_method_ids: [string], name, namespace_id, namespace_path`)
	engines.On(r, engines.Update, "mfa/login-enforcement/{name}", enforce, 0, s.writeEnforcement)
	engines.On(r, engines.Delete, "mfa/login-enforcement/{name}", "Delete an enforcement.", 0, s.deleteEnforcement)
}

type validateIn struct {
	ID      string                     `json:"mfa_request_id" help:"Id of the requirement that the login answered." required:"true" max:"128"`
	Payload map[string]json.RawMessage `json:"mfa_payload" help:"Codes by id or name of their method, each a list of one." required:"true"`
}

// Validate declares mfa/validate on the sys router: it redeems a held login and answers what finish makes of it.
func (s *Store) Validate(r *engines.Router, finish func(ctx context.Context, req *engines.Request, login []byte) (*engines.Response, error)) {
	engines.On(r, engines.Update, "mfa/validate", "Complete a login that waits for codes.", engines.Unauthenticated|engines.ClusterLocal,
		func(ctx context.Context, req *engines.Request, in *validateIn) (*engines.Response, error) {
			codes, err := in.codes()
			if err != nil {
				return nil, err
			}
			login, err := s.Take(ctx, in.ID, codes)
			if err != nil {
				return nil, err
			}
			return finish(ctx, req, login)
		}).Returns("auth;")
}

const maxPayload = 64 // methods

// codes takes lists of texts, and texts.
func (in *validateIn) codes() (map[string][]string, error) {
	if len(in.Payload) > maxPayload {
		return nil, engines.Invalid(`field "mfa_payload": has more than %d methods`, maxPayload)
	}
	codes := map[string][]string{}
	for id, raw := range in.Payload {
		var list []string
		var text string
		switch {
		case json.Unmarshal(raw, &list) == nil:
		case json.Unmarshal(raw, &text) == nil:
			list = []string{text}
		default:
			return nil, engines.Invalid(`field "mfa_payload": each value must be a list of one code`)
		}
		codes[id] = list
	}
	return codes, nil
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	allMfaMethodShape = `algorithm, digits: integer, id, issuer, key_size: integer, max_validation_attempts: integer, name,
		namespace_id, namespace_path, period: integer, qr_size: integer, skew: integer, type`
	mfaMethodShape = `key_info: {*: {algorithm, digits: integer, id, issuer, key_size: integer, max_validation_attempts: integer, name,
		namespace_id, namespace_path, period: integer, qr_size: integer, skew: integer, type}}, keys: [string]`
)
