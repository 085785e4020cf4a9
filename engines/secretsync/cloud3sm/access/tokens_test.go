package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// issuer answers as who issues tokens.
type issuer func(r *http.Request) io.Reader

func (i issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(i(r))}, nil
}

func issuing(t *testing.T, i issuer) *Tokens {
	t.Helper()
	key, problem := parseKey(cloud3smtest.PrivateKey())
	if problem != "" {
		t.Fatal(problem)
	}
	return New(&http.Client{Transport: i}, &ServiceAccount{Account: Account{Email: "a@b.c", KeyID: "k", Key: key}})
}

// A token is replaced before it ends, and one that ends at once is used once.
func TestTokensEnd(t *testing.T) {
	for life, ends := range map[int]time.Duration{3600: 56 * time.Minute, 60: 30 * time.Second, 0: 0} {
		t.Run(fmt.Sprint(life), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				issued := 0
				tokens := issuing(t, func(*http.Request) io.Reader {
					issued++
					return strings.NewReader(fmt.Sprintf(`{"access_token":"t%d","token_type":"Bearer","expires_in":%d}`, issued, life))
				})
				get := func(want string) {
					t.Helper()
					if text, _, err := tokens.Get(context.Background()); err != nil || text != want {
						t.Errorf("got %s, %v, want %s", text, err, want)
					}
				}
				get("t1")
				if ends > 0 {
					time.Sleep(ends - time.Second)
					get("t1")
					time.Sleep(time.Second)
				}
				get("t2")
			})
		})
	}
}

// What is signed says who, for what and for how long, and is good a little before now: clocks differ.
func TestAssertion(t *testing.T) {
	var form url.Values
	tokens := issuing(t, func(r *http.Request) io.Reader {
		body, _ := io.ReadAll(r.Body)
		form, _ = url.ParseQuery(string(body))
		return strings.NewReader(`{"access_token":"t","token_type":"Bearer","expires_in":3600}`)
	})
	if _, _, err := tokens.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(form.Get("assertion"), ".")
	if len(parts) != 3 || form.Get("grant_type") != grantBySig {
		t.Fatalf("asked with %v", form)
	}
	var claims struct {
		Iss, Scope, Aud string
		Iat, Exp        int64
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		t.Fatalf("claims %q, %v", text, err)
	}
	before := time.Since(time.Unix(claims.Iat, 0))
	if claims.Iss != "a@b.c" || claims.Aud != tokenURL || claims.Scope != scope || claims.Exp-claims.Iat > 3600 || before < 5*time.Second || before > 5*time.Minute {
		t.Errorf("claims %+v, issued %v ago", claims, before)
	}
}

func TestLongTokensAreCut(t *testing.T) {
	read := 0
	tokens := issuing(t, func(*http.Request) io.Reader { return desttest.Endless{N: &read} })
	if _, _, err := tokens.Get(t.Context()); err == nil || read > 2*maxAnswer {
		t.Errorf("%v, and %d bytes are read", err, read)
	}
}
