package approle

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// secretID is the stored form of one, as JSON.
type secretID struct {
	Format          int                `json:"format"` // 1
	Role            string             `json:"role"`   // its name
	Accessor        string             `json:"accessor"`
	CreatedAt       time.Time          `json:"created_at"`
	UpdatedAt       time.Time          `json:"updated_at"`
	ExpiresAt       time.Time          `json:"expires_at,omitzero"` // zero: never
	TTL             engines.Duration   `json:"ttl,omitempty"`
	Uses            int                `json:"uses,omitempty"` // left; 0: without limit
	Metadata        map[string]string  `json:"metadata,omitempty"`
	CIDRList        engines.StringList `json:"cidr_list,omitempty"`
	TokenBoundCIDRs engines.StringList `json:"token_bound_cidrs,omitempty"`
}

const secretPrefix storage.Key = "secret/"

func secretsPrefix(uid string) storage.Key   { return secretPrefix + storage.Key(uid+"/") }
func secretKey(uid, hash string) storage.Key { return secretsPrefix(uid) + storage.Key(hash) }
func accessorsPrefix(uid string) storage.Key { return storage.Key("accessor/" + uid + "/") }
func accessorKey(uid, accessor string) storage.Key {
	return accessorsPrefix(uid) + storage.Key(accessor)
}

// secrets returns where the role's secret ids are.
func (ro *role) secrets(m engines.Mount) storage.Store {
	if ro.LocalSecretIDs {
		return m.ClusterStorage
	}
	return m.Storage
}

func (s *secretID) expired(now time.Time) bool {
	return !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// getSecret returns a secret id, expired or not, or nil if there is none.
func getSecret(ctx context.Context, g engines.Getter, uid, hash string) (*secretID, error) {
	s := new(secretID)
	found, err := get(ctx, g, secretKey(uid, hash), s)
	if !found || err != nil {
		return nil, err
	}
	if s.Format != 1 {
		return nil, fmt.Errorf("stored secret id has format %d, this version knows 1", s.Format)
	}
	return s, nil
}

func dropSecret(t *storage.Txn, uid, hash string, s *secretID) {
	t.Delete(secretKey(uid, hash))
	t.Delete(accessorKey(uid, s.Accessor))
}

type secretIn struct {
	roleIn
	Metadata        metadata           `json:"metadata" help:"Shown with each token: an object of strings, or the JSON text of one."`
	CIDRList        engines.StringList `json:"cidr_list" form:"network" max:"256" help:"Addresses and networks that may log in, all within the role's secret_id_bound_cidrs."`
	TokenBoundCIDRs engines.StringList `json:"token_bound_cidrs" form:"network" max:"256" help:"Addresses and networks that may use the token, all within the role's."`
	NumUses         int                `json:"num_uses" help:"How many logins it is good for, at most the role's secret_id_num_uses, which is the default."`
	TTL             engines.Duration   `json:"ttl" help:"Its lifetime, at most the role's secret_id_ttl, which is the default."`
}

type customIn struct {
	secretIn
	SecretID engines.Sensitive `json:"secret_id" required:"true" max:"4096" help:"The secret id."`
}

func (e *engine) newSecretID(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
	return e.addSecretID(ctx, req, in, newUUID())
}

func (e *engine) customSecretID(ctx context.Context, req *engines.Request, in *customIn) (*engines.Response, error) {
	return e.addSecretID(ctx, req, &in.secretIn, in.SecretID.Reveal())
}

func (e *engine) addSecretID(ctx context.Context, req *engines.Request, in *secretIn, text string) (*engines.Response, error) {
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	metadata, err := parseMetadata(in.Metadata)
	if err != nil {
		return nil, err
	}
	hash, accessor := h(secretDomain, text), newUUID()
	var s *secretID
	err = inRole(ctx, req.Mount, in.RoleName, func(t *storage.Txn, ro *role) error {
		var err error
		if s, err = in.make(req, ro); err != nil {
			return err
		}
		s.Accessor, s.Metadata = accessor, metadata
		switch old, err := getSecret(ctx, t, ro.UID, hash); {
		case err != nil:
			return err
		case old != nil && !old.expired(time.Now()):
			return engines.Invalid("field \"secret_id\": is already registered")
		case old != nil:
			dropSecret(t, ro.UID, hash, old)
		}
		if err := put(t, accessorKey(ro.UID, accessor), reference{Format: 1, Secret: hash}); err != nil {
			return err
		}
		return put(t, secretKey(ro.UID, hash), s)
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"secret_id": text, "secret_id_accessor": accessor, "secret_id_ttl": s.TTL.Seconds(), "secret_id_num_uses": s.Uses,
	}, Accessor: accessor}, nil
}

// make checks the wishes against what the role allows.
func (in *secretIn) make(req *engines.Request, ro *role) (*secretID, error) {
	if !ro.BindSecretID {
		return nil, engines.Invalid("bind_secret_id is not set on the role: it has no secret ids")
	}
	now := time.Now().UTC()
	s := &secretID{Format: 1, Role: ro.name, CreatedAt: now, UpdatedAt: now, Uses: ro.SecretIDNumUses, TTL: ro.SecretIDTTL}
	if req.Given("num_uses") {
		if in.NumUses < 0 {
			return nil, engines.Invalid("field \"num_uses\": must not be negative")
		}
		if ro.SecretIDNumUses > 0 && (in.NumUses == 0 || in.NumUses > ro.SecretIDNumUses) {
			return nil, engines.Invalid("field \"num_uses\": cannot be higher than the role's secret_id_num_uses")
		}
		s.Uses = in.NumUses
	}
	if req.Given("ttl") {
		if ro.SecretIDTTL > 0 && (in.TTL == 0 || in.TTL > ro.SecretIDTTL) {
			return nil, engines.Invalid("field \"ttl\": cannot be longer than the role's secret_id_ttl")
		}
		s.TTL = in.TTL
	}
	if s.TTL > 0 {
		s.ExpiresAt = now.Add(time.Duration(s.TTL))
	}
	var err error
	if s.CIDRList, err = networks("cidr_list", in.CIDRList); err != nil {
		return nil, err
	}
	if s.TokenBoundCIDRs, err = networks("token_bound_cidrs", in.TokenBoundCIDRs); err != nil {
		return nil, err
	}
	return s, s.checkWithin(ro)
}

// checkWithin refuses networks that the role's own do not cover.
func (s *secretID) checkWithin(ro *role) error {
	if !within(s.CIDRList, ro.SecretIDBoundCIDRs) {
		return engines.Invalid("the secret id's cidr_list is not within the role's secret_id_bound_cidrs")
	}
	if !within(s.TokenBoundCIDRs, ro.Token.TokenBoundCIDRs) {
		return engines.Invalid("the secret id's token_bound_cidrs are not within the role's token_bound_cidrs")
	}
	return nil
}

// inRole runs fn in a transaction over the store of a role's secret ids. The role is a precondition of it, unless
// its secret ids are local: then tidying finds what may be written while the role is deleted.
func inRole(ctx context.Context, m engines.Mount, name string, fn func(*storage.Txn, *role) error) error {
	ro, err := findRole(ctx, m.Storage, name, noRole())
	if err != nil {
		return err
	}
	if ro.LocalSecretIDs {
		_, err := storage.Update(ctx, m.ClusterStorage, func(t *storage.Txn) error { return fn(t, ro) })
		return err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		ro, err := findRole(ctx, t, name, noRole())
		if err != nil {
			return err
		}
		if ro.LocalSecretIDs { // another role of this name, made since
			return noRole()
		}
		return fn(t, ro)
	})
	return err
}

// Limits of a secret id's metadata.
const (
	maxPairs      = 64
	maxKeyBytes   = 128
	maxValueBytes = 512
)

// metadata is what parseMetadata reads.
type metadata json.RawMessage

// Pairs implements input.Paired.
func (raw metadata) Pairs() (pairs [][2]string, ok bool) {
	read, err := parseMetadata(raw)
	for key, value := range read {
		pairs = append(pairs, [2]string{key, value})
	}
	return pairs, err == nil
}

// parseMetadata reads an object of strings, its JSON text, or a text such as "a=b,c=d".
func parseMetadata(raw metadata) (map[string]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var m map[string]string
	if text := ""; json.Unmarshal(raw, &text) == nil {
		if text = strings.TrimSpace(text); text != "" && text[0] != '{' {
			m = map[string]string{}
			for pair := range strings.SplitSeq(text, ",") {
				key, value, ok := strings.Cut(pair, "=")
				if key = strings.TrimSpace(key); !ok || key == "" {
					return nil, errMetadata()
				}
				m[key] = strings.TrimSpace(value)
			}
			return m, checkMetadata(m)
		}
		if raw = metadata(text); len(raw) == 0 {
			return nil, nil
		}
	}
	if json.Unmarshal(raw, &m) != nil {
		return nil, errMetadata()
	}
	return m, checkMetadata(m)
}

func errMetadata() error {
	return engines.Invalid("field \"metadata\": must be an object of strings, or the JSON text of one")
}

func checkMetadata(m map[string]string) error {
	if len(m) > maxPairs {
		return engines.Invalid("field \"metadata\": has more than %d pairs", maxPairs)
	}
	for key, value := range m {
		if len(key) > maxKeyBytes || len(value) > maxValueBytes {
			return engines.Invalid("field \"metadata\": a name is longer than %d or a value longer than %d bytes", maxKeyBytes, maxValueBytes)
		}
	}
	return nil
}
