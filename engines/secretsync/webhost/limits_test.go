package webhost_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

func TestMissingPlace(t *testing.T) {
	for name, change := range map[string]func(*webhost.Config){
		"no project":      func(c *webhost.Config) { c.ProjectID = "prj_2" },
		"another team":    func(c *webhost.Config) { c.TeamID = "team_2" },
		"without a team":  func(c *webhost.Config) { c.TeamID = "" },
		"project by name": func(c *webhost.Config) { c.ProjectID = "nothing" },
	} {
		t.Run(name, func(t *testing.T) {
			s := webhosttest.New(t)
			s.AddProject("prj_1", "team_1")
			c := project("production")
			change(&c)
			d := openWith(t, c, desttest.At(s.URL))
			_, err := d.Read(t.Context(), "A")
			fails(t, err, destination.NoLocation)
			_, err = d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if e := fails(t, err, destination.NoLocation); e.Class != destination.Client || e.Unknown {
				t.Errorf("%+v", e)
			}
			other := openWith(t, project("production"), desttest.At(s.URL))
			write(t, other, "A", "the-value")
			fails(t, d.Delete(t.Context(), desttest.Read(t, other, "A")), destination.NoLocation)
			if checks := d.Verify(t.Context()); len(checks) != 2 || checks[1].OK || checks[1].Name != "read" {
				t.Errorf("verify: %+v", checks)
			}
		})
	}
}

// A token that may not see variables of production does not take them for absent.
func TestHiddenProduction(t *testing.T) {
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	s.Put("prj_1", "A", "theirs", "production")
	c := project("production")
	c.AccessToken = webhosttest.Narrow
	d := openWith(t, c, desttest.At(s.URL))
	_, err := d.Read(t.Context(), "A")
	fails(t, err, destination.Denied)
	if checks := d.Verify(t.Context()); checks[2].OK || checks[2].Name != "read" {
		t.Errorf("verify: %+v", checks)
	}
	c.Environments = []string{"development"}
	write(t, openWith(t, c, desttest.At(s.URL)), "A", "the-value")
	values(t, s, "A", map[string]string{"production": "theirs", "development": "the-value"})
}

func TestVerifyReadOnly(t *testing.T) {
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	c := project("production")
	c.AccessToken = webhosttest.ReadOnly
	checks := openWith(t, c, desttest.At(s.URL)).Verify(t.Context())
	if i := slices.IndexFunc(checks, func(c destination.Check) bool { return c.Name == "delete" }); i < 0 || checks[i].OK || checks[i].Unknown {
		t.Errorf("%+v", checks)
	}
	c.AccessToken = "wrong"
	checks = openWith(t, c, desttest.At(s.URL)).Verify(t.Context())
	if len(checks) != 2 || !checks[0].OK || checks[1].OK || checks[1].Name != "credentials" {
		t.Errorf("%+v", checks)
	}
}

func TestLimitsAreCheckedBeforeTheCall(t *testing.T) {
	s, d := rig(t, "production")
	was := desttest.Read(t, d, "A")
	s.Calls()
	for _, tt := range []struct{ name, value, code, text string }{
		{"A", strings.Repeat("v", 65537), destination.TooLarge, "65536"},
		{"A", "\xff", destination.BadRequest, "UTF-8"},
		{"A", "a\x00", destination.BadRequest, "NUL"},
		{"TZ", "v", destination.BadRequest, "reserved"},
		{"A-B", "v", destination.BadRequest, "letters"},
	} {
		_, err := d.Write(t.Context(), item(tt.name, tt.value), was)
		if e := fails(t, err, tt.code); !strings.Contains(e.Text, tt.text) || e.Class != destination.Client {
			t.Errorf("%+v", e)
		}
	}
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

// The vendor counts all variables together.
func TestTotal(t *testing.T) {
	s, d := rig(t, "production")
	s.Put("prj_1", "B", strings.Repeat("b", 60000), "production")
	_, err := d.Write(t.Context(), item("A", strings.Repeat("v", 6000)), desttest.Read(t, d, "A"))
	if e := fails(t, err, destination.Quota); e.Class != destination.Client || !strings.Contains(e.Text, "64 KB") {
		t.Errorf("%+v", e)
	}
}

func TestDeleteWithoutHandle(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
	was.Handle = nil
	stale := was
	stale.Version = "1"
	fails(t, d.Delete(t.Context(), stale), destination.Changed)
	if err := d.Delete(t.Context(), was); err != nil || len(s.Variables("prj_1", "A")) > 0 {
		t.Errorf("%v, left %v", err, s.Variables("prj_1", "A"))
	}
}
