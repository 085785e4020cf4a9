package identitytoken_test

import (
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identitytoken"
	"github.com/coffer-project/coffer/storage"
)

// cluster is this cluster, with the namespaces root and team.
type cluster struct{ secondary bool }

func (c *cluster) Secondary() bool { return c.secondary }

func (c *cluster) Path(id string) string {
	if id == "root" {
		return ""
	}
	return id + "/"
}

type rig struct {
	t      *testing.T
	store  *storage.Memory
	in     *cluster
	issuer *identitytoken.Issuer
	router *engines.Router
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, store: new(storage.Memory), in: &cluster{}, router: engines.NewRouter()}
	r.issuer = r.at("https://node1:8200/")
	r.issuer.Routes(r.router)
	return r
}

// at returns the issuer of a node.
func (r *rig) at(address string) *identitytoken.Issuer {
	return identitytoken.New(identitytoken.Options{Store: r.store, Namespaces: r.in, Cluster: r.in, APIAddr: address})
}

func (r *rig) do(op engines.Operation, ns, path string, body any) (*engines.Response, error) {
	r.t.Helper()
	route, params, err := r.router.Match(op, path)
	if err != nil {
		r.t.Fatal(err)
	}
	req := &engines.Request{Op: op, Path: path, Mount: engines.Mount{NamespaceID: ns}}
	if body != nil {
		req.Body, _ = json.Marshal(body)
	}
	return route.Serve(r.t.Context(), req, params)
}

func (r *rig) read(ns, path string, into any) {
	r.t.Helper()
	resp, err := r.do(engines.Read, ns, path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(resp.Raw.Body, into); err != nil {
		r.t.Fatal(err)
	}
}

type jwks struct {
	Keys []struct{ Kty, Use, Alg, Kid, N, E string }
}

// verified returns the claims of a token, which it checks as a provider does: by what is published.
func (r *rig) verified(ns string, token engines.Sensitive) (jwt.MapClaims, error) {
	r.t.Helper()
	var found struct {
		Issuer, JWKSURI string
		URI             string `json:"jwks_uri"`
	}
	r.read(ns, "oidc/plugins/.well-known/openid-configuration", &found)
	if found.URI != found.Issuer+"/.well-known/keys" {
		r.t.Errorf("the keys are at %s, the issuer is %s", found.URI, found.Issuer)
	}
	var published jwks
	r.read(ns, "oidc/plugins/.well-known/keys", &published)
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token.Reveal(), claims, func(t *jwt.Token) (any, error) {
		for _, k := range published.Keys {
			if k.Kid == t.Header["kid"] && k.Kty == "RSA" && k.Use == "sig" && k.Alg == "RS256" {
				n, _ := base64.RawURLEncoding.DecodeString(k.N)
				e, _ := base64.RawURLEncoding.DecodeString(k.E)
				return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}, nil
			}
		}
		return nil, errors.New("the key is not published")
	}, jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer(found.Issuer), jwt.WithExpirationRequired())
	return claims, err
}

func (r *rig) token(ns string) engines.Sensitive {
	r.t.Helper()
	token, err := r.issuer.Token(r.t.Context(), ns, "secret:aws_1", "sts.amazonaws.com", 10*time.Minute)
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// TestToken: a provider that reads what is published accepts the token, and sees whose it is, in each namespace by its own issuer.
func TestToken(t *testing.T) {
	r := newRig(t)
	for ns, issuer := range map[string]string{"root": "https://node1:8200/v1/identity/oidc/plugins", "team": "https://node1:8200/v1/team/identity/oidc/plugins"} {
		claims, err := r.verified(ns, r.token(ns))
		if err != nil {
			t.Fatal(err)
		}
		iat, _ := claims.GetIssuedAt()
		exp, _ := claims.GetExpirationTime()
		if claims["iss"] != issuer || claims["sub"] != "plugin-identity:"+ns+":secret:aws_1" || fmt.Sprint(claims["aud"]) != "[sts.amazonaws.com]" || exp.Sub(iat.Time) != 10*time.Minute {
			t.Errorf("claims %v", claims)
		}
	}
	if _, err := r.verified("team", r.token("root")); err == nil {
		t.Error("a token of another namespace is accepted")
	}
}

// TestIssuer: it does not change with the active node, and is what is configured.
func TestIssuer(t *testing.T) {
	r := newRig(t)
	r.token("root")
	r.issuer = r.at("https://node2:8200")
	if _, err := r.verified("root", r.token("root")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"coffer.example.com", "https://coffer.example.com/path", "https://a@coffer.example.com", "https://coffer.example.com?x=y", "ftp://coffer.example.com"} {
		if _, err := r.do(engines.Update, "root", "oidc/config", map[string]any{"issuer": bad}); err == nil {
			t.Errorf("the issuer %q is accepted", bad)
		}
	}
	if _, err := r.do(engines.Update, "root", "oidc/config", map[string]any{"isuer": "https://coffer.example.com/"}); err == nil {
		t.Error("a field that is not known is accepted, and the issuer reset")
	}
	if resp, err := r.do(engines.Update, "root", "oidc/config", map[string]any{"issuer": ""}); err != nil || resp != nil {
		t.Fatalf("%v, %v", resp, err)
	}
	set, err := r.do(engines.Update, "root", "oidc/config", map[string]any{"issuer": "https://coffer.example.com/"})
	if err != nil || len(set.Warnings) != 1 {
		t.Fatalf("%v, %v, want a warning", set, err)
	}
	claims, err := r.verified("root", r.token("root"))
	if err != nil || claims["iss"] != "https://coffer.example.com/v1/identity/oidc/plugins" {
		t.Errorf("claims %v, %v", claims, err)
	}
	resp, err := r.do(engines.Read, "root", "oidc/config", nil)
	if err != nil || fmt.Sprint(resp.Data) != "map[effective_issuer:https://coffer.example.com/v1/identity/oidc/plugins issuer:https://coffer.example.com]" {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestTokenIsBounded(t *testing.T) {
	r := newRig(t)
	for _, test := range []struct {
		audience string
		ttl      time.Duration
		want     string
	}{
		{"", time.Hour, "identity_token_audience"},
		{strings.Repeat("a", 1025), time.Hour, "identity_token_audience"},
		{"a", time.Second, "identity_token_ttl"},
		{"a", 25 * time.Hour, "identity_token_ttl"},
	} {
		_, err := r.issuer.Token(t.Context(), "root", "secret:a", test.audience, test.ttl)
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, test.want) {
			t.Errorf("audience of %d, ttl %v: %v", len(test.audience), test.ttl, err)
		}
	}
}

// TestRotation: every token is valid until it expires, and a key signs only after it has been published for a day.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		go r.issuer.Run(t.Context())
		publishedAt, kids := map[string]time.Time{}, map[string]bool{}
		for range 100 {
			token, err := r.issuer.Token(t.Context(), "root", "secret:a", "a", identitytoken.MaxTTL)
			if err != nil {
				t.Fatal(err)
			}
			header, _, err := jwt.NewParser().ParseUnverified(token.Reveal(), jwt.MapClaims{})
			if err != nil {
				t.Fatal(err)
			}
			kid := header.Header["kid"].(string)
			if at := publishedAt[kid]; len(kids) > 0 && !kids[kid] && time.Since(at) < 23*time.Hour {
				t.Errorf("a key signs %v after it was published", time.Since(at))
			}
			kids[kid] = true
			time.Sleep(identitytoken.MaxTTL - time.Minute)
			synctest.Wait()
			if _, err := r.verified("root", token); err != nil {
				t.Fatal(err)
			}
			var published jwks
			r.read("root", "oidc/plugins/.well-known/keys", &published)
			if len(published.Keys) > 2 {
				t.Errorf("%d keys are published", len(published.Keys))
			}
			for _, k := range published.Keys {
				if publishedAt[k.Kid].IsZero() {
					publishedAt[k.Kid] = time.Now()
				}
			}
		}
		if len(kids) < 3 {
			t.Errorf("%d keys have signed in 100 days", len(kids))
		}
	})
}

// TestReplacedKeys: after a leak nothing is accepted that the former keys have signed.
func TestReplacedKeys(t *testing.T) {
	r := newRig(t)
	old := r.token("root")
	if _, err := r.do(engines.Update, "root", "oidc/plugins/rotate", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.verified("root", old); err == nil {
		t.Error("a token of the former key is accepted")
	}
	if _, err := r.verified("root", r.token("root")); err != nil {
		t.Error(err)
	}
}

// TestSecondary: it signs with the keys of the set, and makes none.
func TestSecondary(t *testing.T) {
	r := newRig(t)
	r.in.secondary = true
	_, err := r.issuer.Token(t.Context(), "root", "secret:a", "a", 0)
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != engines.KindUnavailable {
		t.Errorf("without keys: %v", err)
	}
	r.in.secondary = false
	r.token("root")
	r.in.secondary = true
	if _, err := r.verified("root", r.token("root")); err != nil {
		t.Error(err)
	}
}
