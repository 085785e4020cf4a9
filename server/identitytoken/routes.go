package identitytoken

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type none struct{}

type configIn struct {
	Issuer string `json:"issuer" form:"trim" max:"512" help:"URL at which providers reach this server, such as https://coffer.example.com: scheme, host and port only. Empty: the api_addr of the node that issued first."`
}

// Routes declares the paths on the router of the identity mounts. What providers read needs no token.
func (i *Issuer) Routes(r *engines.Router) {
	const open = engines.Unauthenticated
	engines.On(r, engines.Read, "oidc/plugins/.well-known/openid-configuration", "Read where the public keys of identity tokens are, as OpenID Connect Discovery has it.", open, i.readDiscovery).
		Returns(`json; id_token_signing_alg_values_supported: [string], issuer, jwks_uri, response_types_supported: [string],
			subject_types_supported: [string]`)
	engines.On(r, engines.Read, "oidc/plugins/.well-known/keys", "Read the public keys of identity tokens, as a JSON Web Key Set.", open, i.readKeys).
		Returns("json; keys: [{alg, e, kid, kty, n, use}]")
	engines.On(r, engines.Update, "oidc/plugins/rotate", "Replace all keys of identity tokens at once, for instance after one has leaked. Providers that keep the former ones reject tokens until they read the new one.", engines.RootNamespace|engines.Sudo, i.replaceKeys)
	engines.On(r, engines.Read, "oidc/config", "Read the issuer of identity tokens.", engines.RootNamespace, i.readConfig).
		Returns("effective_issuer, issuer")
	engines.On(r, engines.Update, "oidc/config", "Say by which URL providers reach this server. Tokens of another issuer are rejected by those that trust the former one.", engines.RootNamespace|engines.Strict, i.writeConfig)
}

func (i *Issuer) load(ctx context.Context) (*state, error) {
	s := new(state)
	_, err := engines.GetRecord(ctx, i.opts.Store, entry, s)
	return s, err
}

// public answers a document that anyone may keep for a short time.
func public(doc any) (*engines.Response, error) {
	body, err := json.Marshal(doc)
	return &engines.Response{Raw: &engines.Raw{
		ContentType: "application/json", Header: http.Header{"Cache-Control": {"max-age=300"}}, Body: body,
	}}, err
}

func (i *Issuer) readDiscovery(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	s, err := i.load(ctx)
	if err != nil {
		return nil, err
	}
	issuer := i.issuer(s, req.Mount.NamespaceID)
	return public(map[string]any{
		"issuer": issuer, "jwks_uri": issuer + "/.well-known/keys",
		"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
}

func (i *Issuer) readKeys(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	s, err := i.load(ctx)
	if err != nil {
		return nil, err
	}
	all := []map[string]string{}
	for _, k := range s.Keys {
		private, err := k.private()
		if err != nil {
			return nil, err
		}
		all = append(all, map[string]string{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": k.ID,
			"n": base64.RawURLEncoding.EncodeToString(private.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(private.E)).Bytes()),
		})
	}
	return public(map[string]any{"keys": all})
}

func (i *Issuer) replaceKeys(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	made, err := newKey(time.Now())
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, i.opts.Store, func(tx *storage.Txn) error {
		s := new(state)
		if _, err := engines.GetRecord(ctx, tx, entry, s); err != nil {
			return err
		}
		s.Keys = []key{made}
		if s.Default == "" {
			s.Default = strings.TrimRight(i.opts.APIAddr, "/")
		}
		return engines.PutRecord(tx, entry, s)
	})
	return nil, err
}

func (i *Issuer) readConfig(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	s, err := i.load(ctx)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"issuer": s.Issuer, "effective_issuer": i.issuer(s, req.Mount.NamespaceID)}}, nil
}

func (i *Issuer) writeConfig(ctx context.Context, _ *engines.Request, in *configIn) (*engines.Response, error) {
	base := strings.TrimRight(in.Issuer, "/")
	if base != "" {
		u, err := url.Parse(base)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || base != u.Scheme+"://"+u.Host {
			return nil, engines.Invalid("field %q: must be a URL of scheme, host and port only, such as https://coffer.example.com", "issuer")
		}
	}
	_, err := storage.Update(ctx, i.opts.Store, func(tx *storage.Txn) error {
		s := new(state)
		if _, err := engines.GetRecord(ctx, tx, entry, s); err != nil {
			return err
		}
		s.Issuer = base
		return engines.PutRecord(tx, entry, s)
	})
	if err != nil || base == "" {
		return nil, err
	}
	warnings := []string{"issuer: those who check identity tokens have to know this URL from now on, also for those that secondary clusters issue; " +
		"with an empty issuer it is the api_addr of the node that issued first"}
	if strings.HasPrefix(base, "http:") {
		warnings = append(warnings, "issuer: is a URL without TLS, which providers do not accept")
	}
	return &engines.Response{Warnings: warnings}, nil
}
