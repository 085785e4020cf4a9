package cloud3sm_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// TestRaces: another client acts between what was read and each call of what is done then. Theirs stays.
func TestRaces(t *testing.T) {
	tests := []struct {
		name   string
		method string // before which another client acts
		delete bool   // it is deleted, not written
		adopt  bool   // it was another client's before
		act    func(s *cloud3smtest.Server)
		code   string // "" is no error
		left   string // what is there afterwards, "" is nothing
		marked string
	}{
		{name: "a version is added", method: "AccessSecretVersion", act: func(s *cloud3smtest.Server) { s.Put("one", "theirs") }, code: destination.Changed, left: "theirs", marked: mark},
		{name: "it is deleted", method: "AccessSecretVersion", act: func(s *cloud3smtest.Server) { s.Remove("one") }, code: destination.Changed},
		{name: "it is deleted late", method: "GetSecret", act: func(s *cloud3smtest.Server) { s.Remove("one") }, code: destination.Changed},
		{name: "it is deleted at last", method: "AddSecretVersion", act: func(s *cloud3smtest.Server) { s.Remove("one") }, code: destination.Changed},
		{name: "it is created again", method: "GetSecret", act: func(s *cloud3smtest.Server) { s.Remove("one"); s.Put("one", "theirs") }, code: destination.Changed, left: "theirs"},
		{name: "a copy of it is made in its place", method: "GetSecret", act: func(s *cloud3smtest.Server) {
			copied := s.Annotations("one")
			s.Remove("one")
			s.Put("one", "copy")
			s.Edit("one", func(_, annotations map[string]string) { maps.Copy(annotations, copied) })
		}, code: destination.Changed, left: "copy", marked: mark},
		{name: "it gets another mark", method: "GetSecret", act: func(s *cloud3smtest.Server) {
			s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-sync"] = another })
		}, code: destination.Changed, left: "ours", marked: another},
		{name: "it is created again while it is adopted", adopt: true, method: "UpdateSecret", act: func(s *cloud3smtest.Server) { s.Remove("one"); s.Put("one", "theirs") }, code: destination.Changed, left: "theirs"},
		{name: "it is deleted while it is adopted", adopt: true, method: "UpdateSecret", act: func(s *cloud3smtest.Server) { s.Remove("one") }, code: destination.Changed},
		{name: "it is labelled while it is adopted", adopt: true, method: "UpdateSecret", act: func(s *cloud3smtest.Server) {
			s.Edit("one", func(labels, _ map[string]string) { labels["team"] = "theirs" })
		}, code: destination.Changed, left: "first"},
		{name: "a version is added before it is deleted", delete: true, method: "AccessSecretVersion", act: func(s *cloud3smtest.Server) { s.Put("one", "theirs") }, code: destination.Changed, left: "theirs", marked: mark},
		{name: "it is created again before it is deleted", delete: true, method: "DeleteSecret", act: func(s *cloud3smtest.Server) { s.Remove("one"); s.Put("one", "theirs") }, code: destination.Changed, left: "theirs"},
		{name: "it gets another mark before it is deleted", delete: true, method: "DeleteSecret", act: func(s *cloud3smtest.Server) {
			s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-sync"] = another })
		}, code: destination.Changed, left: "ours", marked: another},
		{name: "another client deletes it, too", delete: true, method: "DeleteSecret", act: func(s *cloud3smtest.Server) { s.Remove("one") }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			d := open(t, s, configured(nil))
			if test.adopt {
				s.Put("one", "first")
			} else {
				desttest.Write(t, d, item("one", "ours"))
			}
			was := desttest.Read(t, d, "one")
			once := false
			s.Hook(test.method, func(context.Context, any) error {
				if !once {
					once = true
					test.act(s)
				}
				return nil
			})
			var err error
			if test.delete {
				err = d.Delete(t.Context(), was)
			} else {
				_, err = d.Write(t.Context(), item("one", "newer"), was)
			}
			if !once {
				t.Fatalf("%s was not called", test.method)
			}
			if test.code != "" {
				desttest.Fails(t, err, test.code)
			} else if err != nil {
				t.Error(err)
			}
			if got, _ := s.Get("one"); got != test.left {
				t.Errorf("what is left is %q, want %q", got, test.left)
			}
			if got := s.Annotations("one")["coffer-sync"]; got != test.marked {
				t.Errorf("its mark is %q, want %q", got, test.marked)
			}
		})
	}
}

// TestForeignStays: a secret is created only by the one call that does not replace.
func TestForeignStays(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	was := desttest.Read(t, d, "one")
	s.Hook("CreateSecret", func(context.Context, any) error { s.Put("one", "theirs"); return nil })
	_, err := d.Write(t.Context(), item("one", "ours"), was)
	if e := desttest.Fails(t, err, destination.Exists); e.Class != destination.Client || e.Unknown {
		t.Errorf("%+v", e)
	}
	if got, _ := s.Get("one"); got != "theirs" || len(s.Annotations("one")) > 0 {
		t.Errorf("theirs is %q now, with %v", got, s.Annotations("one"))
	}
}

// TestAdoption keeps what others have written on a secret, and their versions.
func TestAdoption(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	for i := range 3 {
		s.Put("one", fmt.Sprint("theirs", i))
	}
	s.Edit("one", func(labels, annotations map[string]string) {
		labels["team"], labels["owner"] = "theirs", "other"
		annotations["terraform"], annotations["coffer-versions"], annotations["coffer-sync"] = "yes", "1 2 3", another
	})
	if f := desttest.Read(t, d, "one"); f.OwnerTag != another || f.Version != "3" {
		t.Fatalf("found %+v", f)
	}
	it := item("one", "ours")
	it.Tags = map[string]string{"team": "ours"}
	for i := range 4 {
		it.Value = fmt.Append(nil, "ours", i)
		desttest.Write(t, d, it)
	}
	if got, want := s.Labels("one"), map[string]string{"team": "ours", "owner": "other"}; !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if got, want := s.Annotations("one"), map[string]string{"terraform": "yes", "coffer-versions": "6 7", "coffer-sync": mark}; !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
	want := []string{"ENABLED", "ENABLED", "ENABLED", "DESTROYED+", "DESTROYED+", "ENABLED+", "ENABLED+"}
	if got := s.Versions("one"); !slices.Equal(got, want) {
		t.Errorf("versions %v, want %v", got, want)
	}
}

// TestOldLabelsGo, and those of others stay.
func TestOldLabelsGo(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	it := item("one", "v1")
	it.Tags = map[string]string{"team": "payments", "stage": "test"}
	desttest.Write(t, d, it)
	s.Edit("one", func(labels, _ map[string]string) { labels["theirs"] = "yes" })
	it.Value, it.Tags, it.OldTags = []byte("v2"), map[string]string{"team": "accounts"}, []string{"team", "stage", "gone"}
	desttest.Write(t, d, it)
	if got, want := s.Labels("one"), map[string]string{"team": "accounts", "theirs": "yes"}; !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
}

// TestOldVersions: of ours the newest two are kept, of others all.
func TestOldVersions(t *testing.T) {
	tests := []struct {
		name     string
		between  func(s *cloud3smtest.Server, i int) // before write i of 5
		versions string                              // their states by first letter, lower case if not ours
		note     string
	}{
		{"ours", nil, "DDDEE", "4 5"},
		{"one of another client", func(s *cloud3smtest.Server, i int) {
			if i == 2 {
				s.Put("one", "theirs")
			}
		}, "DDeDEE", "5 6"},
		{"destroying is not allowed", func(s *cloud3smtest.Server, _ int) {
			s.Grant(slices.DeleteFunc(slices.Clone(cloud3smtest.Permissions), func(p string) bool { return p == "secretmanager.versions.destroy" })...)
		}, "EEEEE", "1 2 3 4 5"},
		{"destroying fails for a while", func(s *cloud3smtest.Server, i int) {
			s.Hook("DestroySecretVersion", func(context.Context, any) error {
				if i < 4 {
					return status.Error(codes.Unavailable, "later")
				}
				return nil
			})
		}, "DDDEE", "4 5"},
		{"the note is removed", func(s *cloud3smtest.Server, i int) {
			if i == 4 {
				s.Edit("one", func(_, annotations map[string]string) { delete(annotations, "coffer-versions") })
			}
		}, "DDEEE", "5"},
		{"the note is nonsense", func(s *cloud3smtest.Server, i int) {
			if i > 0 {
				s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-versions"] = "1 1 latest -1" })
			}
		}, "EEEEE", "5"},
		{"the note is from the future", func(s *cloud3smtest.Server, i int) {
			if i == 1 {
				s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-versions"] = "1 7 8 9" })
			}
		}, "DDDEE", "4 5"},
		{"noting fails", func(s *cloud3smtest.Server, _ int) {
			s.Hook("UpdateSecret", func(context.Context, any) error { return status.Error(codes.Unavailable, "later") })
		}, "EEEEE", "1"},
		{"the oldest is destroyed by another client", func(s *cloud3smtest.Server, i int) {
			if i == 1 {
				s.Hook("DestroySecretVersion", func(context.Context, any) error {
					return status.Error(codes.FailedPrecondition, "SecretVersion.state is already DESTROYED.")
				})
			}
		}, "EEEEE", "4 5"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			d := open(t, s, configured(nil))
			for i := range 5 {
				if test.between != nil {
					test.between(s, i)
				}
				value := fmt.Sprint("value ", i)
				held := desttest.Write(t, d, item("one", value))
				if f := desttest.Read(t, d, "one"); f.Version != held.Version || f.ID != held.ID || string(f.Value) != value {
					t.Errorf("write %d left %+v, and %+v is found", i, held, f)
				}
			}
			var states strings.Builder
			for _, state := range s.Versions("one") {
				letter := state[:1]
				if !strings.HasSuffix(state, "+") {
					letter = strings.ToLower(letter)
				}
				states.WriteString(letter)
			}
			if states.String() != test.versions || s.Annotations("one")["coffer-versions"] != test.note {
				t.Errorf("versions %s, noted %q; want %s, %q", states.String(), s.Annotations("one")["coffer-versions"], test.versions, test.note)
			}
		})
	}
}

// TestManyOldVersions: what was left when destroying failed for long goes a few at a time, so that a write ends.
func TestManyOldVersions(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Grant(slices.DeleteFunc(slices.Clone(cloud3smtest.Permissions), func(p string) bool { return p == "secretmanager.versions.destroy" })...)
	for i := range 10 {
		desttest.Write(t, d, item("one", fmt.Sprint("value ", i)))
	}
	s.Grant(cloud3smtest.Permissions...)
	s.Calls()
	desttest.Write(t, d, item("one", "next"))
	destroyed := 0
	for _, call := range s.Calls() {
		if strings.HasPrefix(call, "DestroySecretVersion") {
			destroyed++
		}
	}
	if destroyed != 3 || s.Annotations("one")["coffer-versions"] != "4 5 6 7 8 9 10 11" {
		t.Errorf("%d are destroyed, noted %q", destroyed, s.Annotations("one")["coffer-versions"])
	}
}

// TestLargePages: what others annotate makes a page of the list larger than a message is by default.
func TestLargePages(t *testing.T) {
	s := cloud3smtest.New(t)
	s.Pages(500)
	for i := range 400 {
		name := fmt.Sprint("theirs-", i)
		s.Put(name, "x")
		s.Edit(name, func(_, annotations map[string]string) { annotations["notes"] = strings.Repeat("n", 15<<10) })
	}
	n := 0
	for _, err := range open(t, s, configured(nil)).List(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 400 {
		t.Errorf("%d names", n)
	}
}

// TestOthersAnnotationsStay also when they come in the middle of a write.
func TestOthersAnnotationsStay(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "v1"))
	s.Hook("AddSecretVersion", func(context.Context, any) error {
		s.Edit("one", func(_, annotations map[string]string) { annotations["theirs"] = "yes" })
		return nil
	})
	desttest.Write(t, d, item("one", "v2"))
	if got, want := s.Annotations("one"), map[string]string{"theirs": "yes", "coffer-sync": mark, "coffer-versions": "1"}; !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
}

// TestCalls: what each operation asks of the destination, which the rates rest on.
func TestCalls(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	tagged := item("one", "v4")
	tagged.Tags = map[string]string{"team": "payments"}
	steps := []struct {
		name string
		do   func(was destination.Found) error
		want []string
	}{
		{"create", func(was destination.Found) error { _, err := d.Write(t.Context(), item("one", "v1"), was); return err }, []string{"CreateSecret", "AddSecretVersion"}},
		{"second", func(was destination.Found) error { _, err := d.Write(t.Context(), item("one", "v2"), was); return err },
			[]string{"AccessSecretVersion", "GetSecret", "AddSecretVersion", "UpdateSecret"}},
		{"third", func(was destination.Found) error { _, err := d.Write(t.Context(), item("one", "v3"), was); return err },
			[]string{"AccessSecretVersion", "GetSecret", "AddSecretVersion", "DestroySecretVersion", "UpdateSecret"}},
		{"with a new label", func(was destination.Found) error { _, err := d.Write(t.Context(), tagged, was); return err },
			[]string{"AccessSecretVersion", "UpdateSecret", "AddSecretVersion", "DestroySecretVersion", "UpdateSecret"}},
		{"delete", func(was destination.Found) error { return d.Delete(t.Context(), was) }, []string{"AccessSecretVersion", "DeleteSecret"}},
	}
	for _, step := range steps {
		was := desttest.Read(t, d, "one")
		if got, want := s.Calls(), []string{"GetSecret", "AccessSecretVersion"}; step.name != "create" && !slices.Equal(got, want) {
			t.Errorf("reading: %v, want %v", got, want)
		}
		if err := step.do(was); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := s.Calls(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

// TestNothingIsRepeated, not even what the vendor's library would.
func TestNothingIsRepeated(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Put("one", "v")
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted} {
		s.Hook("AccessSecretVersion", func(context.Context, any) error { return status.Error(code, "not now") })
		s.Calls()
		if _, err := d.Read(t.Context(), "one"); err == nil {
			t.Error("no error")
		}
		if got, want := s.Calls(), []string{"GetSecret", "AccessSecretVersion"}; !slices.Equal(got, want) {
			t.Errorf("%v: called %v", code, got)
		}
	}
}

// TestHalfMade: a secret whose first version never came is recognised as ours, and finished.
func TestHalfMade(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Hook("AddSecretVersion", func(context.Context, any) error { return status.Error(codes.PermissionDenied, "not now") })
	_, err := d.Write(t.Context(), item("one", "the-value"), desttest.Read(t, d, "one"))
	if e := desttest.Fails(t, err, destination.Denied); !e.Unknown {
		t.Error("a part of it has been done: the secret is there")
	}
	s.Hook("AddSecretVersion", nil)
	f := desttest.Read(t, d, "one")
	if f.State != destination.Present || f.OwnerTag != mark || f.Known || f.Version != "0" {
		t.Errorf("found %+v", f)
	}
	desttest.Write(t, d, item("one", "the-value"))
	if got, _ := s.Get("one"); got != "the-value" {
		t.Errorf("the value is %q", got)
	}
	s.Hook("AddSecretVersion", func(context.Context, any) error { return status.Error(codes.NotFound, "not yet") })
	_, err = d.Write(t.Context(), item("two", "the-value"), desttest.Read(t, d, "two"))
	if e := desttest.Fails(t, err, destination.Unavailable); !e.Unknown || e.Class != destination.External {
		t.Errorf("a new secret that cannot be seen yet: %+v", e)
	}
}

// TestStaleLatest: "latest" of the service lags behind, which must not count as an old value that another client has restored.
func TestStaleLatest(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "v1"))
	desttest.Write(t, d, item("one", "v2"))
	s.Stale("one", 1)
	for name, d := range map[string]destination.Destination{"who wrote it": d, "another node": open(t, s, configured(nil))} {
		if f := desttest.Read(t, d, "one"); f.Version != "2" || string(f.Value) != "v2" {
			t.Errorf("%s finds version %s", name, f.Version)
		}
	}
	// Nothing but what this process remembers says so, if the note lags behind, too.
	s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-versions"] = "1" })
	if f := desttest.Read(t, d, "one"); f.Version != "2" {
		t.Errorf("found version %s", f.Version)
	}
	held := desttest.Write(t, d, item("one", "v3"))
	if f := desttest.Read(t, d, "one"); held.Version != "3" || f.Version != "3" || string(f.Value) != "v3" {
		t.Errorf("written %s, found %s", held.Version, f.Version)
	}
	s.Disable("one", 3)
	if f := desttest.Read(t, d, "one"); f.Version != "3 disabled" || f.Known {
		t.Errorf("found %+v", f)
	}
	// A note of a version that never was is no reason to find nothing.
	s.Stale("one", 0)
	s.Edit("one", func(_, annotations map[string]string) { annotations["coffer-versions"] = "1 99" })
	s.Put("one", "theirs")
	if f := desttest.Read(t, d, "one"); f.Version != "4" || string(f.Value) != "theirs" {
		t.Errorf("found %+v", f)
	}
	// What was made under the name before says nothing of a new secret.
	s.Remove("one")
	s.Put("one", "theirs")
	s.Calls()
	if f := desttest.Read(t, d, "one"); f.Version != "1" {
		t.Errorf("found %+v", f)
	}
	if calls := s.Calls(); len(calls) != 2 {
		t.Errorf("called %v", calls)
	}
}

// TestDisabled: what another client has disabled or destroyed differs from what was written, and is written again.
func TestDisabled(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	held := desttest.Write(t, d, item("one", "v1"))
	s.Disable("one", 1)
	f := desttest.Read(t, d, "one")
	if f.State != destination.Present || f.Known || f.Version == held.Version {
		t.Errorf("found %+v, written %+v", f, held)
	}
	if held, err := d.Write(t.Context(), item("one", "v1"), f); err != nil || held.Version != "2" {
		t.Errorf("written again: %+v, %v", held, err)
	}
	if err := d.Delete(t.Context(), desttest.Read(t, d, "one")); err != nil {
		t.Error(err)
	}
}

// TestWithoutAccess: a service account that may not read values still says which version there is.
func TestWithoutAccess(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Grant("secretmanager.secrets.create", "secretmanager.secrets.get", "secretmanager.secrets.delete", "secretmanager.secrets.update", "secretmanager.versions.add", "secretmanager.versions.get")
	desttest.Write(t, d, item("one", "v1"))
	held := desttest.Write(t, d, item("one", "v2"))
	f := desttest.Read(t, d, "one")
	if f.Known || f.Value != nil || f.Version != held.Version || f.OwnerTag != mark {
		t.Errorf("found %+v, written %+v", f, held)
	}
	if err := d.Delete(t.Context(), f); err != nil {
		t.Error(err)
	}
	s.Grant("secretmanager.secrets.get")
	s.Put("two", "v")
	_, err := d.Read(t.Context(), "two")
	if e := desttest.Fails(t, err, destination.Denied); !strings.Contains(e.Text, "secretmanager.versions.access") {
		t.Errorf("the text does not say what to grant: %s", e.Text)
	}
}

// TestDeleteByID: what was written down is enough to delete, and to notice another secret of the name.
func TestDeleteByID(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	held := desttest.Write(t, d, item("one", "v"))
	was := destination.Found{Name: "one", State: destination.Present, ID: held.ID, Version: held.Version}
	s.Remove("one")
	s.Put("one", "theirs")
	desttest.Fails(t, d.Delete(t.Context(), was), destination.Changed)
	if got, _ := s.Get("one"); got != "theirs" {
		t.Errorf("theirs is %q", got)
	}
	s.Remove("one")
	if err := d.Delete(t.Context(), was); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	held = desttest.Write(t, d, item("one", "v"))
	was.ID, was.Version = held.ID, held.Version
	if err := d.Delete(t.Context(), was); err != nil {
		t.Error(err)
	}
	if _, ok := s.Get("one"); ok {
		t.Error("it is still there")
	}
}

func TestNamesDoNotReachThePlace(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	for _, name := range []string{"", "a/b", "a/versions/1", "../x", "a b", "ä", "a?b", strings.Repeat("n", 256)} {
		_, err := d.Read(t.Context(), name)
		desttest.Fails(t, err, destination.BadRequest)
		_, err = d.Write(t.Context(), item(name, "v"), destination.Found{Name: name})
		desttest.Fails(t, err, destination.BadRequest)
		desttest.Fails(t, d.Delete(t.Context(), destination.Found{Name: name, State: destination.Present}), destination.BadRequest)
	}
	_, err := d.Write(t.Context(), item("empty", ""), destination.Found{Name: "empty"})
	if e := desttest.Fails(t, err, destination.BadRequest); !strings.Contains(e.Text, "empty") {
		t.Error(e.Text)
	}
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("called %v", calls)
	}
}

func TestRules(t *testing.T) {
	rules := cloud3sm.Type.Rules
	for name, want := range map[string]string{
		"vault/kv_1234/my secret": "vault-kv_1234-my-secret", "a.b+c": "a-b-c", "ü": "-", "already_Fine-1": "already_Fine-1", "\xff": "-",
	} {
		if got := rules.Normalise(name); got != want {
			t.Errorf("Normalise(%q) = %q, want %q", name, got, want)
		}
	}
	for _, test := range []struct {
		key, value string
		legal      bool
	}{
		{"team", "payments", true}, {"a", "", true}, {"größe", "ß-1_2", true}, {"日本", "日本", true}, {strings.Repeat("k", 63), strings.Repeat("v", 63), true},
		{"", "v", false}, {"Team", "v", false}, {"1team", "v", false}, {"-a", "v", false}, {"a.b", "v", false}, {"hashicorp:vault", "", false},
		{strings.Repeat("k", 64), "v", false}, {"k", strings.Repeat("v", 64), false}, {"k", "V", false}, {"k", "a b", false}, {"k\n", "v", false},
		{strings.Repeat("日", 43), "v", false}, {"k", strings.Repeat("日", 43), false}, {"k\xff", "v", false},
	} {
		problem := rules.CheckTag(test.key, test.value)
		if (problem == "") != test.legal {
			t.Errorf("CheckTag(%q, %q) = %q", test.key, test.value, problem)
		}
		// What the rules let through the destination takes, and the other way round.
		s := cloud3smtest.New(t)
		d := open(t, s, configured(nil))
		it := item("one", "v")
		it.Tags = map[string]string{test.key: test.value}
		if !strings.Contains(test.key+test.value, "\xff") {
			if _, err := d.Write(t.Context(), it, desttest.Read(t, d, "one")); (err == nil) != test.legal {
				t.Errorf("writing the label %q=%q: %v", test.key, test.value, err)
			}
		}
	}
}

func TestReplication(t *testing.T) {
	s := cloud3smtest.New(t)
	desttest.Write(t, open(t, s, configured(nil)), item("anywhere", "v"))
	desttest.Write(t, open(t, s, configured(func(c *cloud3sm.Config) { c.Locations = []string{"us-east1", " Europe-West1"} })), item("there", "v"))
	if s.Replication("anywhere").GetAutomatic() == nil {
		t.Error("without locations, the vendor does not choose")
	}
	var got []string
	for _, r := range s.Replication("there").GetUserManaged().GetReplicas() {
		got = append(got, r.Location)
	}
	if want := []string{"europe-west1", "us-east1"}; !slices.Equal(got, want) {
		t.Errorf("it is kept in %v, want %v", got, want)
	}
}

// TestListEnds also when the destination repeats its pages, and the caller may stop.
func TestListEnds(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	for i := range 120 {
		s.Put(fmt.Sprint("name-", i), "v")
	}
	s.Calls()
	n := 0
	for _, err := range d.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if calls := s.Calls(); n != 120 || len(calls) != 3 {
		t.Errorf("%d names in %v", n, calls)
	}
	for range d.List(t.Context()) {
		break
	}
	if calls := s.Calls(); len(calls) != 1 {
		t.Errorf("who has seen enough makes it call %v", calls)
	}
	token := ""
	s.Hook("ListSecrets", func(_ context.Context, req any) error {
		in := req.(*secretmanagerpb.ListSecretsRequest)
		if token = max(token, in.PageToken); token != "" {
			in.PageToken = "before-500" // the same page again and again
		}
		return nil
	})
	var last error
	for _, err := range d.List(t.Context()) {
		last = err
	}
	desttest.Fails(t, last, destination.Unexpected)
	if calls := s.Calls(); len(calls) > 4 {
		t.Errorf("it goes round %d times", len(calls))
	}
}

// TestFoundOfTheList: versions of secrets with an ownership tag are in the list, since drift is seen there.
func TestFoundOfTheList(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Put("theirs", "v")
	s.Calls()
	want := map[string]string{"theirs": ""} // version by name
	for _, name := range []string{"one", "changed", "disabled"} {
		want[name] = desttest.Write(t, d, item(name, "v")).Version
	}
	list := func() map[string]destination.Found {
		t.Helper()
		all := map[string]destination.Found{}
		for f, err := range d.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if f.Version != want[f.Name] || f.State != destination.Present || f.ID == "" || f.Known || (f.OwnerTag == mark) != (f.Name != "theirs") {
				t.Errorf("listed as %+v, want version %q", f, want[f.Name])
			}
			all[f.Name] = f
		}
		if len(all) != len(want) {
			t.Errorf("%d names are listed", len(all))
		}
		return all
	}
	list()
	s.Put("changed", "theirs")
	s.Disable("disabled", 1)
	want["changed"], want["disabled"] = "2", "1 disabled"
	s.Calls()
	all := list()
	if calls := s.Calls(); len(calls) != 5 { // the page, three accesses, and what is the matter with the disabled one
		t.Errorf("called %v", calls)
	}
	if err := d.Delete(t.Context(), all["one"]); err != nil { // what the list says is enough
		t.Error(err)
	}
	if f := desttest.Read(t, d, "one"); !reflect.DeepEqual(f, destination.Found{Name: "one"}) {
		t.Errorf("found %+v", f)
	}
	// Without the right to access it lists without versions, and does not go on asking.
	delete(want, "one")
	want["changed"], want["disabled"] = "", ""
	for i := range 40 {
		name := fmt.Sprint("more-", i)
		desttest.Write(t, d, item(name, "v"))
		want[name] = ""
	}
	s.Grant(without("secretmanager.versions.access")...)
	s.Calls()
	list()
	if calls := s.Calls(); len(calls) > 20 {
		t.Errorf("it asks %d times for what it may not have", len(calls))
	}
	// Trouble on the way ends the list.
	s.Grant(cloud3smtest.Permissions...)
	s.Hook("AccessSecretVersion", func(context.Context, any) error { return status.Error(codes.Unavailable, "later") })
	var last error
	for _, err := range d.List(t.Context()) {
		last = err
	}
	desttest.Fails(t, last, destination.Unavailable)
}

// TestCloseWaits: who closes does not break off what is under way.
func TestCloseWaits(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	was := desttest.Read(t, d, "one")
	s.Hook("CreateSecret", func(context.Context, any) error { return d.Close() })
	if _, err := d.Write(t.Context(), item("one", "v"), was); err != nil {
		t.Errorf("what was under way: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	_, err := d.Read(t.Context(), "one")
	if e := desttest.Fails(t, err, destination.Unreachable); e.Class != destination.External {
		t.Errorf("%+v", e)
	}
}
