package saml_test

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

func TestLoginFields(t *testing.T) {
	f := newFlow(t)
	f.role("Dev", fields{"alias_metadata": fields{"team": "a"}, "token_ttl": "20m", "token_num_uses": 5, "token_bound_cidrs": "203.0.113.0/24"})
	s := f.start(fields{"role": "DEV"})
	f.confirm(s, alice)
	l := f.login(s.poll)
	groups := slices.Sorted(slices.Values(l.GroupAliases))
	if l.DisplayName != alice.Subject || l.Alias.Name != alice.Subject || !maps.Equal(l.Alias.Metadata, map[string]string{"team": "a"}) ||
		!slices.Equal(groups, []string{"admins", "staff"}) || !maps.Equal(l.Metadata, map[string]string{"role": "dev"}) || l.Role != "dev" || l.NotRenewable {
		t.Errorf("the login is %+v", l)
	}
	if tf := l.Token; tf.TokenTTL != engines.Duration(20*time.Minute) || tf.TokenNumUses != 5 || !slices.Equal(tf.TokenPolicies, []string{"dev"}) || !slices.Equal(tf.TokenBoundCIDRs, []string{"203.0.113.0/24"}) {
		t.Errorf("the token's terms are %+v", tf)
	}
}

func TestWrongVerifierIsRejected(t *testing.T) {
	f := newFlow(t)
	wrong := func(poll string) {
		t.Helper()
		for _, v := range []string{"another", verifier + " ", challenge(verifier)} {
			f.Fails(engines.KindInvalid, engines.Update, "token", fields{"client_verifier": v, "token_poll_id": poll})
		}
	}
	s := f.start(nil)
	wrong(s.poll)
	f.confirm(s, alice)
	wrong(s.poll)
	f.login(s.poll)

	refused := f.start(nil)
	if _, err := f.post(f.idp.Answer(refused.url, samltest.User{Subject: "bob"})); err == nil {
		t.Fatal("bob got in")
	}
	wrong(refused.poll)
}

// TestUnprovenAnswersAreOne checks that a client without the verifier learns nothing, not even whether there is a login.
func TestUnprovenAnswersAreOne(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	unknown := f.Fails(engines.KindInvalid, engines.Update, "token", fields{"client_verifier": verifier, "token_poll_id": "unknown"})
	known := f.Fails(engines.KindInvalid, engines.Update, "token", fields{"client_verifier": "guess", "token_poll_id": s.poll})
	if unknown != known {
		t.Errorf("%q is not %q", known, unknown)
	}
}

func TestTokenNeedsItsFields(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	for field, body := range map[string]fields{
		"token_poll_id":   {"client_verifier": verifier},
		"client_verifier": {"token_poll_id": s.poll},
		"code":            {"token_poll_id": s.poll, "client_verifier": verifier, "code": "ABCDE"},
	} {
		if text := f.Fails(engines.KindInvalid, engines.Update, "token", body); !strings.Contains(text, `"`+field+`"`) {
			t.Errorf("the error is %q", text)
		}
	}
	f.Fails(engines.KindInvalid, engines.Update, "token", fields{"client_verifier": strings.Repeat("x", 4097), "token_poll_id": s.poll})
	f.Fails(engines.KindInvalid, engines.Update, "token", nil)
}

func TestLongVerifier(t *testing.T) {
	f := newFlow(t)
	long := strings.Repeat("x", 4096)
	s := f.start(fields{"client_challenge": challenge(long)})
	f.confirm(s, alice)
	if _, err := f.do(engines.Update, "token", fields{"client_verifier": long, "token_poll_id": s.poll}); err != nil {
		t.Error(err)
	}
}

func TestLoginIsRedeemedOnce(t *testing.T) {
	f := newFlow(t)
	nodes := []*flow{f, f.peer(), f.peer()}
	empty := len(f.Snapshot())
	s := f.start(fields{"short_link": true})
	f.confirm(s, alice)
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := nodes[i%len(nodes)].redeem(s.poll); err == nil {
				won.Add(1)
			} else if !strings.Contains(reasonOf(err), "used login") {
				t.Errorf("redeeming: %v (%s)", err, reasonOf(err))
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || f.counts.Redeemed.Load() != 1 {
		t.Errorf("redeemed %d times, counted %d", won.Load(), f.counts.Redeemed.Load())
	}
	// What is left is the used assertion and when to forget it.
	if left := len(f.Snapshot()) - empty; left != 2 {
		t.Errorf("%d keys are left of a login", left)
	}
}

func TestCompletedLoginExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		s := f.start(nil)
		time.Sleep(4 * time.Minute)
		f.confirm(s, alice)
		time.Sleep(time.Minute)
		_, err := f.redeem(s.poll)
		wantError(t, err, engines.KindInvalid, "expired")
	})
}

// TestRoleIsAskedAgain changes the role between the identity provider's answer and the redemption.
func TestRoleIsAskedAgain(t *testing.T) {
	for name, change := range map[string]func(f *flow){
		"deleted":  func(f *flow) { f.Must(engines.Delete, "role/dev", nil) },
		"narrowed": func(f *flow) { f.role("dev", fields{"bound_subjects": "bob"}) },
	} {
		f := newFlow(t)
		s := f.start(nil)
		f.confirm(s, alice)
		change(f)
		_, err := f.redeem(s.poll)
		wantError(t, err, engines.KindDenied, "the login was denied: ")
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindInvalid, "used")
		if f.counts.Redeemed.Load() != 0 {
			t.Errorf("%s: counted as redeemed", name)
		}
	}
	f := newFlow(t)
	s := f.start(nil)
	f.confirm(s, alice)
	f.role("dev", fields{"token_policies": "other"})
	if l := f.login(s.poll); !slices.Equal(l.Token.TokenPolicies, []string{"other"}) {
		t.Errorf("the token has the policies %q of a role that has changed", l.Token.TokenPolicies)
	}
}

func TestTokenBoundCIDRsAtRedemption(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"token_bound_cidrs": "203.0.113.0/24"})
	s := f.start(nil)
	f.from("198.51.100.1").confirm(s, alice) // the browser may be elsewhere
	_, err := f.from("198.51.100.1").redeem(s.poll)
	wantError(t, err, engines.KindDenied, "token_bound_cidrs")
	f.login(s.poll)
}

func TestRenewalUsesTheCurrentRole(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"token_ttl": "10m", "token_max_ttl": "1h"})
	s := f.start(nil)
	f.confirm(s, alice)
	l := f.login(s.poll)
	f.role("dev", fields{"token_ttl": "7m", "token_max_ttl": "30m", "token_period": "5m"})
	renewed := engines.RenewedLogin{Role: l.Role, Metadata: l.Metadata, Policies: l.Token.TokenPolicies}
	tf, err := f.Engine.(engines.Renewer).RenewLogin(t.Context(), f.Mount.Mount, renewed)
	if err != nil || tf.TokenTTL != engines.Duration(7*time.Minute) || tf.TokenMaxTTL != engines.Duration(30*time.Minute) || tf.TokenPeriod != engines.Duration(5*time.Minute) {
		t.Errorf("renewed with %+v, %v", tf, err)
	}
	f.Must(engines.Delete, "role/dev", nil)
	_, err = f.Engine.(engines.Renewer).RenewLogin(t.Context(), f.Mount.Mount, renewed)
	wantError(t, err, engines.KindInvalid, "role does not exist")
}
