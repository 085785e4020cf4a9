package saml_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/storage"
)

const (
	emailFormat      = "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress"
	persistentFormat = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
)

// TestNameIDFormatIsAskedForAndDemanded: a user who has the identity provider send a name of another format, by editing the
// request, is not admitted as another user.
func TestNameIDFormatIsAskedForAndDemanded(t *testing.T) {
	f := newFlow(t, fields{"name_id_format": "emailAddress"})
	if got := f.Data(f.Must(engines.Read, "config", nil))["name_id_format"]; got != emailFormat {
		t.Errorf("the configuration has %v", got)
	}
	s := f.start(nil)
	if text := requestText(t, s.url); !strings.Contains(text, `Format="`+emailFormat+`"`) {
		t.Errorf("the request is %s", text)
	}
	for _, format := range []string{persistentFormat, "", "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"} {
		s := f.start(nil)
		_, err := f.post(f.idp.AnswerWith(s.url, samltest.Response{User: samltest.User{Subject: "G-0d8d", Attributes: alice.Attributes}, Format: format}))
		wantRefused(t, err, engines.KindDenied, "subject")
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindDenied, "name_id_format")
	}
	if _, err := f.post(f.idp.AnswerWith(s.url, samltest.Response{User: alice, Format: emailFormat})); err != nil {
		t.Error(err)
	}
	f.login(s.poll)
	for _, bad := range []string{"mail", "urn: x", "email address"} {
		f.Fails(engines.KindInvalid, engines.Update, "config", fields{"name_id_format": bad})
	}
	// What was let in by other terms is not redeemed.
	s = f.start(nil)
	if _, err := f.post(f.idp.AnswerWith(s.url, samltest.Response{User: alice, Format: emailFormat})); err != nil {
		t.Fatal(err)
	}
	f.Must(engines.Update, "config", fields{"name_id_format": "persistent"})
	_, err := f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "has changed")
}

// TestNameWarnings: an administrator who configures a method whose users can choose their names is warned, also by config/verify.
func TestNameWarnings(t *testing.T) {
	f := newFlow(t)
	warned := func(config fields) bool {
		t.Helper()
		written, verified := f.Must(engines.Update, "config", config), f.Must(engines.Update, "config/verify", nil)
		wrote := written != nil && strings.Contains(strings.Join(written.Warnings, ""), "name_id_format")
		if verify := strings.Contains(strings.Join(verified.Warnings, ""), "name_id_format"); verify != wrote {
			t.Errorf("%v: a write warns: %t, verify: %t", config, wrote, verify)
		}
		return wrote
	}
	for _, test := range []struct {
		config fields
		want   bool
	}{
		{fields{"verbose_logging": false}, true},
		{fields{"sign_authn_requests": true}, false},
		{fields{"sign_authn_requests": false}, true},
		{fields{"name_id_format": "persistent"}, false},
		{fields{"name_id_format": "transient"}, true},
		{fields{"name_id_format": ""}, true},
	} {
		if got := warned(test.config); got != test.want {
			t.Errorf("%v: warned: %t", test.config, got)
		}
	}
}

// TestAliasesFoldCase: in a new configuration one person is one entity, however their name is written. Methods from before go on
// as they did, or their users would become other users.
func TestAliasesFoldCase(t *testing.T) {
	alias := func(f *flow, subject string) string {
		t.Helper()
		s := f.start(nil)
		f.confirm(s, samltest.User{Subject: subject, Attributes: alice.Attributes})
		return f.login(s.poll).Alias.Name
	}
	f := newFlow(t)
	// The Kelvin sign is a K to those who fold all of Unicode.
	for subject, want := range map[string]string{"Alice@Example.COM": "alice@example.com", "alice@example.com": "alice@example.com", "\u212aelvin": "\u212aelvin", "ÉMILE": "Émile"} {
		if got := alias(f, subject); got != want {
			t.Errorf("the alias of %q is %q, want %q", subject, got, want)
		}
	}
	resp := f.Must(engines.Update, "config", fields{"case_sensitive_names": true})
	if resp == nil || !strings.Contains(fmt.Sprint(resp.Warnings), "another entity") {
		t.Errorf("no warning: %+v", resp)
	}
	if got := alias(f, "Alice@Example.COM"); got != "Alice@Example.COM" {
		t.Errorf("the alias is %q", got)
	}
	older := newFlow(t)
	_, err := storage.Update(t.Context(), older.Mount.Mount.Storage, func(txn *storage.Txn) error {
		e, err := txn.Get(t.Context(), "config")
		if err == nil {
			txn.Put("config", []byte(strings.Replace(string(e.Value), `,"fold_names":true`, "", 1)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	older.Must(engines.Update, "config", fields{"verbose_logging": false})
	if got := alias(older, "Alice@Example.COM"); got != "Alice@Example.COM" {
		t.Errorf("after an upgrade the alias is %q", got)
	}
}

// TestTooManyGroups: who has more groups than the limit is not let in with some of them: the others may take rights away.
func TestTooManyGroups(t *testing.T) {
	f := newFlow(t)
	groups := func(n int) samltest.User {
		u := samltest.User{Subject: "alice", Attributes: map[string][]string{"groups": {"staff"}}}
		for i := 1; i < n; i++ {
			u.Attributes["groups"] = append(u.Attributes["groups"], fmt.Sprint("g", i))
		}
		return u
	}
	s := f.start(nil)
	f.confirm(s, groups(512))
	if got := f.login(s.poll).GroupAliases; len(got) != 512 || got[511] != "g511" {
		t.Errorf("%d groups, the last one %q", len(got), got[len(got)-1])
	}
	s = f.start(nil)
	_, err := f.post(f.idp.Answer(s.url, groups(513)))
	wantRefused(t, err, engines.KindDenied, "role")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "513 groups", "512")
	for _, body := range []any{nil, fields{"subject": "alice", "attributes": groups(513).Attributes}} {
		data := f.Data(f.Must(engines.Update, "role/dev/explain", body))
		if text := fmt.Sprint(data["checks"]); data["admitted"] != false || !strings.Contains(text, "at most 512 groups") || !strings.Contains(text, "513 groups") {
			t.Errorf("explain of %v: %v", body == nil, data["checks"])
		}
	}
}

// TestAuthnContext: a role can demand how users sign in, asks for it, and takes nothing else.
func TestAuthnContext(t *testing.T) {
	const mfa, password = "urn:example:mfa", "urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport"
	f := newFlow(t)
	f.role("dev", fields{"authn_context_class_refs": []string{mfa, "urn:example:card"}})
	s := f.start(nil)
	if text := requestText(t, s.url); !strings.Contains(text, `RequestedAuthnContext Comparison="exact"`) || !strings.Contains(text, ">"+mfa+"<") {
		t.Errorf("the request is %s", text)
	}
	_, err := f.post(f.idp.Answer(s.url, alice)) // by password
	wantRefused(t, err, engines.KindDenied, "role")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "AuthnContextClassRef")
	if data := f.Data(f.Must(engines.Update, "role/dev/explain", nil)); !strings.Contains(fmt.Sprint(data["checks"]), password) {
		t.Errorf("explain says %v", data["checks"])
	}
	data := f.Data(f.Must(engines.Update, "role/dev/explain", fields{"subject": "a", "attributes": alice.Attributes, "authn_context_class_refs": mfa}))
	if data["admitted"] != true {
		t.Errorf("explain says %v", data["checks"])
	}
	s = f.start(nil)
	form := f.idp.AnswerWith(s.url, samltest.Response{User: alice, Edit: func(text string) string { return strings.Replace(text, password, "\n "+mfa+"\n", 1) }})
	if _, err := f.post(form); err != nil {
		t.Fatal(err)
	}
	f.role("dev", fields{"authn_context_class_refs": "urn:example:card"}) // it is asked again
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "AuthnContextClassRef")
	for _, bad := range []any{"mfa", []string{" "}, []string{"urn:a b"}} {
		f.Fails(engines.KindInvalid, engines.Update, "role/dev", fields{"authn_context_class_refs": bad})
	}
}

// TestRemovedACSURLs: a URL that has been given up ends the logins that wait there.
func TestRemovedACSURLs(t *testing.T) {
	f := newFlow(t)
	waiting, answered := f.start(nil), f.start(nil)
	f.confirm(answered, alice)
	f.Must(engines.Update, "config", fields{"acs_urls": "https://other.example.com/v1/auth/saml/callback"})
	_, err := f.post(f.idp.Answer(waiting.url, alice))
	wantRefused(t, err, engines.KindInvalid, "recipient")
	_, err = f.redeem(answered.poll)
	wantError(t, err, engines.KindDenied, "has changed")
}

// TestLongChallenges: a challenge may be longer than a digest is, and then no verifier fits.
func TestLongChallenges(t *testing.T) {
	f := newFlow(t)
	s := f.start(fields{"client_challenge": base64.StdEncoding.EncodeToString(make([]byte, 64))})
	f.confirm(s, alice)
	_, err := f.redeem(s.poll)
	wantError(t, err, engines.KindInvalid)
	s = f.start(fields{"client_challenge": challenge(verifier) + "\n"})
	f.confirm(s, alice)
	f.login(s.poll)
}

// requestText returns the AuthnRequest of an SSO URL.
func requestText(t *testing.T, ssoURL string) string {
	t.Helper()
	text, err := samltest.RequestXML(ssoURL)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
