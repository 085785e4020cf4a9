package saml_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

var byIdP = fields{"allow_idp_initiated": true, "default_role": "dev"}

// unsolicited is a response without a request.
func (f *flow) unsolicited(o samltest.Response) url.Values {
	if o.User.Subject == "" {
		o.User = alice
	}
	if o.ACSURL == "" {
		o.ACSURL = acsURL
	}
	o.Audience = entityID
	return url.Values{"RelayState": {"https://portal.example.com/apps"}, "SAMLResponse": {f.idp.Response(o)}}
}

var shownCode = regexp.MustCompile(`>([A-Z2-9]{5}(?:-[A-Z2-9]{5}){3})<`)

// shown returns the sign-in code of a page.
func shown(t *testing.T, resp *engines.Response) string {
	t.Helper()
	m := shownCode.FindSubmatch(resp.Raw.Body)
	if m == nil {
		t.Fatalf("no code on the page:\n%s", resp.Raw.Body)
	}
	return string(m[1])
}

func (f *flow) enter(code string) (*engines.Response, error) {
	f.t.Helper()
	return f.do(engines.Update, "token", fields{"code": code})
}

func TestIDPInitiatedIsOffByDefault(t *testing.T) {
	f := newFlow(t, fields{"default_role": "dev"})
	before := len(f.Snapshot())
	_, err := f.post(f.unsolicited(samltest.Response{}))
	wantRefused(t, err, engines.KindInvalid, "unknown or expired login")
	if len(f.Snapshot()) != before {
		t.Error("it was stored")
	}
}

func TestIDPInitiatedLogin(t *testing.T) {
	f := newFlow(t, byIdP)
	for _, form := range []url.Values{f.unsolicited(samltest.Response{}), {"SAMLResponse": f.unsolicited(samltest.Response{})["SAMLResponse"]}} {
		resp, err := f.from("198.51.100.1").post(form)
		if err != nil {
			t.Fatalf("rejected: %v (%s)", err, reasonOf(err))
		}
		code := shown(t, resp)
		if !strings.Contains(string(resp.Raw.Body), "coffer login -method=saml code="+code) {
			t.Error("the page does not say what to do with the code")
		}
		if data := f.Data(resp); data["role"] != "dev" || data["idp_initiated"] != true || strings.Contains(strings.Join(f.log.lines, ""), code) {
			t.Errorf("the audit log gets %v", data)
		}
		typed := strings.ToLower(strings.ReplaceAll(code, "-", " "))
		resp, err = f.peer().enter(typed)
		if err != nil || resp.Auth.Login.Alias.Name != alice.Subject || resp.Auth.Login.Role != "dev" {
			t.Errorf("the code answers %+v, %v", resp, err)
		}
		_, err = f.enter(code)
		wantError(t, err, engines.KindInvalid)
	}
}

func TestIDPInitiatedCodeIsNoPollID(t *testing.T) {
	f := newFlow(t, byIdP)
	resp, err := f.post(f.unsolicited(samltest.Response{}))
	if err != nil {
		t.Fatal(err)
	}
	code := shown(t, resp)
	_, err = f.redeem(code)
	wantError(t, err, engines.KindInvalid)
	s := f.start(nil)
	f.confirm(s, alice)
	_, err = f.enter(s.poll) // without the verifier
	wantError(t, err, engines.KindInvalid)
	f.login(s.poll)
	if _, err = f.enter(code); err != nil {
		t.Error(err)
	}
}

func TestIDPInitiatedCodeExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(t, byIdP)
		resp, err := f.post(f.unsolicited(samltest.Response{}))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		_, err = f.enter(shown(t, resp))
		wantError(t, err, engines.KindInvalid)
	})
}

func TestIDPInitiatedRefusals(t *testing.T) {
	const other = "https://coffer2.example.com/v1/auth/saml/callback"
	f := newFlow(t, byIdP, fields{"acs_urls": []string{acsURL, other}})
	stolen := f.idp.Answer(f.start(nil).url, alice)
	stolen.Set("RelayState", "x")
	for name, test := range map[string]struct {
		form   url.Values
		kind   engines.Kind
		reason string
	}{
		"the answer to a request": {stolen, engines.KindInvalid, "in_response_to"},
		"sent elsewhere":          {f.unsolicited(samltest.Response{ACSURL: "https://evil.example.com/callback"}), engines.KindInvalid, "destination"},
		"not signed":              {f.unsolicited(samltest.Response{Unsigned: true}), engines.KindInvalid, "signature"},
		"not for the role":        {f.unsolicited(samltest.Response{User: samltest.User{Subject: "bob"}}), engines.KindDenied, "role"},
		"no XML":                  {url.Values{"SAMLResponse": {"!"}}, engines.KindInvalid, "encoding"},
	} {
		if _, err := f.post(test.form); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			wantRefused(t, err, test.kind, test.reason)
		}
	}
	if _, err := f.post(f.unsolicited(samltest.Response{ACSURL: other})); err != nil {
		t.Errorf("sent to the second of two URLs: %v (%s)", err, reasonOf(err))
	}
	once := f.unsolicited(samltest.Response{})
	if _, err := f.post(once); err != nil {
		t.Fatal(err)
	}
	_, err := f.peer().post(once)
	wantRefused(t, err, engines.KindInvalid, "used before")
	refused := f.unsolicited(samltest.Response{User: samltest.User{Subject: "bob"}})
	for _, want := range []string{"role", "used before"} {
		_, err = f.post(refused)
		wantError(t, err, map[string]engines.Kind{"role": engines.KindDenied, "used before": engines.KindInvalid}[want], want)
	}
}
