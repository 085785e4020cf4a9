package approle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type loginIn struct {
	RoleID   string            `json:"role_id" required:"true" max:"512" help:"Id of the role."`
	SecretID engines.Sensitive `json:"secret_id" max:"4096" help:"A secret id of the role, unless it has bind_secret_id off."`
}

// errLogin is the answer to everybody who proved nothing. The cause goes to the log.
func errLogin(cause error) error {
	return &engines.Error{Kind: engines.KindInvalid, Detail: "invalid role or secret ID", Err: cause}
}

var errAddress = errors.New("the address is not within the bound networks")

// decoyRole stands for the role of role ids that no role has, so that they make as many hashes and reads as others.
var decoyRole = role{BindSecretID: true, UID: "decoy"}

func (e *engine) login(ctx context.Context, req *engines.Request, in *loginIn) (*engines.Response, error) {
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return nil, err
	}
	ro, err := roleByID(ctx, req.Mount.Storage, h(roleDomain, in.RoleID))
	if err != nil {
		return nil, err
	}
	if ro == nil {
		ro = &decoyRole
	}
	hash := h(secretDomain, in.SecretID.Reveal())
	bounds := allows(ro.SecretIDBoundCIDRs, req.RemoteIP) && ro.Token.Allows(req.RemoteIP)
	s := new(secretID)
	if ro.BindSecretID {
		if s, err = spend(ctx, req, ro, hash, bounds); err != nil {
			return nil, err
		}
	} else if !bounds {
		return nil, errLogin(errAddress)
	}
	return s.login(ro)
}

// roleByID returns the role with a role id, given as hash, or nil.
func roleByID(ctx context.Context, g engines.Getter, hash string) (*role, error) {
	ref, err := getReference(ctx, g, roleIDKey(hash))
	if err != nil {
		return nil, err
	}
	if ref == nil {
		ref = new(reference) // no role has an empty name
	}
	return getRole(ctx, g, ref.Role)
}

// LoginRole implements engines.RoleNamer.
func (e *engine) LoginRole(ctx context.Context, req *engines.Request) string {
	// As the input of a login is decoded: encoding/json alone would take "ROLE_ID" for the field, and no number.
	var in map[string]json.RawMessage
	if req.Path != "login" || len(req.Body) == 0 || json.Unmarshal(req.Body, &in) != nil {
		return ""
	}
	var roleID string
	if raw := in["role_id"]; json.Unmarshal(raw, &roleID) != nil {
		roleID = string(raw)
	}
	h, err := e.hasher(ctx, req.Mount)
	if err != nil {
		return ""
	}
	ro, err := roleByID(ctx, req.Mount.Storage, h(roleDomain, roleID))
	if err != nil || ro == nil {
		return ""
	}
	return ro.name
}

// spend takes one use of a secret id, and removes it with the last one or when it turns out to have expired.
func spend(ctx context.Context, req *engines.Request, ro *role, hash string, bounds bool) (*secretID, error) {
	var s *secretID
	expired := false
	_, err := storage.Update(ctx, ro.secrets(req.Mount), func(t *storage.Txn) error {
		var err error
		s, err = getSecret(ctx, t, ro.UID, hash)
		now := time.Now()
		switch {
		case err != nil:
			return err
		case s == nil:
			return errLogin(nil)
		}
		if expired = s.expired(now); expired {
			dropSecret(t, ro.UID, hash, s)
			return nil
		}
		// The role's networks may have changed since the secret id was made. No use is lost by coming from elsewhere.
		if err := s.checkWithin(ro); err != nil {
			return err
		}
		if !bounds || !allows(s.CIDRList, req.RemoteIP) || !allows(s.TokenBoundCIDRs, req.RemoteIP) {
			return engines.Denied(errAddress)
		}
		switch s.Uses {
		case 0:
			return nil
		case 1:
			dropSecret(t, ro.UID, hash, s)
			return nil
		}
		s.Uses--
		s.UpdatedAt = now.UTC()
		return put(t, secretKey(ro.UID, hash), s)
	})
	if expired && err == nil {
		return nil, errLogin(errors.New("the secret id has expired"))
	}
	return s, err
}

// internal is kept with the token for its renewals.
type internal struct {
	Format          int                `json:"format"` // 1
	TokenBoundCIDRs engines.StringList `json:"token_bound_cidrs"`
}

func (s *secretID) login(ro *role) (*engines.Response, error) {
	metadata := map[string]string{}
	maps.Copy(metadata, s.Metadata)
	metadata["role_name"] = ro.name
	ofAlias := map[string]string{}
	maps.Copy(ofAlias, ro.Token.AliasMetadata)
	maps.Copy(ofAlias, metadata)
	login := &engines.Login{
		DisplayName: ro.name,
		Alias:       engines.Alias{Name: ro.RoleID, Metadata: ofAlias},
		Metadata:    metadata,
		Token:       ro.Token,
		Role:        ro.name,
	}
	if len(s.TokenBoundCIDRs) > 0 {
		login.Token.TokenBoundCIDRs = s.TokenBoundCIDRs
		kept, err := json.Marshal(internal{Format: 1, TokenBoundCIDRs: s.TokenBoundCIDRs})
		if err != nil {
			return nil, err
		}
		login.Internal = kept
	}
	return &engines.Response{Auth: &engines.Auth{Login: login}}, nil
}

// RenewLogin implements engines.Renewer.
func (e *engine) RenewLogin(ctx context.Context, m engines.Mount, login engines.RenewedLogin) (engines.TokenFields, error) {
	ro, err := getRole(ctx, m.Storage, login.Role)
	if err != nil {
		return engines.TokenFields{}, err
	}
	if ro == nil {
		return engines.TokenFields{}, engines.Invalid("the token cannot be renewed: its role does not exist any more")
	}
	if login.Waiting && !slices.Equal(ro.Token.TokenPolicies, login.Policies) {
		return engines.TokenFields{}, engines.Invalid("the policies of the role have changed: log in again")
	}
	if len(login.Internal) > 0 {
		var kept internal
		if err := json.Unmarshal(login.Internal, &kept); err != nil || kept.Format != 1 {
			return engines.TokenFields{}, fmt.Errorf("what a token of role %q kept has an unknown format", login.Role)
		}
		ro.Token.TokenBoundCIDRs = kept.TokenBoundCIDRs
	}
	return ro.Token, nil
}

var _ engines.RoleNamer = (*engine)(nil)
