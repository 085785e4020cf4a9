package token_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
)

func userpass() engines.Mount {
	return engines.Mount{UUID: "m1", Path: "auth/userpass/", Type: "userpass", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: 10 * time.Hour}
}

func TestCreateLogin(t *testing.T) {
	w := newWorld(t)
	l := engines.Login{
		DisplayName: "bob", Metadata: map[string]string{"username": "bob"}, Role: "bob", Internal: []byte(`{"n":1}`),
		Token: engines.TokenFields{TokenPolicies: engines.StringList{"B", "a"}, TokenBoundCIDRs: engines.StringList{"10.0.0.0/8", "::1"}, TokenNumUses: 3},
	}
	c, err := w.CreateLogin(t.Context(), userpass(), "", "auth/userpass/login/bob", l, "entity-1")
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.Lookup(t.Context(), c.Token.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Policies, []string{"a", "b", "default"}) || e.DisplayName != "userpass-bob" || e.Meta["username"] != "bob" || e.Role != "bob" ||
		string(e.Internal) != `{"n":1}` || e.Mount != "m1" || e.EntityID != "entity-1" || e.NumUses != 3 || e.Path != "auth/userpass/login/bob" ||
		e.TTL != time.Hour || !e.Orphan() || !e.Renewable || e.Type != "service" || e.Namespace != "root" ||
		!slices.Equal(e.BoundCIDRs, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}) {
		t.Errorf("entry = %+v", e)
	}
}

func TestLoginTerms(t *testing.T) {
	hour := engines.Duration(time.Hour)
	tests := []struct {
		name  string
		mount string // token type
		login engines.Login
		want  string // "type policies ttl", or "!" and the error
	}{
		{"defaults", "", engines.Login{}, "service default 1h0m0s"},
		{"no default policy", "", engines.Login{Token: engines.TokenFields{TokenNoDefaultPolicy: true}}, "service  1h0m0s"},
		{"own lifetime", "", engines.Login{Token: engines.TokenFields{TokenTTL: 2 * hour}}, "service default 2h0m0s"},
		{"limit of the role", "", engines.Login{Token: engines.TokenFields{TokenTTL: 3 * hour, TokenMaxTTL: 2 * hour}}, "service default 2h0m0s"},
		{"limit of the mount", "", engines.Login{Token: engines.TokenFields{TokenTTL: 30 * hour}}, "service default 10h0m0s"},
		{"explicit maximum", "", engines.Login{Token: engines.TokenFields{TokenTTL: 3 * hour, TokenExplicitMaxTTL: 2 * hour}}, "service default 2h0m0s"},
		{"period", "", engines.Login{Token: engines.TokenFields{TokenPeriod: 2 * hour}}, "service default 2h0m0s"},
		{"root", "", engines.Login{Token: engines.TokenFields{TokenPolicies: engines.StringList{"app", "Root"}}}, "!policy \"root\""},
		{"wrapping", "", engines.Login{Token: engines.TokenFields{TokenPolicies: engines.StringList{"response-wrapping"}}}, "!policy \"response-wrapping\""},
		{"bad network", "", engines.Login{Token: engines.TokenFields{TokenBoundCIDRs: engines.StringList{"x"}}}, "!token_bound_cidrs"},

		{"batch of the role", "", engines.Login{Token: engines.TokenFields{TokenType: "batch"}}, "batch default 1h0m0s"},
		{"batch of the role, service by default", "default-service", engines.Login{Token: engines.TokenFields{TokenType: "batch"}}, "batch default 1h0m0s"},
		{"default batch of the role", "default-service", engines.Login{Token: engines.TokenFields{TokenType: "default-batch"}}, "batch default 1h0m0s"},
		{"batch of the mount by default", "default-batch", engines.Login{Token: engines.TokenFields{TokenType: "default"}}, "batch default 1h0m0s"},
		{"batch of the mount, not of the role", "default-batch", engines.Login{Token: engines.TokenFields{TokenType: "service"}}, "service default 1h0m0s"},
		{"batch of the mount", "batch", engines.Login{Token: engines.TokenFields{TokenType: "service"}}, "batch default 1h0m0s"},
		{"service of the mount", "service", engines.Login{Token: engines.TokenFields{TokenType: "batch"}}, "service default 1h0m0s"},
		{"batch with uses", "batch", engines.Login{Token: engines.TokenFields{TokenNumUses: 1}}, "!token_num_uses"},
		{"batch with period", "batch", engines.Login{Token: engines.TokenFields{TokenPeriod: hour}}, "!token_period"},
		{"batch up to the explicit maximum", "batch", engines.Login{Token: engines.TokenFields{TokenTTL: 3 * hour, TokenExplicitMaxTTL: 2 * hour}}, "batch default 2h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, withBatch)
			c, err := w.CreateLogin(t.Context(), userpass(), tt.mount, "auth/userpass/login", tt.login, "")
			if text, refused := strings.CutPrefix(tt.want, "!"); refused {
				if !isInvalidInput(err) || !strings.Contains(err.Error(), text) {
					t.Errorf("CreateLogin = %v, want %q", err, text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			e := c.Entry
			if got := e.Type + " " + strings.Join(e.Policies, ",") + " " + e.TTL.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLoginNames(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct{ path, name, want string }{
		{"auth/userpass/", "bob", "userpass-bob"},
		{"auth/team/ldap/", "bob", "team-ldap-bob"},
		{"auth/userpass/", "", "userpass"},
		{"auth/userpass/", strings.Repeat("é", 600), "userpass-" + strings.Repeat("é", 251)},
	} {
		m := userpass()
		m.Path = tt.path
		c, err := w.CreateLogin(t.Context(), m, "", "p", engines.Login{DisplayName: tt.name}, "")
		if err != nil || c.Entry.DisplayName != tt.want {
			t.Errorf("at %s: name %q, %v, want %q", tt.path, c.Entry.DisplayName, err, tt.want)
		}
	}
}

// The auth method is asked about its own tokens, with what it gave to keep; its settings of now count.
func TestLoginRenewal(t *testing.T) {
	var asked *token.Entry
	fields := engines.TokenFields{}
	refusal := engines.Invalid("the user is gone")
	w := newWorld(t, func(o *token.Options) {
		o.Logins = logins{terms: func(e *token.Entry) (token.Terms, error) {
			if asked = e; e.Role == "gone" {
				return token.Terms{}, refusal
			}
			return token.TermsOf(userpass(), fields), nil
		}}
	})
	login := func(role string) token.Created {
		t.Helper()
		c, err := w.CreateLogin(t.Context(), userpass(), "", "p", engines.Login{Role: role, Internal: []byte(`1`)}, "")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := login("bob")
	w.pass(30 * time.Minute)
	renew := func(want time.Duration) {
		t.Helper()
		r, err := w.Renew(t.Context(), c.Entry.Key, 0)
		if err != nil || r.Entry.ExpiresAt.Sub(w.now()) != want {
			t.Errorf("Renew = %+v, %v, want %v left", r.Entry, err, want)
		}
	}
	renew(time.Hour)
	if asked == nil || asked.Role != "bob" || asked.Mount != "m1" || string(asked.Internal) != "1" {
		t.Errorf("asked about %+v", asked)
	}
	fields.TokenTTL = engines.Duration(2 * time.Hour)
	renew(2 * time.Hour)
	fields.TokenMaxTTL = engines.Duration(time.Hour)
	renew(30 * time.Minute)
	fields.TokenPeriod = engines.Duration(5 * time.Hour)
	fields.TokenMaxTTL = 0
	renew(5 * time.Hour)

	if _, err := w.Renew(t.Context(), login("gone").Entry.Key, 0); err != error(refusal) {
		t.Errorf("Renew = %v", err)
	}
	c, err := w.CreateLogin(t.Context(), userpass(), "", "p", engines.Login{NotRenewable: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	asked = nil
	if _, err := w.Renew(t.Context(), c.Entry.Key, 0); !isInvalidInput(err) || asked != nil {
		t.Errorf("Renew of one that cannot be = %v, asked about %v", err, asked)
	}
	w.create(token.Params{}) // not a login
	if _, err := w.Renew(t.Context(), w.create(token.Params{TTL: time.Hour}).Entry.Key, 0); err != nil || asked != nil {
		t.Errorf("Renew of a token of auth/token = %v, asked about %v", err, asked)
	}
}
