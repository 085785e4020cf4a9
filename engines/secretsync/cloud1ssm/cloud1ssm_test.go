package cloud1ssm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm/cloud1ssmtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// refusal is one of the service, whatever was asked. It is as talkative as can be.
func refusal(status int, code string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "Message": string(body) + r.Header.Get("Authorization")})
	}
}

// fake is the fake for the suite, with faults in front.
type fake struct {
	*cloud1ssmtest.Server
	faults *desttest.Faults
	url    string
}

func newFake(t *testing.T) desttest.Fake {
	f := &fake{Server: cloud1ssmtest.New(t, 30)}
	f.faults = &desttest.Faults{
		Next: f.Server,
		Reads: func(r *http.Request, _ []byte) bool {
			_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			return slices.Contains([]string{"GetParameter", "DescribeParameters", "ListTagsForResource"}, action)
		},
		Troubled: refusal(http.StatusInternalServerError, "InternalServerError"),
		Rejected: refusal(http.StatusBadRequest, "AccessDeniedException"),
	}
	front := httptest.NewServer(f.faults)
	t.Cleanup(front.Close)
	f.url = front.URL
	return f
}

func (f *fake) Open(t *testing.T) destination.Destination {
	return open(t, f.Server, destination.Env{URL: f.url}, func(c *cloud1ssm.Config) { c.Tier = "Intelligent-Tiering" })
}

func (f *fake) Put(_ *testing.T, name, value string) { f.Server.Put(name, value) }

func (f *fake) Get(_ *testing.T, name string) (string, bool) { return f.Server.Get(name) }

func (f *fake) Fail(fault desttest.Fault) { f.faults.Set(fault) }

func (f *fake) Secrets() []string {
	id, secret := f.Root()
	return []string{id, secret}
}

func TestDestination(t *testing.T) { desttest.Run(t, cloud1ssm.Type, newFake) }

func TestClose(t *testing.T) {
	desttest.Closes(t, cloud1ssm.Type, &cloud1ssm.Config{Account: cloud1.Account{AccessKeyID: "AKIA", SecretAccessKey: "secret", Region: "eu-central-1"}}, destination.Env{})
}

func open(t *testing.T, s *cloud1ssmtest.Server, env destination.Env, change func(*cloud1ssm.Config)) destination.Destination {
	t.Helper()
	id, secret := s.Root()
	c := &cloud1ssm.Config{Account: cloud1.Account{AccessKeyID: engines.Sensitive(id), SecretAccessKey: engines.Sensitive(secret), Region: s.Region}}
	if change != nil {
		change(c)
	}
	if problems := c.Check(); problems != nil {
		t.Fatal(problems)
	}
	env.Client = &http.Client{}
	t.Cleanup(env.Client.CloseIdleConnections)
	if env.URL == "" {
		env.URL = s.URL
	}
	d, err := cloud1ssm.Type.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const (
	ourTag = "instance-association"
	name   = "/vault/kv_1234/my-secret"
)

func item(value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: ourTag, Token: strings.Repeat("0", 32)}
}

func read(t *testing.T, d destination.Destination) destination.Found {
	t.Helper()
	f, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, d destination.Destination, it destination.Item) destination.Held {
	t.Helper()
	held, err := d.Write(t.Context(), it, read(t, d))
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// rejected checks how a write of what is read just now fails.
func rejected(t *testing.T, d destination.Destination, it destination.Item, code string, words ...string) {
	t.Helper()
	_, err := d.Write(t.Context(), it, read(t, d))
	failed(t, err, code, words...)
}

func failed(t *testing.T, err error, code string, words ...string) *destination.Error {
	t.Helper()
	e, ok := errors.AsType[*destination.Error](err)
	if !ok {
		t.Fatalf("failed with %T %v, want code %s", err, err, code)
	}
	if e.Code != code {
		t.Errorf("failed with %s (%s), want %s", e.Code, e.Text, code)
	}
	for _, word := range words {
		if !strings.Contains(e.Text, word) {
			t.Errorf("%q does not say %q", e.Text, word)
		}
	}
	return e
}

func TestCheck(t *testing.T) {
	in := func(change func(*cloud1ssm.Config)) *cloud1ssm.Config {
		c := &cloud1ssm.Config{Account: cloud1.Account{Region: "eu-central-1"}}
		change(c)
		return c
	}
	for _, test := range []struct {
		config *cloud1ssm.Config
		want   string // what the first problem has; "" for none
	}{
		{in(func(*cloud1ssm.Config) {}), ""},
		{in(func(c *cloud1ssm.Config) {
			c.Tier, c.ParameterType, c.KMSKeyID = " Advanced ", "SecureString", "alias/mine"
		}), ""},
		{in(func(c *cloud1ssm.Config) { c.ParameterType, c.Tier = "String", "Intelligent-Tiering" }), ""},
		{in(func(c *cloud1ssm.Config) { c.Tier = "advanced" }), "tier: must be Standard, Advanced or Intelligent-Tiering"},
		{in(func(c *cloud1ssm.Config) { c.ParameterType = "StringList" }), "parameter_type: must be SecureString or String"},
		{in(func(c *cloud1ssm.Config) { c.ParameterType, c.KMSKeyID = "String", "alias/mine" }), "kms_key_id: is for the parameter_type SecureString"},
		{in(func(c *cloud1ssm.Config) { c.KMSKeyID = "arn:aws:kms:us-east-1:123456789012:key/1" }), "kms_key_id: is a key in region us-east-1"},
		{in(func(c *cloud1ssm.Config) { c.AccessKeyID = "AKIA" }), "secret_access_key: is missing"},
		{in(func(c *cloud1ssm.Config) { c.IdentityAudience = "a" }), "role_arn: is missing"},
	} {
		problems := test.config.Check()
		if test.want == "" && problems != nil || test.want != "" && (len(problems) != 1 || !strings.HasPrefix(problems[0], test.want)) {
			t.Errorf("problems are %q, want %q", problems, test.want)
		}
	}
	c := in(func(c *cloud1ssm.Config) {
		c.AccessKeyID, c.SecretAccessKey, c.Tier = "AKIASP2TPHJSQH3FJXYZ", "secret", "Advanced"
	})
	if got := c.Location(); got != "cloud1-ssm/171436882533/eu-central-1" {
		t.Errorf("the location is %s", got)
	}
	want := map[string]any{"region": "eu-central-1", "tier": "Advanced", "parameter_type": "SecureString", "access_key_id": "*****", "secret_access_key": "*****"}
	if got := c.Shown(); !maps.Equal(got, want) {
		t.Errorf("shown are %v, want %v", got, want)
	}
}

func TestNames(t *testing.T) {
	r := cloud1ssm.Type.Rules
	for name, legal := range map[string]bool{
		"one": true, "/one": true, "/a/b_c.d-E/0": true, "/a" + strings.Repeat("/b", 14): true, strings.Repeat("n", 950): true, "/team/aws": true,
		"": false, "/": false, "a/b": false, "/a//b": false, "//a": false, "/a/": false, "/a" + strings.Repeat("/b", 15): false, "a b": false, "ü": false,
		strings.Repeat("n", 951): false, "aws": false, "/AWS/x": false, "ssm-x": false, "/Ssm": false,
	} {
		if problem := r.CheckName(name); (problem == "") != legal {
			t.Errorf("%.40q: %q, legal %v", name, problem, legal)
		}
	}
	for from, want := range map[string]string{"a/b c": "/a/b-c", "/a/ü": "/a/-", "a b": "a-b", "vault/kv/x": "/vault/kv/x"} {
		if got := r.Normalise(from); got != want {
			t.Errorf("%q becomes %q, want %q", from, got, want)
		}
	}
}

// TestTiers: the tier says how long a value may be, and is never lowered.
func TestTiers(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	tier := func(tier string) destination.Destination {
		return open(t, s, destination.Env{}, func(c *cloud1ssm.Config) { c.Tier = tier })
	}
	is := func(want string) {
		t.Helper()
		if p, _ := s.Parameter(name); p.Tier != want {
			t.Errorf("the tier is %q, want %q", p.Tier, want)
		}
	}
	small, large := strings.Repeat("v", 4096), strings.Repeat("ü", 4096)
	rejected(t, tier(""), item(small+"v"), destination.TooLarge, "4096", "has 4097", "Advanced or Intelligent-Tiering", "8192")
	rejected(t, tier("Standard"), item(large), destination.TooLarge, "4096")
	rejected(t, tier("Advanced"), item(large+"v"), destination.TooLarge, "8192")
	write(t, tier(""), item(small))
	is("Standard")
	write(t, tier("Intelligent-Tiering"), item("small"))
	is("Standard")
	write(t, tier("Intelligent-Tiering"), item(large))
	is("Advanced")
	write(t, tier(""), item(large))
	is("Advanced")
	rejected(t, tier("Standard"), item("small"), destination.BadRequest, "does not turn it into Standard", "set tier to Advanced")

	s.Drop(name)
	held := write(t, tier("Standard"), item("small"))
	if again := write(t, tier(""), item("small")); again != held {
		t.Error("the same value makes a version")
	}
	if again := write(t, tier("Advanced"), item("small")); again == held { // AWS changes a tier with a version only
		t.Error("it keeps its version")
	}
	is("Advanced")
}

// TestKeys: existing parameters are encrypted again with a key, and keep theirs without one.
func TestKeys(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	with := func(key string) destination.Destination {
		return open(t, s, destination.Env{}, func(c *cloud1ssm.Config) { c.KMSKeyID = key })
	}
	is := func(want string) {
		t.Helper()
		if p, _ := s.Parameter(name); p.KeyID != want || p.Type != "SecureString" {
			t.Errorf("%s with the key %q, want %q", p.Type, p.KeyID, want)
		}
	}
	write(t, with(""), item("one"))
	is("alias/aws/ssm")
	held := write(t, with("alias/mine"), item("one"))
	is("alias/mine")
	if again := write(t, with("arn:aws:kms:eu-central-1:123456789012:alias/mine"), item("one")); again != held {
		t.Error("the same key makes a version")
	}
	write(t, with(""), item("two"))
	is("alias/mine")
	e := failed(t, func() error {
		_, err := with("alias/disabled").Write(t.Context(), item("three"), read(t, with("")))
		return err
	}(), destination.BadRequest, "kms_key_id")
	if e.Unknown {
		t.Error("a rejected key may have written")
	}
}

// TestTypes: a String is one only if the configuration says so, and no parameter changes its type.
func TestTypes(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	plain := open(t, s, destination.Env{}, func(c *cloud1ssm.Config) { c.ParameterType = "String" })
	write(t, plain, item("one"))
	write(t, plain, item("two"))
	if p, _ := s.Parameter(name); p.Type != "String" || p.KeyID != "" {
		t.Errorf("it is a %s with the key %q", p.Type, p.KeyID)
	}
	secure := open(t, s, destination.Env{}, nil)
	rejected(t, secure, item("three"), destination.BadRequest, "is a String", "does not turn it into a SecureString")
	if got, _ := s.Get(name); got != "two" {
		t.Errorf("it holds %q", got)
	}
	var one, two cloud1ssm.Config
	two.ParameterType = "String"
	a, why := one.Fixed()
	if b, _ := two.Fixed(); a == b || !strings.Contains(why, "AWS does not change the type") {
		t.Errorf("fixed are %q and %q, because %q", a, b, why)
	}
}

func TestValues(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	for value, word := range map[string]string{"": "no empty value", "\xff": "not UTF-8", "a {{ssm:other}}": "{{ and }}", "{{\n}}": "{{ and }}"} {
		rejected(t, d, item(value), destination.BadRequest, word)
	}
	for _, value := range []string{`{"a":{"b":{"c":1}}}`, "{{", "}} {{"} {
		write(t, d, item(value))
	}
	calls := s.Actions()
	if slices.Contains(calls, "AddTagsToResource") {
		t.Errorf("called %q", calls)
	}
}

// TestVersions: AWS removes the oldest of 100 versions unless a client has labelled it.
func TestVersions(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	for i := range 101 {
		write(t, d, item(fmt.Sprint(i)))
	}
	if p, _ := s.Parameter(name); p.Version != 101 || len(p.Modified) != 100 {
		t.Errorf("version %d, %d are kept", p.Version, len(p.Modified))
	}
	s.Label(name)
	for i := range 99 {
		write(t, d, item(fmt.Sprint("again ", i)))
	}
	rejected(t, d, item("more"), destination.Quota, "100 versions", "labelled it", "move that label", "ParameterMaxVersionLimitExceeded")
	s.Fill(true)
	s.Drop(name)
	rejected(t, d, item("more"), destination.Quota, "as many parameters", "Advanced")
}

// TestCreatedAgain: a parameter that was deleted and created again is another version, though AWS counts from 1.
func TestCreatedAgain(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	held := write(t, d, item("one"))
	s.Drop(name)
	s.Put(name, "theirs")
	for f, err := range d.List(t.Context()) {
		if err != nil || f.ID != held.ID || f.Version == held.Version || f.Version != read(t, d).Version {
			t.Errorf("listed as %+v, %v; it was %+v", f, err, held)
		}
	}
}

// TestMeanwhile is what another client does in the middle of a write.
func TestMeanwhile(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	during := func(action string, do func()) {
		s.Fail(func(c cloud1ssmtest.Call) awstest.Fault {
			if c.Action == action {
				s.Fail(nil)
				do()
			}
			return awstest.Fault{}
		})
	}
	it := item("two")
	it.Tags = map[string]string{"team": "payments"}
	was := read(t, d)
	during("AddTagsToResource", func() { s.Drop(name) })
	_, err := d.Write(t.Context(), it, was)
	failed(t, err, destination.Changed)

	write(t, d, item("one"))
	was = read(t, d)
	during("PutParameter", func() { s.Drop(name) })
	if _, err := d.Write(t.Context(), it, was); err != nil {
		t.Fatal(err)
	}
	if f := read(t, d); f.OwnerTag != ourTag || string(f.Value) != "two" { // with all that it has
		t.Errorf("found %+v", f)
	}
	was = read(t, d)
	during("DescribeParameters", func() { s.Put(name, "theirs") })
	_, err = d.Write(t.Context(), item("three"), was)
	failed(t, err, destination.Changed)
	was = read(t, d)
	s.Change(name, func(p *cloud1ssmtest.Parameter) { p.Tags["coffer:sync"] = "another" })
	failed(t, d.Delete(t.Context(), was), destination.Changed)
	during("ListTagsForResource", func() { s.Drop(name) })
	if f := read(t, d); f.State != destination.Absent {
		t.Errorf("found %+v", f)
	}
}

// TestUnreadable: without the use of the key, all but the value is known.
func TestUnreadable(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	held := write(t, d, item("one"))
	s.Seal(true)
	if f := read(t, d); f.State != destination.Present || f.Known || f.Value != nil || f.OwnerTag != ourTag || f.Version != held.Version {
		t.Errorf("found %+v", f)
	}
	write(t, d, item("two"))
}

func TestTags(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	d := open(t, s, destination.Env{}, nil)
	it := item("one")
	it.Tags = map[string]string{"team": "payments", "stage": "test"}
	write(t, d, it)
	s.Change(name, func(p *cloud1ssmtest.Parameter) {
		for i := range 47 {
			p.Tags[fmt.Sprint("theirs ", i)] = "x"
		}
	})
	it.Tags, it.OldTags = map[string]string{"team": "payments", "new": "1"}, []string{"stage", "coffer:sync"}
	s.Actions()
	write(t, d, it)
	if got, want := s.Actions(), []string{"GetParameter", "ListTagsForResource", "DescribeParameters", "RemoveTagsFromResource", "AddTagsToResource"}; !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
	it.Tags = map[string]string{"one more": "", "another": ""}
	it.OldTags = nil
	rejected(t, d, it, destination.Quota, "at most 50 tags")
}

// TestListThatGoesInCircles gives the same page over and over.
func TestListThatGoesInCircles(t *testing.T) {
	pages := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		pages++
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		if pages > 10 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, `{"Parameters":[],"NextToken":"again"}`)
	}))
	defer other.Close()
	for _, err := range open(t, cloud1ssmtest.New(t, 50), destination.Env{URL: other.URL}, nil).List(t.Context()) {
		failed(t, err, destination.Unexpected)
	}
	if pages != 2 {
		t.Errorf("%d pages", pages)
	}
}

func TestVerify(t *testing.T) {
	named := []string{"GetParameter", "ListTagsForResource", "AddTagsToResource", "RemoveTagsFromResource", "DeleteParameter"}
	for _, test := range []struct {
		name   string
		denied []string
		want   string
	}{
		{"all allowed", nil, "+reachable +clock +credentials +read ?create ?write +delete +tags"},
		{"no list", []string{"DescribeParameters"}, "+reachable +clock +credentials -read ?create ?write +delete +tags"},
		{"no tags", []string{"RemoveTagsFromResource"}, "+reachable +clock +credentials +read ?create ?write +delete -tags"},
		{"no deletion", []string{"DeleteParameter"}, "+reachable +clock +credentials +read ?create ?write -delete +tags"},
		{"other names", named, "+reachable +clock +credentials ?read ?create ?write ?delete ?tags"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cloud1ssmtest.New(t, 50)
			s.Deny(func(action, _ string) bool { return slices.Contains(test.denied, action) })
			var all []string
			for _, c := range open(t, s, destination.Env{}, nil).Verify(t.Context()) {
				sign := "-"
				if c.OK {
					sign = "+"
				} else if c.Unknown {
					sign = "?"
				}
				all = append(all, sign+c.Name)
			}
			if got := strings.Join(all, " "); got != test.want {
				t.Errorf("verify says %s, want %s", got, test.want)
			}
			for _, c := range s.Calls() {
				if c.SecretID != "" && !strings.HasPrefix(c.SecretID, "/vault/coffer-verify-") || c.Action == "PutParameter" {
					t.Errorf("verify calls %+v", c)
				}
			}
		})
	}
}

// TestIdentity: the account is that of cloud1-sm: a role by the identity token of this server.
func TestIdentity(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	role := s.STS.AddRole(awstest.Role{Name: "sync", WebIdentity: func(got string) (code, reason string) {
		if got != "token-for-sts.amazonaws.com" {
			return "InvalidIdentityToken", "another one"
		}
		return "", ""
	}})
	issuing := func(_ context.Context, audience string, _ time.Duration) (string, error) {
		return "token-for-" + audience, nil
	}
	d := open(t, s, destination.Env{IdentityToken: issuing}, func(c *cloud1ssm.Config) {
		c.AccessKeyID, c.SecretAccessKey, c.IdentityAudience, c.RoleARN = "", "", "sts.amazonaws.com", role
	})
	write(t, d, item("one"))
	if got, _ := s.Get(name); got != "one" {
		t.Errorf("it holds %q", got)
	}
}

// TestSomethingElse is at the address: nothing it says passes for success.
func TestSomethingElse(t *testing.T) {
	s := cloud1ssmtest.New(t, 50)
	was := destination.Found{Name: name, State: destination.Present, ID: name, Version: "1.1", Handle: nil}
	for _, page := range []struct{ kind, body string }{
		{"text/html", "<html>Welcome</html>"},
		{"application/x-amz-json-1.1", "<html>"},
		{"application/x-amz-json-1.1", "{}"},
		{"application/x-amz-json-1.1", `{"Parameter":{"Name":"/other","Version":1,"LastModifiedDate":1}}`},
		{"application/x-amz-json-1.1", strings.Repeat(" ", 9<<20)},
	} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", page.kind)
			_, _ = io.WriteString(w, page.body)
		}))
		d := open(t, s, destination.Env{URL: other.URL}, nil)
		_, err := d.Read(t.Context(), name)
		failed(t, err, destination.Unexpected)
		_, err = d.Write(t.Context(), item("one"), destination.Found{Name: name})
		if e := failed(t, err, destination.Unexpected); !e.Unknown {
			t.Errorf("%.20q: the write may have been done", page.body)
		}
		if _, err := d.Write(t.Context(), item("one"), was); err == nil {
			t.Errorf("%.20q passes for a write", page.body)
		}
		other.Close()
	}
}
