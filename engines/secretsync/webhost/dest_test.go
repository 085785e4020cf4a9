package webhost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

const mark = "0123456789abcdef-fedcba"

var all = []string{"production", "preview", "development"}

func environment(s *webhosttest.Server) destination.Env {
	return destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: s.URL, Getenv: func(string) string { return "" }}
}

func openWith(t *testing.T, c webhost.Config, env destination.Env) destination.Destination {
	t.Helper()
	if p := c.Check(); p != nil {
		t.Fatal(p)
	}
	d, err := webhost.Type.Open(&c, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(env.Client.CloseIdleConnections)
	return d
}

// rig is a project with a destination for some of its environments.
func rig(t *testing.T, environments ...string) (*webhosttest.Server, destination.Destination) {
	t.Helper()
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	return s, openWith(t, project(environments...), environment(s))
}

func fails(t *testing.T, err error, code string) *destination.Error {
	t.Helper()
	var e *destination.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error %v, want code %q", err, code)
	}
	for _, secret := range []string{webhosttest.Token, "the-value"} {
		if strings.Contains(fmt.Sprintf("%v %+v %v", err, *e, e.Err), secret) {
			t.Errorf("an error of code %q tells a secret", code)
		}
	}
	return e
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), Mark: mark, Token: strings.Repeat("0", 36)}
}

func read(t *testing.T, d destination.Destination, name string) destination.Found {
	t.Helper()
	f, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, d destination.Destination, name, value string) destination.Held {
	t.Helper()
	held, err := d.Write(t.Context(), item(name, value), read(t, d, name))
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// values says what deployments to each environment must have, "" for nothing.
func values(t *testing.T, s *webhosttest.Server, name string, want map[string]string) {
	t.Helper()
	for target, value := range want {
		if got, _ := s.Get("prj_1", name, target); got != value {
			t.Errorf("%s of %s is %q, want %q", name, target, got, value)
		}
	}
}

// place is a project in the suite.
type place struct {
	*webhosttest.Server
	conf webhost.Config
}

func (p *place) Open(t *testing.T) destination.Destination {
	return openWith(t, p.conf, environment(p.Server))
}
func (p *place) Put(_ *testing.T, name, value string) {
	p.Server.Put("prj_1", name, value, p.conf.Environments...)
}
func (p *place) Get(t *testing.T, name string) (string, bool) {
	value, ok := p.Server.Get("prj_1", name, p.conf.Environments[0])
	for _, target := range p.conf.Environments[1:] {
		if v, has := p.Server.Get("prj_1", name, target); v != value || has != ok {
			t.Errorf("%s differs between environments", name)
		}
	}
	return value, ok
}
func (p *place) Fail(f desttest.Fault) { p.Faults.Set(f) }
func (p *place) Secrets() []string     { return []string{webhosttest.Token} }

func TestDestination(t *testing.T) {
	for _, environments := range [][]string{{"production"}, {"development"}, all} {
		t.Run(strings.Join(environments, "+"), func(t *testing.T) {
			desttest.Run(t, webhost.Type, func(t *testing.T) desttest.Place {
				s := webhosttest.New(t)
				s.AddProject("prj_1", "team_1")
				return &place{s, project(environments...)}
			})
		})
	}
}

// Production and preview are sensitive; development cannot be.
func TestTypesOfRecords(t *testing.T) {
	for _, tt := range []struct{ environments, want string }{
		{"production", "sensitive[production]"},
		{"preview,production", "sensitive[production preview]"},
		{"development", "encrypted[development]"},
		{"development,preview,production", "sensitive[production preview] encrypted[development]"},
	} {
		s, d := rig(t, strings.Split(tt.environments, ",")...)
		write(t, d, "A", "the-value")
		write(t, d, "A", "the-value-2")
		var got []string
		for _, v := range s.Variables("prj_1", "A") {
			got = append(got, v.Type+fmt.Sprint(v.Target))
			if v.Value != "the-value-2" || strings.Contains(v.Comment, "the-value") || !strings.Contains(v.Comment, mark) {
				t.Errorf("%+v", v)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", tt.environments, got, tt.want)
		}
	}
}

// The name of somebody else in one environment only lets none of a name be created.
func TestHalfTaken(t *testing.T) {
	for name, taken := range map[string]struct {
		target string
		status int
		code   string
	}{
		"development":        {"development", 403, "ENV_ALREADY_EXISTS"},
		"production":         {"production", 403, "ENV_ALREADY_EXISTS"},
		"by the newest code": {"production", 400, "ENV_CONFLICT"},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := rig(t, all...)
			s.Taken(taken.status, taken.code)
			was := read(t, d, "A")
			id := s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "encrypted", Target: []string{taken.target}})
			_, err := d.Write(t.Context(), item("A", "the-value"), was)
			if e := fails(t, err, destination.Exists); e.Unknown {
				t.Error("what was made has been taken back")
			}
			if vars := s.Variables("prj_1", "A"); len(vars) != 1 || vars[0].ID != id || vars[0].Value != "theirs" {
				t.Errorf("left: %+v", vars)
			}
		})
	}
}

func TestTakenWhole(t *testing.T) {
	for _, taken := range []struct {
		status int
		code   string
	}{{403, "ENV_ALREADY_EXISTS"}, {400, "ENV_CONFLICT"}, {409, "ENV_CONFLICT"}} {
		s, d := rig(t, "production")
		s.Taken(taken.status, taken.code)
		was := read(t, d, "A")
		s.Put("prj_1", "A", "theirs", "production")
		_, err := d.Write(t.Context(), item("A", "the-value"), was)
		if e := fails(t, err, destination.Exists); e.Unknown {
			t.Error("nothing was written")
		}
		values(t, s, "A", map[string]string{"production": "theirs"})
	}
}

// Taking back what was made of a name can fail; then it is not known.
func TestHalfTakenAndTrouble(t *testing.T) {
	s, d := rig(t, all...)
	was := read(t, d, "A")
	s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "encrypted", Target: []string{"development"}})
	s.Before(func(method string) {
		if method == http.MethodPost {
			s.Faults.Set(desttest.Fault{Kind: desttest.Trouble, Writes: true})
		}
	})
	_, err := d.Write(t.Context(), item("A", "the-value"), was)
	if e := fails(t, err, destination.Exists); !e.Unknown {
		t.Error("a part of it is there")
	}
	values(t, s, "A", map[string]string{"development": "theirs", "production": "the-value"})
	s.Before(nil)
	s.Faults.Set(desttest.Fault{})
	if f := read(t, d, "A"); f.Mark != "" {
		t.Errorf("what is partly of somebody else has the mark %q", f.Mark)
	}
}

// A name is ours only if all of it is, whichever record comes first.
func TestMixedMarks(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	ids := strings.Split(read(t, d, "A").ID, "+")
	for _, id := range ids {
		var old string
		s.Change("prj_1", id, func(v *webhosttest.Variable) { old, v.Comment = v.Comment, "theirs" })
		if f := read(t, d, "A"); f.Mark != "" {
			t.Errorf("the mark is %q", f.Mark)
		}
		s.Change("prj_1", id, func(v *webhosttest.Variable) { v.Comment = old })
	}
	if f := read(t, d, "A"); f.Mark != mark || len(ids) != 2 {
		t.Errorf("the mark of %v is %q", ids, f.Mark)
	}
}

// What is taken over keeps its value in environments that are not ours.
func TestAdoptShared(t *testing.T) {
	s, d := rig(t, "production")
	s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "encrypted", Target: slices.Clone(all), Comment: "for all"})
	custom := s.Add("prj_1", webhosttest.Variable{Key: "B", Value: "theirs", Type: "encrypted", Target: []string{"production"}, Custom: []string{"env_1"}})
	write(t, d, "A", "the-value")
	write(t, d, "B", "the-value")
	values(t, s, "A", map[string]string{"production": "the-value", "preview": "theirs", "development": "theirs"})
	values(t, s, "B", map[string]string{"production": "the-value"})
	if i := slices.IndexFunc(s.Variables("prj_1", "B"), func(v webhosttest.Variable) bool { return v.ID == custom && v.Value == "theirs" && len(v.Custom) == 1 }); i < 0 {
		t.Error("the custom environment has lost its value")
	}
	if err := d.Delete(t.Context(), read(t, d, "A")); err != nil {
		t.Fatal(err)
	}
	values(t, s, "A", map[string]string{"production": "", "preview": "theirs", "development": "theirs"})
}

// Deleting what was taken over, before it was written, leaves the environments that are not ours.
func TestDeleteShared(t *testing.T) {
	s, d := rig(t, "production")
	s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "encrypted", Target: []string{"production", "preview"}})
	if err := d.Delete(t.Context(), read(t, d, "A")); err != nil {
		t.Fatal(err)
	}
	values(t, s, "A", map[string]string{"production": "", "preview": "theirs"})
}

// Plain text does not stay plain text; what Vercel sets itself cannot be taken over.
func TestAdoptTypes(t *testing.T) {
	s, d := rig(t, all...)
	s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "plain", Target: slices.Clone(all)})
	write(t, d, "A", "the-value")
	for _, v := range s.Variables("prj_1", "A") {
		if v.Type == "plain" || v.Value != "the-value" {
			t.Errorf("%+v", v)
		}
	}
	s.Add("prj_1", webhosttest.Variable{Key: "B", Type: "system", Target: slices.Clone(all)})
	_, err := d.Write(t.Context(), item("B", "the-value"), read(t, d, "B"))
	fails(t, err, destination.BadRequest)
}

// Variables of branches, custom environments and other environments are other variables.
func TestOthersAreLeftAlone(t *testing.T) {
	s, d := rig(t, "production", "preview")
	for _, v := range []webhosttest.Variable{
		{Type: "encrypted", Target: []string{"preview"}, Branch: "feature"},
		{Type: "encrypted", Target: []string{"development"}},
		{Type: "encrypted", Custom: []string{"env_1"}, Target: []string{}},
	} {
		v.Key, v.Value = "A", "theirs"
		s.Add("prj_1", v)
	}
	for f, err := range d.List(t.Context()) {
		t.Errorf("listed: %+v, %v", f, err)
	}
	if f := read(t, d, "A"); f.State != destination.Absent {
		t.Fatalf("found %+v", f)
	}
	write(t, d, "A", "the-value")
	write(t, d, "A", "the-value-2")
	if err := d.Delete(t.Context(), read(t, d, "A")); err != nil {
		t.Fatal(err)
	}
	vars := s.Variables("prj_1", "A")
	if len(vars) != 3 || slices.ContainsFunc(vars, func(v webhosttest.Variable) bool { return v.Value != "theirs" }) {
		t.Errorf("left: %+v", vars)
	}
}

func TestReplacesOnlyWhatWasSeen(t *testing.T) {
	for name, change := range map[string]func(s *webhosttest.Server, ids []string){
		"changed": func(s *webhosttest.Server, ids []string) {
			s.Change("prj_1", ids[0], func(v *webhosttest.Variable) { v.Value = "theirs" })
		},
		"half deleted": func(s *webhosttest.Server, ids []string) { s.Drop("prj_1", ids[1]) },
		"recreated": func(s *webhosttest.Server, ids []string) {
			s.Drop("prj_1", ids[1])
			s.Put("prj_1", "A", "theirs", "development")
		},
		"all deleted": func(s *webhosttest.Server, ids []string) { s.Drop("prj_1", ids[0]); s.Drop("prj_1", ids[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			s, d := rig(t, all...)
			write(t, d, "A", "the-value")
			was := read(t, d, "A")
			change(s, strings.Split(was.ID, "+"))
			before := fmt.Sprint(s.Variables("prj_1", "A"))
			_, err := d.Write(t.Context(), item("A", "the-value-2"), was)
			fails(t, err, destination.Changed)
			if got := fmt.Sprint(s.Variables("prj_1", "A")); got != before {
				t.Error("it was touched all the same")
			}
		})
	}
}

// What changes between the look and the write is seen where the API has ids for it.
func TestChangeInBetween(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := read(t, d, "A")
	ids := strings.Split(was.ID, "+")
	s.Before(func(method string) {
		if method == http.MethodPatch {
			s.Drop("prj_1", ids[0])
			s.Put("prj_1", "A", "theirs", "production")
		}
	})
	_, err := d.Write(t.Context(), item("A", "the-value-2"), was)
	fails(t, err, destination.Changed)
	values(t, s, "A", map[string]string{"production": "theirs"})
}

// A record that has lost its environments gets them back, and one that is missing is made.
func TestRepair(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	ids := strings.Split(read(t, d, "A").ID, "+")
	s.Change("prj_1", ids[0], func(v *webhosttest.Variable) { v.Target = []string{"production"} })
	s.Drop("prj_1", ids[1])
	held := write(t, d, "A", "the-value-2")
	values(t, s, "A", map[string]string{"production": "the-value-2", "preview": "the-value-2", "development": "the-value-2"})
	if f := read(t, d, "A"); f.ID != held.ID || f.Version != held.Version || f.Mark != mark || time.Since(f.ChangedAt).Abs() > time.Hour {
		t.Errorf("found %+v, held %+v", f, held)
	}
}

// Trouble after the first of two records is an error that says that a part may be written.
func TestTroubleHalfway(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := read(t, d, "A")
	n := 0
	s.Before(func(method string) {
		if n++; n == 2 { // the first record is being written
			s.Faults.Set(desttest.Fault{Kind: desttest.Throttle})
		}
	})
	_, err := d.Write(t.Context(), item("A", "the-value-2"), was)
	if e := fails(t, err, destination.Throttled); !e.Unknown {
		t.Error("one of the two was written")
	}
	s.Before(nil)
	s.Faults.Set(desttest.Fault{})
	write(t, d, "A", "the-value-2")
	values(t, s, "A", map[string]string{"production": "the-value-2", "development": "the-value-2"})
}

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
			d := openWith(t, c, environment(s))
			_, err := d.Read(t.Context(), "A")
			fails(t, err, destination.NoPlace)
			_, err = d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if e := fails(t, err, destination.NoPlace); e.Class != destination.Client || e.Unknown {
				t.Errorf("%+v", e)
			}
			other := openWith(t, project("production"), environment(s))
			write(t, other, "A", "the-value")
			fails(t, d.Delete(t.Context(), read(t, other, "A")), destination.NoPlace)
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
	d := openWith(t, c, environment(s))
	_, err := d.Read(t.Context(), "A")
	fails(t, err, destination.Denied)
	if checks := d.Verify(t.Context()); checks[2].OK || checks[2].Name != "read" {
		t.Errorf("verify: %+v", checks)
	}
	c.Environments = []string{"development"}
	write(t, openWith(t, c, environment(s)), "A", "the-value")
	values(t, s, "A", map[string]string{"production": "theirs", "development": "the-value"})
}

func TestVerifyReadOnly(t *testing.T) {
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	c := project("production")
	c.AccessToken = webhosttest.ReadOnly
	checks := openWith(t, c, environment(s)).Verify(t.Context())
	if i := slices.IndexFunc(checks, func(c destination.Check) bool { return c.Name == "delete" }); i < 0 || checks[i].OK || checks[i].Unknown {
		t.Errorf("%+v", checks)
	}
	c.AccessToken = "wrong"
	checks = openWith(t, c, environment(s)).Verify(t.Context())
	if len(checks) != 2 || !checks[0].OK || checks[1].OK || checks[1].Name != "credentials" {
		t.Errorf("%+v", checks)
	}
}

func TestLimitsAreCheckedBeforeTheCall(t *testing.T) {
	s, d := rig(t, "production")
	was := read(t, d, "A")
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
	_, err := d.Write(t.Context(), item("A", strings.Repeat("v", 6000)), read(t, d, "A"))
	if e := fails(t, err, destination.Quota); e.Class != destination.Client || !strings.Contains(e.Text, "64 KB") {
		t.Errorf("%+v", e)
	}
}

func TestDeleteWithoutHandle(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := read(t, d, "A")
	was.Handle = nil
	stale := was
	stale.Version = "1"
	fails(t, d.Delete(t.Context(), stale), destination.Changed)
	if err := d.Delete(t.Context(), was); err != nil || len(s.Variables("prj_1", "A")) > 0 {
		t.Errorf("%v, left %v", err, s.Variables("prj_1", "A"))
	}
}

// Every answer that Vercel has, to a write and to a read.
func TestAnswers(t *testing.T) {
	date := time.Now().UTC().Truncate(time.Second)
	limit := func(reset any) string {
		return fmt.Sprintf(`{"error":{"code":"too_many_requests","message":"x","limit":{"remaining":0,"reset":%v,"total":60}}}`, reset)
	}
	tests := []struct {
		name    string
		status  int
		header  map[string]string
		body    string
		code    string
		class   destination.Class
		unknown bool // of a write
		after   time.Duration
	}{
		{name: "401", status: 401, body: `{"error":{"code":"unauthorized"}}`, code: destination.Denied, class: destination.Client},
		{name: "402", status: 402, body: `{"error":{"code":"payment_required"}}`, code: destination.Denied, class: destination.Client},
		{name: "403", status: 403, body: `{"error":{"code":"forbidden","message":"the-value"}}`, code: destination.Denied, class: destination.Client},
		{name: "404", status: 404, body: `{"error":{"code":"not_found"}}`, code: destination.NoPlace, class: destination.Client},
		{name: "409", status: 409, body: `{"error":{"code":"conflict"}}`, code: destination.Unavailable, class: destination.External},
		{name: "413", status: 413, code: destination.TooLarge, class: destination.Client},
		{name: "400", status: 400, body: `{"error":{"code":"the-value ` + webhosttest.Token + `","message":"the-value"}}`, code: destination.BadRequest, class: destination.Client},
		{name: "400 without sense", status: 400, body: `[[[`, code: destination.BadRequest, class: destination.Client},
		{name: "400 while it is changed", status: 400, body: `{"error":{"code":"bad_request","message":"an ongoing update env update is already happening"}}`, code: destination.Unavailable, class: destination.External},
		{name: "400 for its size", status: 400, body: `{"error":{"code":"bad_request","message":"project document is too large"}}`, code: destination.Quota, class: destination.Client},
		{name: "429 in seconds", status: 429, body: limit(date.Unix() + 90), code: destination.Throttled, class: destination.External, after: 90 * time.Second},
		{name: "429 in milliseconds", status: 429, body: limit(date.UnixMilli() + 90000), code: destination.Throttled, class: destination.External, after: 90 * time.Second},
		{name: "429 in the past", status: 429, body: limit(1), code: destination.Throttled, class: destination.External},
		{name: "429 without sense", status: 429, body: limit("1e300"), code: destination.Throttled, class: destination.External},
		{name: "429 by header", status: 429, header: map[string]string{"X-RateLimit-Reset": fmt.Sprint(date.Unix() + 8)}, code: destination.Throttled, class: destination.External, after: 8 * time.Second},
		{name: "429 with Retry-After", status: 429, header: map[string]string{"Retry-After": "99999999"}, body: limit(date.Unix() + 90), code: destination.Throttled, class: destination.External, after: 24 * time.Hour},
		{name: "429 with a date", status: 429, header: map[string]string{"Retry-After": date.Add(5 * time.Minute).Format(http.TimeFormat)}, code: destination.Throttled, class: destination.External, after: 5 * time.Minute},
		{name: "502", status: 502, body: "<html>", code: destination.Unavailable, class: destination.External, unknown: true},
		{name: "moved", status: 307, header: map[string]string{"Location": "http://evil.example/"}, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "200 without sense", status: 200, body: `<html>`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "200 of nothing", status: 200, body: `{}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "a record without an id", status: 200, body: `{"envs":[{"key":"A","updatedAt":1}],"created":{"id":"../x","key":"A","updatedAt":1},"failed":[]}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "another record", status: 200, body: `{"created":{"id":"x","key":"B","updatedAt":1},"failed":[]}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "failed for another reason", status: 201, body: `{"created":{},"failed":[{"error":{"code":"the-value of something","message":"the-value"}}]}`, code: "", class: destination.Client},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", date.Format(http.TimeFormat))
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer l.Close()
			env := destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: l.URL + "/"}
			d := openWith(t, project("production"), env)
			_, err := d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if tt.code == "" {
				if e := fails(t, err, destination.BadRequest); e.Class != tt.class {
					t.Errorf("%+v", e)
				}
				return
			}
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown != tt.unknown || e.RetryAfter != tt.after {
				t.Errorf("write: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
			_, err = d.Read(t.Context(), "A")
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown || e.RetryAfter != tt.after {
				t.Errorf("read: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
		})
	}
}

// The contract lets an edit answer without the record, and a list come in pages.
func TestOtherAnswers(t *testing.T) {
	one := `{"id":"a1","key":"A","type":"sensitive","target":"production","updatedAt":1.5e12,"comment":"` + webhost.CommentOf(mark) + `"}`
	two := `{"id":"b1","key":"B","type":"sensitive","target":["production"],"createdAt":1,"updatedAt":2}`
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			_, _ = w.Write([]byte(`{}`))
		case r.URL.Query().Get("until") == "7":
			_, _ = w.Write([]byte(`{"envs":[` + one + `],"pagination":{"count":1,"next":null,"prev":1}}`))
		default:
			_, _ = w.Write([]byte(`{"envs":[` + two + `],"pagination":{"count":1,"next":7,"prev":null}}`))
		}
	}))
	defer l.Close()
	d := openWith(t, project("production"), destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: l.URL})
	held := write(t, d, "A", "the-value")
	if held != (destination.Held{ID: "a1", Version: "1.5e12"}) {
		t.Errorf("held %+v", held)
	}
	names := 0
	for f, err := range d.List(t.Context()) {
		if names++; err != nil || (f.Mark == mark) != (f.Name == "A") {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if names != 2 {
		t.Errorf("%d names", names)
	}
}

// An address that must not be called is said to be that, by the client that we are given; the vendor's own is the default.
func TestBlocked(t *testing.T) {
	blocked := &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "not this one"}
	d := openWith(t, project("production"), destination.Env{Client: &http.Client{Transport: refusing{blocked}}})
	_, err := d.Read(t.Context(), "A")
	fails(t, err, destination.Blocked)
}

type refusing struct{ err error }

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if got := req.URL.String(); got != "https://api.vercel.com/v10/projects/prj_1/env?teamId=team_1" {
		return nil, fmt.Errorf("called %s", got)
	}
	return nil, r.err
}

func TestOpenNeedsAClient(t *testing.T) {
	c := project("production")
	_, err := webhost.Type.Open(&c, destination.Env{})
	fails(t, err, destination.Unexpected)
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"envs":[{"id":"a","key":"A","type":"plain","target":"production","updatedAt":1}]}`,
		`{"created":{"id":"a","key":"A","type":"sensitive","target":["preview"],"updatedAt":1.5e12},"failed":[]}`,
		`{"created":[],"failed":[{"error":{"code":"ENV_CONFLICT"}}]}`,
		`{"envs":[{"type":"system"}],"pagination":{"next":null}}`,
		`{"envs":[{"target":null,"updatedAt":""}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := webhost.Decode(data)
		b, again := webhost.Decode(data)
		if (err == nil) != (again == nil) || !slices.Equal(a, b) {
			t.Errorf("decoded to %v and %v", a, b)
		}
	})
}

// What can be known of a place that is not reached is said.
func TestUnreachable(t *testing.T) {
	l := httptest.NewTLSServer(http.NotFoundHandler())
	l.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer l.Close()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.Contains(address, ".invalid:") {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	for url, want := range map[string]string{l.URL: "certificate", "http://nothing.invalid": "name is not found", "http://127.0.0.1:1": "reached"} {
		d := openWith(t, project("production"), destination.Env{Client: &http.Client{Transport: transport}, URL: url})
		_, err := d.Read(t.Context(), "A")
		if e := fails(t, err, destination.Unreachable); e.Class != destination.External || !strings.Contains(e.Text, want) {
			t.Errorf("%s: %+v", url, e)
		}
		err = d.Delete(t.Context(), destination.Found{Name: "A", State: destination.Present, ID: "a", Version: "1"})
		if e := fails(t, err, destination.Unreachable); e.Unknown {
			t.Errorf("%s: nothing was sent", url)
		}
	}
}
