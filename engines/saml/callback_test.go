package saml_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/storage"
)

func TestLoginOnSeveralNodes(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	second, third := f.peer(), f.peer()
	_, err := third.redeem(s.poll)
	wantError(t, err, engines.KindUnauthorized, "not finished")
	resp := second.from("198.51.100.1").confirm(s, alice)
	if data := second.Data(resp); data["role"] != "dev" || data["client_type"] != "cli" || data["address"] != "203.0.113.7" || data["browser_address"] != "198.51.100.1" {
		t.Errorf("the audit log gets %v", data)
	}
	if l := third.login(s.poll); l.Alias.Name != alice.Subject {
		t.Errorf("the login is %+v", l)
	}
	if f.counts.Completed.Load() != 1 || f.counts.Redeemed.Load() != 1 || f.counts.Rejected.Load() != 0 {
		t.Errorf("counted %v", f.counts.Numbers())
	}
}

func TestCallbackOfAnUnknownLogin(t *testing.T) {
	f := newFlow(t)
	form := f.idp.Answer(f.start(nil).url, alice)
	for _, relay := range []string{"", "unknown", form.Get("RelayState") + "x"} {
		before := len(f.Snapshot())
		_, err := f.post(url.Values{"RelayState": {relay}, "SAMLResponse": form["SAMLResponse"]})
		wantRefused(t, err, engines.KindInvalid, "unknown or expired login")
		if len(f.Snapshot()) != before {
			t.Error("a stranger's post was stored")
		}
	}
}

func TestCallbackComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		s := f.start(nil)
		time.Sleep(5*time.Minute - time.Nanosecond)
		_, err := f.redeem(s.poll)
		wantError(t, err, engines.KindUnauthorized)
		time.Sleep(time.Nanosecond)
		_, err = f.post(f.idp.Answer(s.url, alice))
		wantRefused(t, err, engines.KindInvalid, "unknown or expired login")
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindInvalid, "expired")
	})
}

func TestCallbackDecidesOnce(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	form := f.idp.Answer(s.url, alice)
	if _, err := f.post(form); err != nil {
		t.Fatal(err)
	}
	mallory := samltest.User{Subject: "mallory", Attributes: alice.Attributes}
	for _, again := range []url.Values{form, f.idp.Answer(s.url, alice), f.idp.Answer(s.url, mallory)} {
		_, err := f.peer().post(again)
		wantRefused(t, err, engines.KindInvalid, "answered before")
	}
	if l := f.login(s.poll); l.Alias.Name != alice.Subject {
		t.Errorf("the login is of %q", l.Alias.Name)
	}
	_, err := f.post(form)
	wantRefused(t, err, engines.KindInvalid, "unknown or expired login")
}

// TestReplay posts an assertion that another login has used up, signed again for this one: only its ID tells.
func TestReplay(t *testing.T) {
	f := newFlow(t)
	first, second := f.start(nil), f.start(nil)
	if _, err := f.post(f.idp.AnswerWith(first.url, samltest.Response{User: alice, AssertionID: "_once"})); err != nil {
		t.Fatal(err)
	}
	_, err := f.peer().post(f.idp.AnswerWith(second.url, samltest.Response{User: alice, AssertionID: "_once"}))
	wantRefused(t, err, engines.KindInvalid, "used before")
	f.confirm(second, alice) // it is still open
	f.login(second.poll)
}

// TestAnswerOfAnotherLogin swaps the answers of two logins.
func TestAnswerOfAnotherLogin(t *testing.T) {
	f := newFlow(t)
	mine, theirs := f.start(nil), f.start(nil)
	form := f.idp.Answer(theirs.url, alice)
	form.Set("RelayState", f.idp.Answer(mine.url, alice).Get("RelayState"))
	_, err := f.post(form)
	wantRefused(t, err, engines.KindInvalid, "in_response_to")
	for _, s := range []started{mine, theirs} {
		_, err := f.redeem(s.poll)
		wantError(t, err, engines.KindUnauthorized)
	}
}

func TestRefusedAnswersLeaveTheLoginOpen(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	relay := f.idp.Answer(s.url, alice).Get("RelayState")
	stranger := samltest.New(t, samltest.WithECDSA())
	for reason, form := range map[string]url.Values{
		"encoding":  {"RelayState": {relay}, "SAMLResponse": {"rubbish"}},
		"signature": stranger.Answer(s.url, alice),
		"status":    f.idp.AnswerWith(s.url, samltest.Response{Status: "Responder", SubStatus: "AuthnFailed"}),
	} {
		_, err := f.post(form)
		wantRefused(t, err, engines.KindInvalid, reason+": ")
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindUnauthorized)
	}
	f.confirm(s, alice)
	f.login(s.poll)
	if f.counts.Rejected.Load() != 3 {
		t.Errorf("counted %v", f.counts.Numbers())
	}
}

func TestSignedRefusalEndsTheLogin(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	_, err := f.post(f.idp.AnswerWith(s.url, samltest.Response{Status: "Responder", SubStatus: "AuthnFailed", SignResponse: true}))
	wantRefused(t, err, engines.KindDenied, "status: ")
	_, err = f.post(f.idp.Answer(s.url, alice))
	wantRefused(t, err, engines.KindInvalid, "answered before")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "the login was denied: ", "AuthnFailed")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindInvalid)
}

// TestSignedMistakeEndsTheLogin posts what the identity provider did sign, for this login, but for another audience.
func TestSignedMistakeEndsTheLogin(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	_, err := f.post(f.idp.AnswerWith(s.url, samltest.Response{User: alice, Audience: "https://other.example.com"}))
	wantRefused(t, err, engines.KindDenied, "audience: ")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "audience")
}

// TestRoleRejects checks that a user whom the role excludes learns it at once, that the browser does not, and that an
// administrator can have it explained.
func TestRoleRejects(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	_, err := f.post(f.idp.Answer(s.url, samltest.User{Subject: "bob", Attributes: map[string][]string{"groups": {"guests"}}}))
	wantRefused(t, err, engines.KindDenied, `"groups"`)
	_, err = f.from("198.51.100.1").do(engines.Update, "token", fields{"client_verifier": "guess", "token_poll_id": s.poll})
	wantError(t, err, engines.KindInvalid)
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "the login was denied: ", `"groups"`)
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindInvalid, "used")
	data := f.Data(f.Must(engines.Update, "role/dev/explain", nil))
	if refused, _ := data["refused"].(map[string]any); data["subject"] != "bob" || refused["address"] != "203.0.113.7" || refused["reason"] != "role" {
		t.Errorf("explain answers %v", data)
	}
}

func TestRoleIsDeletedDuringALogin(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	f.Must(engines.Delete, "role/dev", nil)
	_, err := f.post(f.idp.Answer(s.url, alice))
	wantRefused(t, err, engines.KindDenied, "does not exist")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "does not exist")
}

func TestUnusableUsersAreRefused(t *testing.T) {
	f := newFlow(t)
	many := map[string][]string{"groups": {"staff"}}
	for range 300 {
		many["department"] = append(many["department"], strings.Repeat("x", 1000))
	}
	for reason, u := range map[string]samltest.User{
		"1024 bytes": {Subject: strings.Repeat("a", 1025), Attributes: alice.Attributes},
		"256 KiB":    {Subject: "alice", Attributes: many},
	} {
		s := f.start(nil)
		_, err := f.post(f.idp.Answer(s.url, u))
		wantRefused(t, err, engines.KindDenied, reason)
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindDenied, reason)
	}
	longest := samltest.User{Subject: strings.Repeat("ä", 512), Attributes: alice.Attributes}
	s := f.start(nil)
	f.confirm(s, longest)
	if l := f.login(s.poll); l.Alias.Name != longest.Subject || len(l.DisplayName) > 256 || !strings.HasPrefix(longest.Subject, l.DisplayName) {
		t.Errorf("the login of a long name is %q", l.DisplayName)
	}
}

func TestOneOfManyPostsWins(t *testing.T) {
	f := newFlow(t)
	nodes := []*flow{f, f.peer(), f.peer()}
	s := f.start(nil)
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		form := f.idp.Answer(s.url, alice)
		wg.Go(func() {
			if _, err := nodes[i%len(nodes)].post(form); err == nil {
				won.Add(1)
			} else if !strings.Contains(reasonOf(err), "answered before") {
				t.Errorf("rejected with %v (%s)", err, reasonOf(err))
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d answers were accepted", won.Load())
	}
	f.login(s.poll)
}

func TestSameAddress(t *testing.T) {
	f := newFlow(t)
	f.role("dev", fields{"require_same_address": true})
	s := f.start(nil)
	_, err := f.from("198.51.100.1").post(f.idp.Answer(s.url, alice))
	wantRefused(t, err, engines.KindDenied, "address")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied, "address")

	s = f.start(nil)
	f.from("::ffff:203.0.113.7").confirm(s, alice)
	_, err = f.from("198.51.100.1").redeem(s.poll)
	wantError(t, err, engines.KindDenied, "address")
	f.login(s.poll) // it was not lost
}

func TestVerboseLogging(t *testing.T) {
	values := []string{"department", "engineering", "bound_attributes", "admins"}
	for _, test := range []struct {
		verbose           bool
		level             slog.Level
		bounds, responses bool
	}{
		{false, saml.LevelTrace, false, false},
		{true, slog.LevelInfo, false, false},
		{true, slog.LevelDebug, true, false},
		{true, saml.LevelTrace, true, true},
	} {
		f := newFlow(t, fields{"verbose_logging": test.verbose})
		f.log.level = test.level
		f.confirm(f.start(nil), alice)
		s := f.start(nil)
		if _, err := f.post(f.idp.Answer(s.url, samltest.User{Subject: "bob", Attributes: map[string][]string{"department": {"engineering"}}})); err == nil {
			t.Fatal("bob got in")
		}
		text := f.log.text()
		for _, v := range values {
			if strings.Contains(text, v) != test.bounds {
				t.Errorf("verbose %v at level %d: %q is in the log: %v", test.verbose, test.level, v, !test.bounds)
			}
		}
		if strings.Contains(text, "AttributeStatement") != test.responses {
			t.Errorf("verbose %v at level %d: a response is in the log: %v", test.verbose, test.level, !test.responses)
		}
		for _, v := range []string{"level=WARN", "reason=role", "role=dev", "request_id=request-1", "address=203.0.113.7"} {
			if !strings.Contains(text, v) {
				t.Errorf("the log of a rejection lacks %s:\n%s", v, text)
			}
		}
		if strings.Contains(text, s.poll) || strings.Contains(text, verifier) {
			t.Error("the log holds what redeems a login")
		}
	}
}

// TestStrangersWriteLittle checks that rejected posts, which cost a stranger nothing, do not write each time.
func TestStrangersWriteLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		s := f.start(nil)
		relay := f.idp.Answer(s.url, alice).Get("RelayState")
		writes := 0
		defer f.Memory.OnChange(func(storage.Change) { writes++ })()
		for range 8 {
			_, err := f.post(url.Values{"RelayState": {relay}, "SAMLResponse": {"rubbish"}})
			wantRefused(t, err, engines.KindInvalid, "encoding")
		}
		if writes != 1 {
			t.Errorf("8 rejected posts within a second wrote %d times", writes)
		}
		time.Sleep(time.Second)
		_, _ = f.post(url.Values{"RelayState": {relay}, "SAMLResponse": {"rubbish"}})
		if writes != 2 {
			t.Errorf("a rejection a second later wrote nothing")
		}
	})
}

// TestManyRejectionsEndALogin: who has the RelayState of a login cannot have responses verified as long as it lives. A few do
// not end it, and those to one login are none of another's.
func TestManyRejectionsEndALogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		stranger := samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.P256, 7)))
		s, other := f.start(nil), f.start(nil)
		for i := range 10 {
			if i == 5 {
				time.Sleep(4 * time.Minute)
			}
			_, err := f.redeem(s.poll)
			wantError(t, err, engines.KindUnauthorized)
			_, err = f.post(stranger.Answer(s.url, alice))
			wantRefused(t, err, engines.KindInvalid, "signature")
			if i < 9 {
				_, err = f.post(stranger.Answer(other.url, alice))
				wantRefused(t, err, engines.KindInvalid, "signature")
			}
		}
		_, err := f.post(f.idp.Answer(s.url, alice))
		wantError(t, err, engines.KindInvalid)
		_, err = f.redeem(s.poll)
		wantError(t, err, engines.KindDenied, "too many responses")
		f.confirm(other, alice)
		f.login(other.poll)
	})
}

// TestBusy: while too much waits to be verified a browser is told to try again, and its login waits for that.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t)
		s := f.start(nil)
		done := saml.Occupy(t, f.Engine)
		_, err := f.post(f.idp.Answer(s.url, alice))
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindUnavailable || e.Header.Get("Retry-After") == "" || e.Page == nil || !strings.Contains(string(e.Page.Body), "Reload this page") {
			t.Errorf("busy, the callback answers %+v", err)
		}
		done()
		f.confirm(s, alice)
		f.login(s.poll)
	})
}

// TestNewCertificate lets the identity provider sign with a certificate that its metadata had not when the login began.
func TestNewCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t, fields{"idp_metadata_url": "https://idp.example.com/metadata", "idp_sso_url": nil, "idp_entity_id": nil, "idp_cert": nil})
		fetched := 0
		saml.SetFetch(f.Engine, func(context.Context, string) ([]byte, error) {
			fetched++
			return f.idp.MetadataXML(), nil
		})
		s := f.start(nil)
		f.idp.Key = samltest.NewKey(samltest.P256, 1)
		_, err := f.post(f.idp.Answer(s.url, alice)) // the metadata has only just been fetched
		wantRefused(t, err, engines.KindInvalid, "signature: ")
		time.Sleep(61 * time.Second)
		f.confirm(s, alice)
		f.login(s.poll)
		if fetched != 2 {
			t.Errorf("the metadata was fetched %d times", fetched)
		}
	})
}

// TestCallbackWithoutMetadata cannot be checked: that is not the answer's fault, and the login stays open.
func TestCallbackWithoutMetadata(t *testing.T) {
	f := newFlow(t)
	s := f.start(nil)
	f.Must(engines.Update, "config", fields{"idp_metadata_url": "https://idp.example.com/metadata"})
	saml.SetFetch(f.Engine, func(context.Context, string) ([]byte, error) { return nil, errors.New("no route to host") })
	_, err := f.post(f.idp.Answer(s.url, alice))
	wantRefused(t, err, engines.KindUpstream, "no route to host")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindUnauthorized)
}

func TestCallbackWithoutConfiguration(t *testing.T) {
	f := newFlow(t)
	form := f.idp.Answer(f.start(nil).url, alice)
	if _, err := f.Mount.Mount.Storage.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"config"}}); err != nil {
		t.Fatal(err)
	}
	_, err := f.post(form)
	wantRefused(t, err, engines.KindInvalid, "not configured")
}

// ofThePrimary is shared storage as a secondary cluster has it.
type ofThePrimary struct{ storage.Store }

func (ofThePrimary) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrPrimaryOnly
}

// TestSecondaryNeedsNoPrimary runs logins of every kind where only the cluster's own storage can be written.
func TestSecondaryNeedsNoPrimary(t *testing.T) {
	f := newFlow(t, byIdP)
	f.Mount.Mount.Storage = ofThePrimary{f.Mount.Mount.Storage}
	s := f.start(fields{"short_link": true})
	short := s.data["short_url"].(string)
	if _, err := f.do(engines.Read, "go/"+short[strings.LastIndex(short, "/")+1:], nil); err != nil {
		t.Error(err)
	}
	f.confirm(s, alice)
	f.login(s.poll)
	s = f.start(nil)
	_, err := f.post(f.idp.Answer(s.url, samltest.User{Subject: "bob"}))
	wantRefused(t, err, engines.KindDenied, "role: ")
	_, err = f.redeem(s.poll)
	wantError(t, err, engines.KindDenied)
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.enter(shown(t, resp)); err != nil {
		t.Error(err)
	}
}
