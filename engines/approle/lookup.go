package approle

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type secretIDIn struct {
	roleIn
	SecretID engines.Sensitive `json:"secret_id" required:"true" max:"4096" help:"The secret id."`
}

type accessorIn struct {
	roleIn
	Accessor string `json:"secret_id_accessor" required:"true" max:"128" help:"Accessor of the secret id."`
}

type listAccessorsIn struct {
	roleIn
	listIn
}

func listAccessors(ctx context.Context, req *engines.Request, in *listAccessorsIn) (*engines.Response, error) {
	ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, noRole())
	if err != nil {
		return nil, err
	}
	return list(ctx, ro.secrets(req.Mount), accessorsPrefix(ro.UID), &in.listIn)
}

// data is what a lookup answers.
func (s *secretID) data() *engines.Response {
	metadata := map[string]string{}
	maps.Copy(metadata, s.Metadata)
	return &engines.Response{Data: map[string]any{
		"secret_id_accessor": s.Accessor,
		"secret_id_num_uses": s.Uses,
		"secret_id_ttl":      s.TTL.Seconds(),
		"creation_time":      s.CreatedAt,
		"expiration_time":    s.ExpiresAt,
		"last_updated_time":  s.UpdatedAt,
		"metadata":           metadata,
		"cidr_list":          append(engines.StringList{}, s.CIDRList...),
		"token_bound_cidrs":  engines.ShownNetworks(s.TokenBoundCIDRs),
	}}
}

// lookupSecretID answers nothing for a secret id that is not there, as clients expect.
func (e *engine) lookupSecretID(ctx context.Context, req *engines.Request, in *secretIDIn) (*engines.Response, error) {
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, noRole())
	if err != nil {
		return nil, err
	}
	s, err := getSecret(ctx, ro.secrets(req.Mount), ro.UID, h(secretDomain, in.SecretID.Reveal()))
	if err != nil || s == nil || s.expired(time.Now()) {
		return nil, err
	}
	return s.data(), nil
}

func noAccessor() error {
	return engines.NotFound("the role has no secret id with this secret_id_accessor")
}

// byAccessor returns a role's secret id and its hash, or the error noAccessor.
func byAccessor(ctx context.Context, g engines.Getter, uid, accessor string) (s *secretID, hash string, err error) {
	if strings.Trim(accessor, "0123456789abcdef-") != "" { // no key to ask for
		return nil, "", noAccessor()
	}
	ref, err := getReference(ctx, g, accessorKey(uid, accessor))
	if err != nil {
		return nil, "", err
	}
	if ref == nil {
		return nil, "", noAccessor()
	}
	if s, err = getSecret(ctx, g, uid, ref.Secret); err == nil && s == nil {
		err = noAccessor()
	}
	return s, ref.Secret, err
}

func lookupAccessor(ctx context.Context, req *engines.Request, in *accessorIn) (*engines.Response, error) {
	ro, err := findRole(ctx, req.Mount.Storage, in.RoleName, noRole())
	if err != nil {
		return nil, err
	}
	s, _, err := byAccessor(ctx, ro.secrets(req.Mount), ro.UID, in.Accessor)
	if err != nil {
		return nil, err
	}
	if s.expired(time.Now()) {
		return nil, noAccessor()
	}
	return s.data(), nil
}

func (e *engine) destroySecretID(ctx context.Context, req *engines.Request, in *secretIDIn) (*engines.Response, error) {
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	hash := h(secretDomain, in.SecretID.Reveal())
	return nil, inRole(ctx, req.Mount, in.RoleName, func(t *storage.Txn, ro *role) error {
		s, err := getSecret(ctx, t, ro.UID, hash)
		if s != nil {
			dropSecret(t, ro.UID, hash, s)
		}
		return err
	})
}

func destroyAccessor(ctx context.Context, req *engines.Request, in *accessorIn) (*engines.Response, error) {
	return nil, inRole(ctx, req.Mount, in.RoleName, func(t *storage.Txn, ro *role) error {
		s, hash, err := byAccessor(ctx, t, ro.UID, in.Accessor)
		if err == nil {
			dropSecret(t, ro.UID, hash, s)
		}
		return err
	})
}
