// Package approle is the auth method of machines: a role id says who logs in, a secret id proves it.
//
// Secret ids are stored as keyed hashes only and can be limited in time, in uses and to networks. The uses are
// counted in the transaction that decides the login, so n uses are n logins, however many arrive at once.
// What is stored, below the mount:
//
//	key                        the key of all hashes
//	role/<name>                role
//	role-id/<hash>             reference: which role has this role id
//	secret/<uid>/<hash>        secretID, below the uid of its role
//	accessor/<uid>/<accessor>  reference: the hash of the secret id
//
// A role's uid is never used again, so that what a deleted role left behind belongs to no later one. The secret
// ids of a role with local_secret_ids are in the mount's ClusterStorage. Start reading at New, then login.go.
package approle

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// engine is one mount on one node.
type engine struct {
	router  *engines.Router
	mac     func(key []byte, domain, text string) string
	tidying atomic.Bool
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// New is the engines.Factory. The engine is an engines.Initializer and an engines.Renewer.
func New(engines.Mount) (engines.Engine, error) { return newEngine(), nil }

func newEngine() *engine {
	e := &engine{router: engines.NewRouter(), mac: mac}
	r := e.router
	engines.On(r, engines.List, "role", "List the roles.", 0, listRoles).Returns("keys: [string]")
	engines.On(r, engines.Read, "role/{role_name}", "Read a role.", 0, readRole).
		Returns(`alias_metadata: {*: string}, bind_secret_id: boolean, bound_cidr_list: [string], local_secret_ids: boolean, period: integer,
			policies: [string], secret_id_bound_cidrs: [string], secret_id_num_uses: integer, secret_id_ttl: integer, token_bound_cidrs:
			[string], token_explicit_max_ttl: integer, token_max_ttl: integer, token_no_default_policy: boolean, token_num_uses: integer,
			token_period: integer, token_policies: [string], token_ttl: integer, token_type`)
	engines.On(r, engines.Delete, "role/{role_name}", "Delete a role and its secret ids. Tokens of the role live on until they expire.", 0, e.deleteRole)
	engines.On(r, engines.Update, "role/{role_name}", "Create a role, or change what is given.", 0, e.writeRole).Exists = roleExists
	engines.On(r, engines.Read, "role/{role_name}/role-id", "Read a role's id.", 0, readRoleID).Returns("role_id")
	engines.On(r, engines.Update, "role/{role_name}/role-id", "Give a role another id.", 0, e.writeRoleID)
	parts(r)

	engines.On(r, engines.List, "role/{role_name}/secret-id", "List the accessors of a role's secret ids.", 0, listAccessors).
		Returns("keys: [string]")
	engines.On(r, engines.Update, "role/{role_name}/secret-id", "Make a secret id.", 0, e.newSecretID).Returns(secretIdShape)
	engines.On(r, engines.Update, "role/{role_name}/custom-secret-id", "Register a secret id of one's own choice.", 0, e.customSecretID).
		Returns(secretIdShape)
	engines.On(r, engines.Update, "role/{role_name}/secret-id/lookup", "Read what is known of a secret id.", 0, e.lookupSecretID).
		Returns(`empty; cidr_list: [string], creation_time, expiration_time, last_updated_time, metadata: {*: string}, secret_id_accessor,
			secret_id_num_uses: integer, secret_id_ttl: integer, token_bound_cidrs: [string]`)
	engines.On(r, engines.Update, "role/{role_name}/secret-id-accessor/lookup", "Read what is known of a secret id, given by accessor.", engines.FreesSpace, lookupAccessor).
		Returns(`cidr_list: [string], creation_time, expiration_time, last_updated_time, metadata: {*: string}, secret_id_accessor,
			secret_id_num_uses: integer, secret_id_ttl: integer, token_bound_cidrs: [string]`)
	for _, op := range []engines.Operation{engines.Update, engines.Delete} {
		engines.On(r, op, "role/{role_name}/secret-id/destroy", "Destroy a secret id.", engines.FreesSpace, e.destroySecretID)
		engines.On(r, op, "role/{role_name}/secret-id-accessor/destroy", "Destroy a secret id, given by accessor.", 0, destroyAccessor)
	}
	engines.On(r, engines.Update, "tidy/secret-id", "Remove expired secret ids, and those that deleted roles left behind.", engines.Active|engines.FreesSpace, e.tidy)
	engines.On(r, engines.Update, "login", "Log in.", engines.Unauthenticated|engines.Active, e.login).Returns("auth;")
	return e
}

const hashKey storage.Key = "key"

// storedKey is the key of all hashes, as JSON.
type storedKey struct {
	Format int    `json:"format"` // 1
	Key    []byte `json:"key"`
}

// Initialize implements engines.Initializer: it makes the key of the hashes.
func (e *engine) Initialize(ctx context.Context, m engines.Mount) error {
	k := storedKey{Format: 1, Key: make([]byte, 32)}
	rand.Read(k.Key) // never fails
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		if _, err := t.Get(ctx, hashKey); !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		return put(t, hashKey, k)
	})
	return err
}

// hasher names things by keyed hashes. The domain keeps role ids and secret ids apart.
type hasher func(domain, text string) string

const (
	roleDomain   = "role-id:"
	secretDomain = "secret-id:"
)

func (e *engine) hasher(ctx context.Context, m engines.Mount) (hasher, error) {
	var k storedKey
	found, err := get(ctx, m.Storage, hashKey, &k)
	if err == nil && (!found || k.Format != 1 || len(k.Key) == 0) {
		err = errors.New("the key of the approle hashes is missing")
	}
	return func(domain, text string) string { return e.mac(k.Key, domain, text) }, err
}

func mac(key []byte, domain, text string) string {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, domain) // a hash takes everything
	io.WriteString(h, text)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// reference is where an index leads: a role id to its role, an accessor to its secret id.
type reference struct {
	Format int    `json:"format"` // 1
	Role   string `json:"role,omitempty"`
	Secret string `json:"secret,omitempty"` // the hash
}

// get decodes what is stored under a key and reports whether there is anything.
func get(ctx context.Context, s engines.Getter, key storage.Key, v any) (bool, error) {
	e, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(e.Value, v); err != nil {
		return false, fmt.Errorf("decoding %q: unknown format", key)
	}
	return true, nil
}

func put(t *storage.Txn, key storage.Key, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	t.Put(key, value)
	return nil
}

func getReference(ctx context.Context, s engines.Getter, key storage.Key) (*reference, error) {
	r := new(reference)
	found, err := get(ctx, s, key, r)
	if !found || err != nil {
		return nil, err
	}
	if r.Format != 1 {
		return nil, fmt.Errorf("stored approle index has format %d, this version knows 1", r.Format)
	}
	return r, nil
}

// newUUID returns a random UUID.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	secretIdShape = "secret_id, secret_id_accessor, secret_id_num_uses: integer, secret_id_ttl: integer"
)
