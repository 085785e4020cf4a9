package gitlab_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab/gitlabtest"
)

const (
	mark    = "0123456789abcdef-fedcba"
	project = "projects/acme/web"
)

func config() gitlab.Config {
	return gitlab.Config{AccessToken: gitlabtest.Token, ProjectID: "acme/web", Scope: "production", Raw: true}
}

func openWith(t *testing.T, c gitlab.Config, env destination.Env) destination.Destination {
	t.Helper()
	return desttest.Open(t, gitlab.Type, &c, env)
}

func rig(t *testing.T, c gitlab.Config) (*gitlabtest.Server, destination.Destination) {
	t.Helper()
	s := gitlabtest.New(t)
	s.Add("projects", "acme/web")
	return s, openWith(t, c, desttest.At(s.URL))
}

func fails(t *testing.T, err error, code string) *destination.Error {
	t.Helper()
	return desttest.Fails(t, err, code, gitlabtest.Token)
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: strings.Repeat("0", 36)}
}

type fake struct {
	*gitlabtest.Server
	of, scope string
	conf      gitlab.Config
}

func (f *fake) Open(t *testing.T) destination.Destination {
	return openWith(t, f.conf, desttest.At(f.URL))
}
func (f *fake) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	return openWith(t, f.conf, desttest.Through(h, f.URL))
}

func (f *fake) EndlessLists() map[string]func(*http.Request, int) (http.Header, string) {
	return map[string]func(*http.Request, int) (http.Header, string){"always another page": func(_ *http.Request, n int) (http.Header, string) {
		return http.Header{"X-Next-Page": {strconv.Itoa(n + 1)}}, `[{"key":"A","environment_scope":"*"}]`
	}}
}
func (f *fake) Put(_ *testing.T, name, value string)         { f.Server.Put(f.of, name, f.scope, value) }
func (f *fake) Get(_ *testing.T, name string) (string, bool) { return f.Value(f.of, name, f.scope) }
func (f *fake) Fail(fault desttest.Fault)                    { f.Faults.Set(fault) }
func (f *fake) Secrets() []string                            { return []string{gitlabtest.Token} }

func TestDestination(t *testing.T) {
	group := config()
	group.ProjectID, group.GroupID, group.Scope = "", "acme", "*"
	for name, conf := range map[string]gitlab.Config{"project": config(), "group": group} {
		t.Run(name, func(t *testing.T) {
			desttest.Run(t, gitlab.Type, func(t *testing.T) desttest.Fake {
				s := gitlabtest.New(t)
				s.Add("projects", "acme/web")
				s.Add("groups", "acme")
				of := project
				if conf.GroupID != "" {
					of = "groups/acme"
				}
				return &fake{s, of, conf.Scope, conf}
			})
		})
	}
}

// Variables of other scopes are other variables.
func TestScopes(t *testing.T) {
	s, d := rig(t, config())
	for _, scope := range []string{"*", "staging"} {
		s.Put(project, "A", scope, "theirs")
	}
	if f := desttest.Read(t, d, "A"); f.State != destination.Absent {
		t.Fatalf("found %+v", f)
	}
	desttest.Write(t, d, item("A", "the-value"))
	desttest.Write(t, d, item("A", "the-value-2"))
	names := 0
	for f, err := range d.List(t.Context()) {
		if names++; err != nil || f.OwnerTag != mark {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if err := d.Delete(t.Context(), desttest.Read(t, d, "A")); err != nil || names != 1 {
		t.Errorf("%v, %d names", err, names)
	}
	for _, scope := range []string{"*", "staging"} {
		if got, _ := s.Value(project, "A", scope); got != "theirs" {
			t.Errorf("%s has %q", scope, got)
		}
	}
}

func TestAttributes(t *testing.T) {
	c := config()
	c.Masked, c.Protected, c.VariableType = true, true, "file"
	s, d := rig(t, c)
	desttest.Write(t, d, item("A", "the-value"))
	v, _ := s.Get(project, "A", "production")
	if !v.Masked || !v.Protected || !v.Raw || v.Type != "file" || v.Description == nil || !strings.Contains(*v.Description, mark) || len(*v.Description) > 255 {
		t.Errorf("%+v", v)
	}
	// A change of anything shows, in the list, too.
	was := desttest.Read(t, d, "A")
	for name, change := range map[string]func(*gitlabtest.Variable){
		"unmasked":    func(v *gitlabtest.Variable) { v.Masked = false },
		"unprotected": func(v *gitlabtest.Variable) { v.Protected = false },
		"value":       func(v *gitlabtest.Variable) { value := "theirs"; v.Value = &value },
	} {
		s.Change(project, "A", "production", change)
		now := desttest.Read(t, d, "A")
		if now.Version == was.Version || now.OwnerTag != mark {
			t.Errorf("%s: %+v", name, now)
		}
		for f := range d.List(t.Context()) {
			if f.Version != now.Version {
				t.Errorf("%s: listed as %+v", name, f)
			}
		}
		was = now
	}
}

func TestMasks(t *testing.T) {
	for name, tt := range map[string]struct {
		raw   bool
		value string
		legal bool
	}{
		"raw": {true, `{"a":"the-value"}`, true}, "short": {true, "seven77", false}, "blank": {true, "the value is", false}, "lines": {true, "the-value\nis", false},
		"expanded": {false, "the-value", true}, "expanded, odd": {false, `the"value"`, false},
	} {
		c := config()
		c.Masked, c.Raw = true, tt.raw
		s, d := rig(t, c)
		s.Calls()
		_, err := d.Write(t.Context(), item("A", tt.value), destination.Found{Name: "A"})
		if tt.legal && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !tt.legal {
			if e := fails(t, err, destination.BadRequest); !strings.Contains(e.Text, "mask") || len(s.Calls()) > 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
}

// An instance without descriptions cannot say what is ours.
func TestOldVersion(t *testing.T) {
	s, d := rig(t, config())
	s.Old()
	_, err := d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
	if e := fails(t, err, destination.BadRequest); e.Unknown || !strings.Contains(e.Text, "16.2") {
		t.Errorf("%+v", e)
	}
	if _, ok := s.Get(project, "A", "production"); ok {
		t.Error("it is left there")
	}
}

func TestHidden(t *testing.T) {
	s, d := rig(t, config())
	s.Put(project, "A", "production", "theirs")
	s.Change(project, "A", "production", func(v *gitlabtest.Variable) { v.Value, v.Hidden = nil, true })
	if f := desttest.Read(t, d, "A"); f.Known || f.State != destination.Present {
		t.Errorf("%+v", f)
	}
}

func TestChangedInBetween(t *testing.T) {
	s, d := rig(t, config())
	desttest.Write(t, d, item("A", "the-value"))
	was := desttest.Read(t, d, "A")
	s.Put(project, "A", "production", "theirs")
	_, err := d.Write(t.Context(), item("A", "the-value-2"), was)
	fails(t, err, destination.Changed)
	fails(t, d.Delete(t.Context(), was), destination.Changed)
	s, d = rig(t, config())
	_, err = d.Write(t.Context(), item("A", "the-value-2"), was)
	fails(t, err, destination.Changed)
	if calls := s.Calls(); len(calls) != 1 {
		t.Errorf("calls %q", calls)
	}
}

func TestVerify(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*gitlab.Config)
		expires string
		want    string
	}{
		"fine":        {func(*gitlab.Config) {}, "", ""},
		"long":        {func(*gitlab.Config) {}, gitlabtest.Day(90 * 24 * time.Hour), ""},
		"soon":        {func(*gitlab.Config) {}, gitlabtest.Day(3 * 24 * time.Hour), "expiry"},
		"read only":   {func(c *gitlab.Config) { c.AccessToken = gitlabtest.ReadOnly }, "", "write"},
		"wrong":       {func(c *gitlab.Config) { c.AccessToken = "wrong" }, "", "credentials"},
		"no project":  {func(c *gitlab.Config) { c.ProjectID = "acme/none" }, "", "read"},
		"not a group": {func(c *gitlab.Config) { c.ProjectID, c.GroupID = "", "acme/web" }, "", "read"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tt.change(&c)
			s, d := rig(t, c)
			s.Expires(tt.expires)
			failing := ""
			for _, check := range d.Verify(t.Context()) {
				if !check.OK && !check.Unknown {
					failing = check.Name
				}
			}
			if failing != tt.want {
				t.Errorf("%q fails", failing)
			}
			_, err := d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if allowed := tt.want == "" || tt.want == "expiry"; (err == nil) != allowed {
				t.Errorf("writing: %v", err)
			}
		})
	}
}

func TestWire(t *testing.T) {
	open := func(env destination.Env) destination.Destination { return openWith(t, config(), env) }
	desttest.Unreachable(t, open, gitlabtest.Token)
	desttest.Blocked(t, open, func(r *http.Request) bool {
		return r.URL.String() == "https://gitlab.com/api/v4/projects/acme%2Fweb/variables/A?filter%5Benvironment_scope%5D=production"
	}, gitlabtest.Token)
	c := config()
	desttest.Closes(t, gitlab.Type, &c, destination.Env{})
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*gitlab.Config)
		want   string // a part of the only problem
	}{
		"as it is":    {func(*gitlab.Config) {}, ""},
		"a number":    {func(c *gitlab.Config) { c.ProjectID = "42" }, ""},
		"no project":  {func(c *gitlab.Config) { c.ProjectID = "" }, "project_id or group_id"},
		"both":        {func(c *gitlab.Config) { c.GroupID = "acme" }, "project_id or group_id"},
		"a traversal": {func(c *gitlab.Config) { c.ProjectID = "acme/../x" }, "project_id must be"},
		"an address":  {func(c *gitlab.Config) { c.ProjectID = "https://gitlab.com/acme" }, "project_id must be"},
		"no token":    {func(c *gitlab.Config) { c.AccessToken = "" }, "access_token must be given"},
		"a file":      {func(c *gitlab.Config) { c.AccessToken = "@token" }, "command line"},
		"without TLS": {func(c *gitlab.Config) { c.BaseURL = "http://gitlab.example.com" }, "base_url"},
		"a scope":     {func(c *gitlab.Config) { c.Scope = "a&b" }, "environment_scope"},
	} {
		c := config()
		tt.change(&c)
		got := strings.Join(c.Check(), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	c := config()
	c.Check()
	want := map[string]any{
		"access_token": destination.Mask, "project_id": "acme/web", "environment_scope": "production", "protected": false, "masked": false, "raw": true, "variable_type": "env_var",
	}
	if got := c.Shown(); !reflect.DeepEqual(got, want) {
		t.Errorf("shown as %v", got)
	}
}

// TestNonsense: a response that is no list is not one without names, as all of which would then have drifted.
func TestNonsense(t *testing.T) {
	for _, body := range []string{"null", "{}", "5", "[{}]", "[null]"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		t.Cleanup(server.Close)
		d := openWith(t, config(), destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: server.URL})
		failed := false
		for f, err := range d.List(t.Context()) {
			failed = err != nil
			if err == nil {
				t.Errorf("%s has the name %q", body, f.Name)
			}
		}
		if !failed {
			t.Errorf("%s is taken for a list", body)
		}
		if f, err := d.Read(t.Context(), "name"); err == nil {
			t.Errorf("%s is taken for %+v", body, f)
		}
	}
}
