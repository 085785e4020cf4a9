package saml_test

import (
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// TestLoginsAreConfirmed: by the role's confirm, no token leaves before the user has said in the browser, on a page that
// shows who started the login, that it is theirs.
func TestLoginsAreConfirmed(t *testing.T) {
	f := newFlow(t)
	f.Must(engines.Update, "role/standard", fields{"bound_attributes": "groups=staff"})
	f.role("never", nil)
	f.role("always", fields{"confirm": "always"})
	for _, test := range []struct {
		role, client string
		asks         bool
	}{
		{"standard", "cli", true}, {"standard", "browser", false},
		{"always", "cli", true}, {"always", "browser", true},
		{"never", "cli", false}, {"never", "browser", false},
	} {
		s := f.start(fields{"role": test.role, "client_type": test.client})
		if s.data["confirmation_required"] != test.asks {
			t.Errorf("%s, %s: the start says %v", test.role, test.client, s.data)
		}
		browser := f.peer().from("198.51.100.1")
		page, err := browser.post(f.idp.Answer(s.url, alice))
		if err != nil {
			t.Fatal(err)
		}
		if asks := samltest.Confirmation(page.Raw.Body) != ""; asks != test.asks {
			t.Fatalf("%s, %s: the page asks: %t", test.role, test.client, asks)
		}
		if !test.asks {
			f.login(s.poll)
			continue
		}
		for _, text := range []string{"Is this your login?", s.code, f.addr, test.role, alice.Subject, "coffer.example.com:8200", "This is not me"} {
			if !strings.Contains(string(page.Raw.Body), text) {
				t.Errorf("the page lacks %q", text)
			}
		}
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindUnauthorized)
		done, err := browser.decide(page, "confirm")
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(string(done.Raw.Body), "go back to your terminal"); told != (test.client == "cli") {
			t.Errorf("%s, %s: the last page is %s", test.role, test.client, done.Raw.Body)
		}
		_, err = browser.decide(page, "confirm")
		wantError(t, err, engines.KindInvalid)
		f.login(s.poll)
		_, err = browser.decide(page, "reject")
		wantError(t, err, engines.KindInvalid)
	}
}

// TestRejectedLogins: who says that the login is not theirs ends it, and those who look for it learn from where it was started.
func TestRejectedLogins(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"confirm": "cli"})
	s := f.from("192.0.2.66").start(nil)
	page, err := f.post(f.idp.Answer(s.url, alice))
	if err != nil {
		t.Fatal(err)
	}
	if page, err = f.decide(page, "reject"); err != nil || !strings.Contains(string(page.Raw.Body), "was stopped") {
		t.Fatalf("rejecting: %v", err)
	}
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied)
	if !strings.Contains(err.Error(), "not theirs") {
		t.Errorf("the client is told %v", err)
	}
	last := f.Data(f.Must(engines.Update, "role/dev/explain", nil))["refused"].(map[string]any)
	if last["reason"] != "user" || !strings.Contains(f.log.text(), "192.0.2.66") {
		t.Errorf("explain has %v, the log %s", last, f.log.text())
	}
}

// TestConfirmationsAreGuessed: nothing but what the page holds confirms a login, and that only once, in time and in its mount.
func TestConfirmationsAreGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		f.role("dev", fields{"confirm": "cli"})
		other := newFlow(t)
		other.role("dev", fields{"confirm": "cli"})
		s := f.start(nil)
		page, err := f.post(f.idp.Answer(s.url, alice))
		if err != nil {
			t.Fatal(err)
		}
		value := samltest.Confirmation(page.Raw.Body)
		id, secret, _ := strings.Cut(value, ".")
		pending := f.start(nil) // which the identity provider has not answered
		for _, guess := range []string{
			id, id + ".", id + "." + secret[1:], id + "." + strings.ToUpper(secret), "." + secret, secret, s.poll, s.poll + "." + secret, s.code, pending.poll, "x",
		} {
			_, err := f.post(url.Values{"confirmation": {guess}, "decision": {"confirm"}})
			wantError(t, err, engines.KindInvalid)
		}
		_, err = other.post(url.Values{"confirmation": {value}, "decision": {"confirm"}})
		wantError(t, err, engines.KindInvalid)
		for _, form := range []url.Values{
			{"confirmation": {value}, "SAMLResponse": {"PGEvPg=="}}, {"decision": {"confirm"}}, {"decision": {"confirm"}, "SAMLResponse": {"PGEvPg=="}}, {},
			{"confirmation": {value}, "decision": {"perhaps"}}, {"confirmation": {value}},
		} {
			_, err := f.post(form)
			wantError(t, err, engines.KindInvalid)
		}
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindUnauthorized)
		time.Sleep(5 * time.Minute)
		_, err = f.decide(page, "confirm")
		wantError(t, err, engines.KindInvalid)
	})
}
