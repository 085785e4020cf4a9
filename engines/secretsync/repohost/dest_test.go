package repohost_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

const mark = "0123456789abcdef-fedcba"

func openWith(t *testing.T, c repohost.Config, env destination.Env) destination.Destination {
	t.Helper()
	d := desttest.Open(t, repohost.Type, &c, env)
	repohost.Pause(d, 0)
	return d
}

// rig is a repository with a destination.
func rig(t *testing.T) (*repohosttest.Server, destination.Destination) {
	t.Helper()
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	return s, openWith(t, repo(), desttest.At(s.URL))
}

var app = repohosttest.Repository("octo", "app")

func fails(t *testing.T, err error, code string) *destination.Error {
	t.Helper()
	return desttest.Fails(t, err, code, repohosttest.Token)
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: strings.Repeat("0", 36)}
}

func write(t *testing.T, d destination.Destination, name, value string) destination.Held {
	t.Helper()
	return desttest.Write(t, d, item(name, value))
}

// fake is a repository, environment or organization in the suite.
type fake struct {
	*repohosttest.Server
	key  string
	conf repohost.Config
}

func (p *fake) Open(t *testing.T) destination.Destination {
	return openWith(t, p.conf, desttest.At(p.URL))
}
func (p *fake) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	return openWith(t, p.conf, desttest.Through(h, p.URL))
}

func (p *fake) EndlessLists() map[string]func(*http.Request, int) (http.Header, string) {
	page := func(next func(n int) int) func(*http.Request, int) (http.Header, string) {
		return func(r *http.Request, n int) (http.Header, string) {
			link := fmt.Sprintf(`<https://%s%s?per_page=100&page=%d>; rel="next"`, r.URL.Host, r.URL.Path, next(n))
			return http.Header{"Link": {link}}, `{"total_count":1,"secrets":[]}`
		}
	}
	return map[string]func(*http.Request, int) (http.Header, string){
		"always another page": page(func(n int) int { return n + 1 }), "in a circle": page(func(int) int { return 1 }), "leaps": page(func(n int) int { return n + 2 }),
	}
}
func (p *fake) Put(_ *testing.T, name, value string) { p.Server.Put(p.key, name, value) }
func (p *fake) Get(_ *testing.T, name string) (string, bool) {
	return p.Server.Get(p.key, name)
}
func (p *fake) Fail(f desttest.Fault) { p.Faults.Set(f) }
func (p *fake) Secrets() []string     { return []string{repohosttest.Token} }

func TestDestination(t *testing.T) {
	kinds := map[string]func(*repohosttest.Server) (string, repohost.Config){
		"repository": func(s *repohosttest.Server) (string, repohost.Config) {
			s.AddRepository("octo", "app")
			return app, repo()
		},
		"environment": func(s *repohosttest.Server) (string, repohost.Config) {
			s.AddRepository("octo", "app")
			s.AddEnvironment("octo", "app", "prod/eu west")
			c := repo()
			c.EnvironmentName = "prod/eu west"
			return repohosttest.Environment("octo", "app", "prod/eu west"), c
		},
		"organization": func(s *repohosttest.Server) (string, repohost.Config) {
			s.AddOrganization("octo")
			s.AddRepository("octo", "app")
			return repohosttest.Organization("octo"), repohost.Config{
				AccessToken: repohosttest.Token, SecretsLocation: "organization", Organization: "octo", Visibility: "selected", Selected: engines.StringList{"app"},
			}
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			desttest.Run(t, repohost.Type, func(t *testing.T) desttest.Fake {
				s := repohosttest.New(t)
				key, conf := kind(s)
				return &fake{s, key, conf}
			})
		})
	}
}

// A name that was created between the look and the write is lost: the error says so, and that something was written.
func TestCreateRace(t *testing.T) {
	s, d := rig(t)
	was := desttest.Read(t, d, "A")
	s.BeforePut(func() { s.Put(app, "A", "theirs") })
	_, err := d.Write(t.Context(), item("A", "the-value"), was)
	if e := fails(t, err, destination.Exists); !e.Unknown || !strings.Contains(e.Text, "has been replaced") {
		t.Errorf("%+v", e)
	}
}

func TestCreatesOnlyWhatIsAbsent(t *testing.T) {
	s, d := rig(t)
	was := desttest.Read(t, d, "A")
	s.Put(app, "a", "theirs")
	s.Calls()
	_, err := d.Write(t.Context(), item("A", "the-value"), was)
	if e := fails(t, err, destination.Exists); e.Unknown {
		t.Error("nothing was written")
	}
	if slices.ContainsFunc(s.Calls(), func(c string) bool { return strings.HasPrefix(c, "PUT") }) {
		t.Error("it was written all the same")
	}
}

func TestReplacesOnlyWhatWasSeen(t *testing.T) {
	for name, change := range map[string]func(*repohosttest.Server){
		"changed":   func(s *repohosttest.Server) { s.Put(app, "A", "theirs") },
		"deleted":   func(s *repohosttest.Server) { s.Drop(app, "A") },
		"recreated": func(s *repohosttest.Server) { s.Drop(app, "A"); s.Put(app, "A", "theirs") },
	} {
		t.Run(name, func(t *testing.T) {
			s, d := rig(t)
			write(t, d, "A", "the-value")
			was := desttest.Read(t, d, "A")
			change(s)
			want, _ := s.Get(app, "A")
			_, err := d.Write(t.Context(), item("A", "the-value-2"), was)
			fails(t, err, destination.Changed)
			if name != "deleted" {
				fails(t, d.Delete(t.Context(), was), destination.Changed)
			} else if err := d.Delete(t.Context(), was); err != nil {
				t.Errorf("deleting what has gone: %v", err)
			}
			if got, _ := s.Get(app, "A"); got != want {
				t.Error("it was touched all the same")
			}
		})
	}
}

// What was read is asked for again with its ETag, which costs nothing; a write is four calls at most.
func TestCalls(t *testing.T) {
	s, d := rig(t)
	write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
	if was.ChangedAt.Format(time.RFC3339) != was.Version {
		t.Errorf("changed at %v, version %s", was.ChangedAt, was.Version)
	}
	s.Calls()
	if _, err := d.Write(t.Context(), item("a", "the-value-2"), was); err != nil {
		t.Fatal(err)
	}
	one := "/repos/octo/app/actions/secrets/A"
	if got, want := s.Calls(), []string{"GET " + one, "PUT " + one, "GET " + one}; !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}

func TestKeyRotation(t *testing.T) {
	s, d := rig(t)
	write(t, d, "A", "the-value")
	s.RotateKey(app)
	write(t, d, "A", "the-value-2")
	if got, _ := s.Get(app, "A"); got != "the-value-2" {
		t.Error("the value has not arrived")
	}
}

// GitHub may go on showing what was there before a write.
func TestStaleReads(t *testing.T) {
	s, d := rig(t)
	s.Tick(time.Minute)
	held := write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
	s.BeforePut(func() { s.Stale(2) })
	next, err := d.Write(t.Context(), item("A", "the-value-2"), was)
	if err != nil || next == held || next != (destination.Held{ID: held.ID, Version: desttest.Read(t, d, "A").Version}) {
		t.Errorf("left %+v, %v", next, err)
	}
	was = desttest.Read(t, d, "A")
	s.BeforePut(func() { s.Stale(100) })
	_, err = d.Write(t.Context(), item("A", "the-value-3"), was)
	if e := fails(t, err, destination.Unexpected); !e.Unknown {
		t.Error("it has been written")
	}
	s.BeforePut(func() { s.Stale(100) })
	s.Stale(0)
	_, err = d.Write(t.Context(), item("NEW", "the-value"), desttest.Read(t, d, "NEW"))
	if e := fails(t, err, destination.Unexpected); !e.Unknown {
		t.Error("it has been created")
	}
}

// What cannot be read back may have been written.
func TestTroubleAfterTheWrite(t *testing.T) {
	s, d := rig(t)
	was := desttest.Read(t, d, "A")
	s.BeforePut(func() { s.Faults.Set(desttest.Fault{Kind: desttest.Trouble}) })
	_, err := d.Write(t.Context(), item("A", "the-value"), was)
	if e := fails(t, err, destination.Unavailable); !e.Unknown {
		t.Error("it has been written")
	}
}

// Two writes in one second leave the same version, which is all that GitHub has.
func TestWritesInOneSecond(t *testing.T) {
	s, d := rig(t)
	s.Tick(0)
	a := write(t, d, "A", "the-value")
	if b := write(t, d, "A", "the-value-2"); a != b {
		t.Errorf("left %+v and %+v", a, b)
	}
	if got, _ := s.Get(app, "A"); got != "the-value-2" {
		t.Error("the value has not arrived")
	}
}

// A secret that is not found in a place that is not found is not an absent secret.
func TestMissingPlace(t *testing.T) {
	for name, change := range map[string]func(*repohosttest.Server, *repohost.Config){
		"no repository":  func(_ *repohosttest.Server, c *repohost.Config) { c.RepisitoryName = "nothing" },
		"no environment": func(_ *repohosttest.Server, c *repohost.Config) { c.EnvironmentName = "nothing" },
		"may not see it": func(_ *repohosttest.Server, c *repohost.Config) { c.AccessToken = repohosttest.Blind },
		"renamed":        func(s *repohosttest.Server, _ *repohost.Config) { s.Rename("octo", "app", "app2") },
	} {
		t.Run(name, func(t *testing.T) {
			s := repohosttest.New(t)
			s.AddRepository("octo", "app")
			c := repo()
			change(s, &c)
			d := openWith(t, c, desttest.At(s.URL))
			_, err := d.Read(t.Context(), "A")
			fails(t, err, destination.NoLocation)
			_, err = d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if e := fails(t, err, destination.NoLocation); e.Class != destination.Client || e.Unknown {
				t.Errorf("%+v", e)
			}
			fails(t, d.Delete(t.Context(), destination.Found{Name: "A", State: destination.Present, ID: "x", Version: "y"}), destination.NoLocation)
			for _, err := range d.List(t.Context()) {
				fails(t, err, destination.NoLocation)
			}
			if checks := d.Verify(t.Context()); len(checks) != 2 || checks[1].OK || checks[1].Name != "read" {
				t.Errorf("verify: %+v", checks)
			}
		})
	}
}

func TestQuota(t *testing.T) {
	s, d := rig(t)
	for i := range 100 {
		s.Put(app, fmt.Sprintf("N%d", i), "x")
	}
	_, err := d.Write(t.Context(), item("A", "the-value"), desttest.Read(t, d, "A"))
	if e := fails(t, err, destination.Quota); e.Class != destination.Client || !strings.Contains(e.Text, "100") {
		t.Errorf("%+v", e)
	}
}

func TestSizeIsCheckedBeforeTheCall(t *testing.T) {
	s, d := rig(t)
	was := desttest.Read(t, d, "A")
	s.Calls()
	_, err := d.Write(t.Context(), item("A", strings.Repeat("v", 49153)), was)
	if e := fails(t, err, destination.TooLarge); !strings.Contains(e.Text, "49152") {
		t.Errorf("the text %q does not state the limit", e.Text)
	}
	_, err = d.Write(t.Context(), item("GITHUB_X", "v"), was)
	fails(t, err, destination.BadRequest)
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

func TestOrganization(t *testing.T) {
	s := repohosttest.New(t)
	s.AddOrganization("octo")
	one, two := s.AddRepository("octo", "one"), s.AddRepository("octo", "two")
	c := repohost.Config{AccessToken: repohosttest.Token, SecretsLocation: "organization", RepositoryOwner: "octo", Visibility: "selected", Selected: engines.StringList{"one", "two"}}
	d := openWith(t, c, desttest.At(s.URL))
	write(t, d, "A", "the-value")
	visibility, ids := s.Seen(repohosttest.Organization("octo"), "A")
	if visibility != "selected" || !slices.Equal(ids, []int64{one, two}) {
		t.Errorf("seen by %s %v", visibility, ids)
	}
	c.Selected = engines.StringList{"one", "three"}
	d = openWith(t, c, desttest.At(s.URL))
	_, err := d.Write(t.Context(), item("B", "the-value"), desttest.Read(t, d, "B"))
	if e := fails(t, err, destination.NoLocation); !strings.Contains(e.Text, "three") {
		t.Errorf("the text %q does not name the repository", e.Text)
	}
	c.Visibility, c.Selected = "private", nil
	d = openWith(t, c, desttest.At(s.URL))
	write(t, d, "A", "the-value-2")
	if visibility, ids := s.Seen(repohosttest.Organization("octo"), "A"); visibility != "private" || ids != nil {
		t.Errorf("seen by %s %v", visibility, ids)
	}
}

// The names of an organization are more than a page holds; unchanged pages are not counted.
func TestListPages(t *testing.T) {
	s := repohosttest.New(t)
	s.AddOrganization("octo")
	for i := range 250 {
		s.Put(repohosttest.Organization("octo"), fmt.Sprintf("N%03d", i), "x")
	}
	d := openWith(t, repohost.Config{AccessToken: repohosttest.Token, SecretsLocation: "organization", RepositoryOwner: "octo", Visibility: "all"}, desttest.At(s.URL))
	list := func() map[string]string {
		out := map[string]string{}
		for f, err := range d.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			out[f.Name] = f.Version
		}
		return out
	}
	first := list()
	s.Left(2) // one of them for the page that changes
	s.Put(repohosttest.Organization("octo"), "N120", "y")
	second := list()
	if third := list(); !maps.Equal(second, third) {
		t.Error("what has not changed is listed otherwise")
	}
	if len(first) != 250 || len(second) != 250 || first["N120"] == second["N120"] || first["N001"] != second["N001"] {
		t.Errorf("%d and %d names, versions %s and %s", len(first), len(second), first["N120"], second["N120"])
	}
}

func TestVerifyReadOnly(t *testing.T) {
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	c := repo()
	c.AccessToken = repohosttest.ReadOnly
	for _, got := range openWith(t, c, desttest.At(s.URL)).Verify(t.Context()) {
		writes := got.Name == "create" || got.Name == "write" || got.Name == "delete"
		if got.OK == writes {
			t.Errorf("%+v", got)
		}
	}
	c.AccessToken = "github_pat_wrong"
	checks := openWith(t, c, desttest.At(s.URL)).Verify(t.Context())
	if len(checks) != 2 || !checks[0].OK || checks[1].OK || checks[1].Name != "credentials" {
		t.Errorf("%+v", checks)
	}
}

func TestVerifyTimes(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		got  destination.Check
		ok   bool
		text string
	}{
		"never expires":    {repohost.Expiry(time.Time{}, now), true, "no time"},
		"expires late":     {repohost.Expiry(now.Add(90*24*time.Hour), now), true, "expires on"},
		"expires soon":     {repohost.Expiry(now.Add(24*time.Hour), now), false, "replace it"},
		"clocks agree":     {repohost.Clock(now.UTC().Format(http.TimeFormat), now), true, "agree"},
		"clocks are apart": {repohost.Clock(now.Add(-time.Hour).UTC().Format(http.TimeFormat), now), false, "apart"},
		"no clock":         {repohost.Clock("", now), false, "did not say"},
	} {
		if tt.got.OK != tt.ok || !strings.Contains(tt.got.Text, tt.text) {
			t.Errorf("%s: %+v", name, tt.got)
		}
	}
}

func TestClose(t *testing.T) {
	c := repo()
	desttest.Closes(t, repohost.Type, &c, destination.Env{})
}
