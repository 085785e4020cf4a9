package registry

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
)

// Limits of an activation token's lifetime.
const (
	minTokenTTL = time.Second
	maxTokenTTL = 768 * time.Hour
)

// secondaryTokenPath is what wrapped bundles say they were made by.
const secondaryTokenPath = "sys/replication/performance/primary/secondary-token"

// secondaryTokenInput is the input of primary/secondary-token.
type secondaryTokenInput struct {
	ID                 string           `json:"id" required:"true" help:"Opaque id by which this primary knows the secondary from now on, of its own for each."`
	TTL                engines.Duration `json:"ttl" default:"30m" help:"How long the token can be used, from 1s to 768h."`
	SecondaryPublicKey string           `json:"secondary_public_key" help:"Public key from the secondary's generate-public-key: the token is encrypted to it, and the secondary does not call this cluster's API to use it."`
}

// SecondaryToken answers primary/secondary-token: it invites a secondary.
func (r *Registry) SecondaryToken(ctx context.Context, _ *engines.Request, in *secondaryTokenInput) (*engines.Response, error) {
	ttl := time.Duration(in.TTL)
	if ttl < minTokenTTL || ttl > maxTokenTTL {
		return nil, engines.Invalid(`field "ttl": must be from %s to %dh`, minTokenTTL, int(maxTokenTTL.Hours()))
	}
	if in.SecondaryPublicKey != "" {
		// A bad key must not replace a token that was issued before.
		if err := enrol.CheckPublicKey(in.SecondaryPublicKey); err != nil {
			return nil, engines.Invalid(`field "secondary_public_key": %v`, err)
		}
	}
	addrs := r.opts.Cluster.Addrs()
	if len(addrs) == 0 {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "no cluster address is known that the secondary could connect to: set primary_cluster_addr, or cluster_addr in the configuration"}
	}
	inv, err := r.issue(ctx, in.ID, ttl)
	if err != nil {
		return nil, err
	}
	bundle := enrol.Bundle{
		Secret: inv.secret, CA: inv.ca.Cert, SetID: inv.role.SetID, SecondaryID: in.ID, Addrs: addrs,
		APIAddr: r.opts.Cluster.APIAddr(), Exp: inv.expiresAt.Unix(),
	}
	r.log.Info("a secondary was invited", "secondary", in.ID, "expires_at", inv.expiresAt)
	if in.SecondaryPublicKey != "" {
		token, err := enrol.SealBundle(in.SecondaryPublicKey, bundle)
		if err != nil {
			return nil, err
		}
		return &engines.Response{Data: map[string]any{"token": token}}, nil
	}
	wrap, err := r.opts.Secrets.Wrap(ctx, secondaryTokenPath, ttl, bundle)
	if err != nil {
		return nil, err
	}
	id, err := inv.ca.SealID(wrap.Token)
	if err != nil {
		return nil, err
	}
	token, err := inv.ca.Sign(enrol.Claims{
		Exp: bundle.Exp, Iat: r.now().Unix(), JTI: id, Addr: bundle.APIAddr, ID: in.ID, SetID: bundle.SetID, ClusterAddrs: addrs,
	})
	if err != nil {
		return nil, err
	}
	info := *wrap
	info.Token, info.CreationPath = token, secondaryTokenPath
	return &engines.Response{Wrap: &info}, nil
}

// WrappingToken returns the wrapping token of an activation token that this primary has signed, exactly as it is, and that
// has not expired. Nothing is used up. Its errors are for the operator of the secondary.
func (r *Registry) WrappingToken(ctx context.Context, token string) (engines.Sensitive, error) {
	t, err := r.load(ctx)
	if err != nil {
		return "", err
	}
	if t.ca == nil {
		return "", errChanged
	}
	cert, err := enrol.ParseCA(t.ca.Cert)
	if err != nil {
		return "", err
	}
	claims, err := enrol.Verify(cert, token, r.now())
	if errors.Is(err, enrol.ErrExpired) {
		return "", engines.Invalid("the activation token has expired: get a new one")
	}
	if err != nil {
		return "", errChanged
	}
	id, err := t.ca.OpenID(claims.JTI)
	if errors.Is(err, enrol.ErrToken) {
		return "", errChanged
	}
	return engines.Sensitive(id), err
}

var errChanged = engines.Invalid("the activation token is of another cluster or of an earlier set, or is not a complete and unchanged copy: nothing was used up")

// revokeInput is the input of primary/revoke-secondary.
type revokeInput struct {
	ID string `json:"id" required:"true" help:"Opaque id of the secondary, or the id of its cluster."`
}

// RevokeSecondary answers primary/revoke-secondary.
func (r *Registry) RevokeSecondary(ctx context.Context, _ *engines.Request, in *revokeInput) (*engines.Response, error) {
	if err := r.Revoke(ctx, in.ID); err != nil {
		return nil, err
	}
	r.log.Info("a secondary was revoked", "secondary", in.ID)
	return nil, nil
}

// Activation is what the operator of a secondary gives.
type Activation struct {
	Token engines.Sensitive
	// PrimaryAPIAddr overrides the address in the token.
	PrimaryAPIAddr string
	// CAFile and CAPath are a file and a directory on this node with the CA of the primary's API; both empty: what the
	// system trusts.
	CAFile, CAPath string
}

// Activate turns an activation token into what it stands for. Of this cluster nothing changes: Link.Enrol is next, and
// then the commit that writes the role, and removes the key of generate-public-key. Each failure is an engines.Error that
// says what to change.
func (r *Registry) Activate(ctx context.Context, a Activation) (enrol.Bundle, error) {
	token := strings.TrimSpace(a.Token.Reveal())
	switch {
	case token == "":
		return enrol.Bundle{}, engines.Invalid(`field "token": is required`)
	case len(token) > enrol.MaxTokenBytes:
		return enrol.Bundle{}, engines.Invalid(`field "token": is longer than %d bytes`, enrol.MaxTokenBytes)
	case strings.Contains(token, "."):
		return r.activateWrapped(ctx, token, a)
	default:
		return r.activateSealed(ctx, token)
	}
}

// tokenSkew is how far the clocks of the two clusters may be apart before a token seems to have expired here. The
// primary decides in the end.
const tokenSkew = 10 * time.Minute

func (r *Registry) expired(exp int64) error {
	if !r.now().Before(time.Unix(exp, 0).Add(tokenSkew)) {
		return engines.Invalid(`field "token": it has expired: get a new one from the primary`)
	}
	return nil
}

// activateWrapped takes the bundle out of a wrapping token. The token came from the primary's operator and names the CA
// by its fingerprint: no bundle of anybody else fits it, even if the connection could be tampered with.
func (r *Registry) activateWrapped(ctx context.Context, token string, a Activation) (enrol.Bundle, error) {
	claims, err := enrol.Parse(token)
	if err != nil {
		return enrol.Bundle{}, engines.Invalid(`field "token": is not an activation token, or not a complete one`)
	}
	if err := r.expired(claims.Exp); err != nil {
		return enrol.Bundle{}, err
	}
	addr, err := primaryURL(a.PrimaryAPIAddr, claims.Addr)
	if err != nil {
		return enrol.Bundle{}, err
	}
	pool, err := readPool(a.CAFile, a.CAPath)
	if err != nil {
		return enrol.Bundle{}, err
	}
	wrapping := token // the primary verifies it as a whole before it uses it up
	if !enrol.IsSealedID(claims.JTI) {
		wrapping = claims.JTI
	}
	text, err := unwrap(ctx, addr, wrapping, pool)
	if err != nil {
		return enrol.Bundle{}, err
	}
	other := engines.Invalid("what %s has answered does not belong to the activation token: it is of another cluster, or was tampered with", addr)
	b, err := enrol.ParseBundle(text)
	if err != nil {
		return enrol.Bundle{}, other
	}
	ca, err := enrol.ParseCA(b.CA)
	if err != nil {
		return enrol.Bundle{}, other
	}
	if _, err := enrol.Verify(ca, token, r.now().Add(-tokenSkew)); err != nil || b.SetID != claims.SetID || b.SecondaryID != claims.ID {
		return enrol.Bundle{}, other
	}
	return b, nil
}

// activateSealed decrypts a bundle that was encrypted to this cluster.
func (r *Registry) activateSealed(ctx context.Context, token string) (enrol.Bundle, error) {
	key, err := r.inviteKey(ctx)
	if err != nil {
		return enrol.Bundle{}, err
	}
	b, err := enrol.OpenBundle(key, token)
	switch {
	case errors.Is(err, enrol.ErrToken):
		return enrol.Bundle{}, engines.Invalid(`field "token": is not an activation token, or not a complete one`)
	case errors.Is(err, enrol.ErrSealed), errors.Is(err, enrol.ErrBundle):
		return enrol.Bundle{}, engines.Invalid(`field "token": is not encrypted to the public key that this cluster has generated last, or not complete`)
	case err != nil:
		return enrol.Bundle{}, err
	}
	return b, r.expired(b.Exp)
}
