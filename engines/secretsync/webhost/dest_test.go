package webhost_test

import (
	"fmt"
	"net/http"
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

func openWith(t *testing.T, c webhost.Config, env destination.Env) destination.Destination {
	t.Helper()
	return desttest.Open(t, webhost.Type, &c, env)
}

// rig is a project with a destination for some of its environments.
func rig(t *testing.T, environments ...string) (*webhosttest.Server, destination.Destination) {
	t.Helper()
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	return s, openWith(t, project(environments...), desttest.At(s.URL))
}

func fails(t *testing.T, err error, code string) *destination.Error {
	t.Helper()
	return desttest.Fails(t, err, code, webhosttest.Token)
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: strings.Repeat("0", 36)}
}

func write(t *testing.T, d destination.Destination, name, value string) destination.Held {
	t.Helper()
	return desttest.Write(t, d, item(name, value))
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

// fake is a project in the suite.
type fake struct {
	*webhosttest.Server
	conf webhost.Config
}

func (p *fake) Open(t *testing.T) destination.Destination {
	return openWith(t, p.conf, desttest.At(p.URL))
}
func (p *fake) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	return openWith(t, p.conf, desttest.Through(h, p.URL))
}

func (p *fake) EndlessLists() map[string]func(*http.Request, int) (http.Header, string) {
	return map[string]func(*http.Request, int) (http.Header, string){"always another page": func(_ *http.Request, n int) (http.Header, string) {
		return nil, fmt.Sprintf(`{"envs":[],"pagination":{"count":0,"next":%d,"prev":1}}`, n)
	}}
}
func (p *fake) Put(_ *testing.T, name, value string) {
	p.Server.Put("prj_1", name, value, p.conf.Environments...)
}

// Get returns what all environments have, and all that they have where it differs, which no test wants.
func (p *fake) Get(_ *testing.T, name string) (string, bool) {
	value, ok := p.Server.Get("prj_1", name, p.conf.Environments[0])
	all := value
	for _, target := range p.conf.Environments[1:] {
		if v, has := p.Server.Get("prj_1", name, target); v != value || has != ok {
			all, ok = all+" or "+v, true
		}
	}
	return all, ok
}
func (p *fake) Fail(f desttest.Fault) { p.Faults.Set(f) }
func (p *fake) Secrets() []string     { return []string{webhosttest.Token} }

func TestDestination(t *testing.T) {
	for _, environments := range [][]string{{"development"}, all} {
		t.Run(strings.Join(environments, "+"), func(t *testing.T) {
			desttest.Run(t, webhost.Type, func(t *testing.T) desttest.Fake {
				s := webhosttest.New(t)
				s.AddProject("prj_1", "team_1")
				return &fake{s, project(environments...)}
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

// The name of another client in one environment only lets none of a name be created.
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
			was := desttest.Read(t, d, "A")
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
		was := desttest.Read(t, d, "A")
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
	was := desttest.Read(t, d, "A")
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
	if f := desttest.Read(t, d, "A"); f.OwnerTag != "" {
		t.Errorf("what is partly of another client has the mark %q", f.OwnerTag)
	}
}

// A name is ours only if all of it is, whichever record comes first.
func TestMixedMarks(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	ids := strings.Split(desttest.Read(t, d, "A").ID, "+")
	for _, id := range ids {
		var old string
		s.Change("prj_1", id, func(v *webhosttest.Variable) { old, v.Comment = v.Comment, "theirs" })
		if f := desttest.Read(t, d, "A"); f.OwnerTag != "" {
			t.Errorf("the mark is %q", f.OwnerTag)
		}
		s.Change("prj_1", id, func(v *webhosttest.Variable) { v.Comment = old })
	}
	if f := desttest.Read(t, d, "A"); f.OwnerTag != mark || len(ids) != 2 {
		t.Errorf("the mark of %v is %q", ids, f.OwnerTag)
	}
}

// What is adopted keeps its value in environments that are not ours.
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
	if err := d.Delete(t.Context(), desttest.Read(t, d, "A")); err != nil {
		t.Fatal(err)
	}
	values(t, s, "A", map[string]string{"production": "", "preview": "theirs", "development": "theirs"})
}

// Deleting what was adopted, before it was written, leaves the environments that are not ours.
func TestDeleteShared(t *testing.T) {
	s, d := rig(t, "production")
	s.Add("prj_1", webhosttest.Variable{Key: "A", Value: "theirs", Type: "encrypted", Target: []string{"production", "preview"}})
	if err := d.Delete(t.Context(), desttest.Read(t, d, "A")); err != nil {
		t.Fatal(err)
	}
	values(t, s, "A", map[string]string{"production": "", "preview": "theirs"})
}

// Plain text does not stay plain text; what Vercel sets itself cannot be adopted.
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
	_, err := d.Write(t.Context(), item("B", "the-value"), desttest.Read(t, d, "B"))
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
	if f := desttest.Read(t, d, "A"); f.State != destination.Absent {
		t.Fatalf("found %+v", f)
	}
	write(t, d, "A", "the-value")
	write(t, d, "A", "the-value-2")
	if err := d.Delete(t.Context(), desttest.Read(t, d, "A")); err != nil {
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
			was := desttest.Read(t, d, "A")
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

// A record that is not found by its deletion is gone only if the project can still be seen.
func TestDeleteOfWhatIsNotSeenAnyMore(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *webhosttest.Server, id string)
		code   string
	}{
		"deleted":           {func(s *webhosttest.Server, id string) { s.Drop("prj_1", id) }, ""},
		"moved to a team":   {func(s *webhosttest.Server, _ string) { s.AddProject("prj_1", "team_2") }, destination.NoLocation},
		"changed by others": {nil, destination.Changed},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := rig(t, "production")
			write(t, d, "A", "the-value")
			was := desttest.Read(t, d, "A")
			if tt.change == nil {
				s.Change("prj_1", was.ID, func(v *webhosttest.Variable) { v.Comment = "ours now" })
			}
			s.Before(func(method string) {
				if method == http.MethodDelete {
					tt.change(s, was.ID)
				}
			})
			err := d.Delete(t.Context(), was)
			if tt.code != "" {
				fails(t, err, tt.code)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// What changes between the look and the write is seen where the API has ids for it.
func TestChangeInBetween(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
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
	ids := strings.Split(desttest.Read(t, d, "A").ID, "+")
	s.Change("prj_1", ids[0], func(v *webhosttest.Variable) { v.Target = []string{"production"} })
	s.Drop("prj_1", ids[1])
	held := write(t, d, "A", "the-value-2")
	values(t, s, "A", map[string]string{"production": "the-value-2", "preview": "the-value-2", "development": "the-value-2"})
	if f := desttest.Read(t, d, "A"); f.ID != held.ID || f.Version != held.Version || f.OwnerTag != mark || time.Since(f.ChangedAt).Abs() > time.Hour {
		t.Errorf("found %+v, held %+v", f, held)
	}
}

// Trouble after the first of two records is an error that says that a part may be written.
func TestTroubleHalfway(t *testing.T) {
	s, d := rig(t, all...)
	write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
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

func TestClose(t *testing.T) {
	c := project("production")
	desttest.Closes(t, webhost.Type, &c, destination.Env{})
}
