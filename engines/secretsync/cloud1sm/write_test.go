package cloud1sm_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

func TestCreateIsOneCall(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.KMSKeyID = "alias/secrets" })
	it := item("value")
	it.Tags = map[string]string{"team": "payments", "empty": ""}
	held := write(t, d, it)
	did(t, s, "DescribeSecret", "CreateSecret")
	is, _ := s.Secret(name)
	if held.ID != is.ARN || held.Version != it.Token || is.KMSKeyID != "alias/secrets" || !is.Text {
		t.Errorf("held %+v, the destination has %+v", held, is)
	}
	if want := map[string]string{"team": "payments", "empty": "", "coffer:sync": ourMark}; !maps.Equal(is.Tags, want) {
		t.Errorf("tags %v, want %v", is.Tags, want)
	}
}

func TestUpdateMovesTheLabel(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	first := write(t, d, item("one"))
	second := write(t, d, item("two"))
	s.Actions()
	third := write(t, d, item("three"))
	did(t, s, "DescribeSecret", "GetSecretValue", "PutSecretValue", "UpdateSecretVersionStage")
	is, _ := s.Secret(name)
	want := fmt.Sprint(map[string][]string{first.Version: {}, second.Version: {"AWSPREVIOUS"}, third.Version: {"AWSCURRENT", "COFFER"}})
	if got := fmt.Sprint(is.Versions); got != want {
		t.Errorf("versions %s, want %s", got, want)
	}
	holds(t, s, "three")
}

// TestWriteOverAnotherVersion: nothing is overwritten that was not looked at, even for the blink between two calls.
func TestWriteOverAnotherVersion(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	was := read(t, d)
	s.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if c.Action == "UpdateSecretVersionStage" {
			s.Put(name, []byte("theirs"))
		}
		return awstest.Fault{}
	})
	it := item("two")
	_, err := d.Write(t.Context(), it, was)
	failed(t, err, destination.Client, destination.Changed, false)
	holds(t, s, "theirs")
	s.Fail(nil)
	// The race is decided for ours: the existing version is used.
	held, err := d.Write(t.Context(), it, read(t, d))
	if err != nil || held.Version != it.Token {
		t.Fatalf("held %+v, %v", held, err)
	}
	holds(t, s, "two")
	if is, _ := s.Secret(name); len(is.Versions) != 3 {
		t.Errorf("there are %d versions, want 3", len(is.Versions))
	}
}

// TestRepairWithTheSameToken: a value that was written before, and that another client has overwritten, comes back although its
// version is there, which the service would leave as it is.
func TestRepairWithTheSameToken(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	it := item("one")
	write(t, d, it)
	s.Put(name, []byte("theirs"))
	if held := write(t, d, it); held.Version != it.Token {
		t.Errorf("held %+v", held)
	}
	holds(t, s, "one")
}

func TestWriteOverANewSecret(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	for _, change := range []struct {
		name string
		do   func()
	}{
		{"another", func() { s.Drop(name); s.Put(name, []byte("theirs")) }},
		{"none", func() { s.Drop(name) }},
	} {
		was := read(t, d)
		change.do()
		it := item("two")
		it.Tags = map[string]string{"new": "tag"}
		_, err := d.Write(t.Context(), it, was)
		failed(t, err, destination.Client, destination.Changed, false)
		if err := d.Delete(t.Context(), was); err != nil {
			t.Errorf("%s: deleting what has gone: %v", change.name, err)
		}
		if change.name == "another" {
			holds(t, s, "theirs")
			if is, _ := s.Secret(name); len(is.Tags) != 0 {
				t.Errorf("a secret of another client has got the tags %v", is.Tags)
			}
		}
	}
}

func TestDeletedMeanwhile(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	was := read(t, d)
	s.Schedule(name, 10*24*time.Hour)
	_, err := d.Write(t.Context(), item("two"), was)
	failed(t, err, destination.Client, destination.Changed, false)
	if err := d.Delete(t.Context(), was); err != nil {
		t.Errorf("deleting what is scheduled for deletion: %v", err)
	}
	if is, _ := s.Secret(name); is.Scheduled < 9*24*time.Hour {
		t.Errorf("the time for recovery is %v", is.Scheduled)
	}
}

func TestRecoveryWindow(t *testing.T) {
	for _, test := range []struct {
		days  int
		given bool
		want  time.Duration
	}{{0, false, 30}, {7, true, 7}, {30, true, 30}, {0, true, 0}} {
		t.Run(fmt.Sprint(test.days, test.given), func(t *testing.T) {
			s := cloud1smtest.New(t)
			d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) {
				if test.given {
					c.RecoveryWindowInDays = &test.days
				}
			})
			write(t, d, item("one"))
			if err := d.Delete(t.Context(), read(t, d)); err != nil {
				t.Fatal(err)
			}
			is, ok := s.Secret(name)
			if got := is.Scheduled.Round(time.Hour) / (24 * time.Hour); got != test.want || ok != (test.want > 0) {
				t.Errorf("it is there: %v, for %d days, want %d", ok, got, test.want)
			}
			// What is scheduled stays so, or goes now if that is how things are deleted here.
			f := read(t, d)
			if err := d.Delete(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			if again, _ := s.Secret(name); again.ARN != is.ARN {
				t.Errorf("deleting it again has changed it: %+v", again)
			}
		})
	}
}

// What another client has done since the look is not undone by a deletion, and not deleted.
func TestDeleteOfAnOldView(t *testing.T) {
	for what, change := range map[string]func(*cloud1smtest.Server){
		"another mark":  func(s *cloud1smtest.Server) { s.Tag(name, map[string]string{"coffer:sync": "theirs"}) },
		"scheduled":     func(s *cloud1smtest.Server) { s.Schedule(name, 24*time.Hour) },
		"created again": func(s *cloud1smtest.Server) { s.Drop(name); s.Put(name, []byte("theirs")) },
	} {
		t.Run(what, func(t *testing.T) {
			s := cloud1smtest.New(t)
			d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RecoveryWindowInDays = new(int) })
			write(t, d, item("one"))
			was := read(t, d)
			change(s)
			err := d.Delete(t.Context(), was)
			if what != "created again" {
				failed(t, err, destination.Client, destination.Changed, false)
			} else if err != nil {
				t.Error(err)
			}
			if _, ok := s.Secret(name); !ok {
				t.Error("it was deleted")
			}
		})
	}
}

func TestDeletedForGoodByAnotherConfiguration(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RecoveryWindowInDays = new(int) })
	s.Put(name, []byte("one"))
	s.Schedule(name, 24*time.Hour)
	if err := d.Delete(t.Context(), read(t, d)); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Secret(name); ok {
		t.Error("it is still there")
	}
}

func TestRecover(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	held := write(t, d, item("one"))
	if err := d.Delete(t.Context(), read(t, d)); err != nil {
		t.Fatal(err)
	}
	f := read(t, d)
	if f.State != destination.Deleted || f.OwnerTag != ourMark || f.ID != held.ID || f.Known {
		t.Fatalf("found %+v", f)
	}
	s.Actions()
	it := item("two")
	again, err := d.Write(t.Context(), it, f)
	if err != nil || again.ID != held.ID || again.Version != it.Token {
		t.Fatalf("held %+v, %v", again, err)
	}
	did(t, s, "RestoreSecret", "PutSecretValue", "UpdateSecretVersionStage")
	holds(t, s, "two")
}

func TestRecoverWhatIsGone(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	s.Schedule(name, 24*time.Hour)
	f := read(t, d)
	s.Advance(25 * time.Hour)
	s.Put(name, []byte("theirs"))
	s.Advance(-25 * time.Hour)
	_, err := d.Write(t.Context(), item("two"), f)
	failed(t, err, destination.Client, destination.Changed, false)
	holds(t, s, "theirs")
}

func TestCreateOverAScheduledName(t *testing.T) {
	s := cloud1smtest.New(t, cloud1smtest.SlowDeletion())
	d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RecoveryWindowInDays = new(int) })
	absent := read(t, d)
	s.Put(name, []byte("theirs"))
	s.Schedule(name, 24*time.Hour)
	_, err := d.Write(t.Context(), item("one"), absent)
	failed(t, err, destination.Client, destination.Exists, false)

	if err := d.Delete(t.Context(), read(t, d)); err != nil {
		t.Fatal(err)
	}
	if f := read(t, d); f.State != destination.Absent {
		t.Errorf("found %+v", f)
	}
	_, err = d.Write(t.Context(), item("one"), absent)
	failed(t, err, destination.External, destination.Recovering, false)
	s.Settle()
	write(t, d, item("one"))
	holds(t, s, "one")
}

func TestLostAnswersAreNoSecondVersion(t *testing.T) {
	lost := awstest.Fault{When: awstest.AfterCommit, Drop: true}
	for _, action := range []string{"CreateSecret", "RestoreSecret", "UntagResource", "TagResource", "PutSecretValue", "UpdateSecretVersionStage"} {
		t.Run(action, func(t *testing.T) {
			s := cloud1smtest.New(t)
			d := open(t, s, destination.Env{}, nil)
			versions := 1
			if action != "CreateSecret" {
				versions = 2
				it := item("one")
				it.Tags = map[string]string{"old": "tag"}
				write(t, d, it)
				if action == "RestoreSecret" {
					s.Schedule(name, 24*time.Hour)
				}
			}
			was := read(t, d)
			it := item("two")
			it.Tags, it.OldTags = map[string]string{"new": "tag"}, []string{"old"}
			s.FailNext(1, action, lost)
			_, err := d.Write(t.Context(), it, was)
			failed(t, err, destination.External, destination.Unreachable, true)
			if f := read(t, d); f.Version == it.Token && (f.OwnerTag != ourMark || action == "TagResource") {
				t.Errorf("the version is current before all of the write is done: %+v", f)
			}
			// With what was found then, as well as with what is found now.
			for _, was := range []destination.Found{was, read(t, d)} {
				held, err := d.Write(t.Context(), it, was)
				if err != nil || held.Version != it.Token {
					t.Fatalf("held %+v, %v", held, err)
				}
			}
			holds(t, s, "two")
			is, _ := s.Secret(name)
			if len(is.Versions) != versions || !maps.Equal(is.Tags, map[string]string{"new": "tag", "coffer:sync": ourMark}) {
				t.Errorf("the destination has %+v", is)
			}
		})
	}
}

func TestUnknown(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	was := read(t, d)
	it := item("two")
	it.Tags = map[string]string{"new": "tag"}
	// What is rejected after a part was done has a part done.
	s.FailNext(1, "PutSecretValue", awstest.Fault{Code: "LimitExceededException"})
	_, err := d.Write(t.Context(), it, was)
	failed(t, err, destination.Client, destination.Quota, true)
	if text := err.Error(); !strings.Contains(text, "versions") || !strings.Contains(text, "less often") || !strings.Contains(text, "LimitExceeded") {
		t.Errorf("%q does not say that there are too many versions, and what to do", text)
	}
	was = read(t, d)
	s.FailNext(1, "PutSecretValue", awstest.Fault{Code: "LimitExceededException"})
	_, err = d.Write(t.Context(), it, was)
	failed(t, err, destination.Client, destination.Quota, false)
	s.Fail(nil)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.Write(ctx, it, was)
	failed(t, err, destination.External, destination.Unreachable, false)
	s.FailNext(1, "DeleteSecret", awstest.Fault{Status: 503, When: awstest.AfterCommit})
	failed(t, d.Delete(t.Context(), was), destination.External, destination.Unavailable, true)
}

func TestTags(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	it := item("one")
	it.Tags = map[string]string{"team": "payments", "stage": "test"}
	write(t, d, it)
	theirs := map[string]string{}
	for i := range 47 {
		theirs[fmt.Sprint("theirs ", i)] = "x"
	}
	s.Tag(name, theirs)
	s.Actions()

	// 50 tags are there: a new one needs the room of an old one.
	it = item("two")
	it.Tags, it.OldTags = map[string]string{"team": "payments", "new": "1"}, []string{"stage", "never", "coffer:sync"}
	write(t, d, it)
	did(t, s, "DescribeSecret", "GetSecretValue", "UntagResource", "TagResource", "PutSecretValue", "UpdateSecretVersionStage")
	want := maps.Clone(theirs)
	maps.Copy(want, map[string]string{"team": "payments", "new": "1", "coffer:sync": ourMark})
	if is, _ := s.Secret(name); !maps.Equal(is.Tags, want) {
		t.Errorf("tags %v", is.Tags)
	}

	it = item("three")
	it.Tags = map[string]string{"one more": ""}
	_, err := d.Write(t.Context(), it, read(t, d))
	failed(t, err, destination.Client, destination.Quota, false)
	did(t, s, "DescribeSecret", "GetSecretValue")
	holds(t, s, "two")

	it = item("four")
	it.Name, it.Tags = "other", map[string]string{}
	for i := range 50 {
		it.Tags[fmt.Sprint(i)] = ""
	}
	_, err = d.Write(t.Context(), it, destination.Found{Name: "other"})
	failed(t, err, destination.Client, destination.Quota, false)
}

func TestTakeOver(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	s.Put(name, []byte("theirs"))
	f := read(t, d)
	if f.OwnerTag != "" || f.State != destination.Present || string(f.Value) != "theirs" {
		t.Errorf("found %+v", f)
	}
	if ago := time.Since(f.ChangedAt); ago.Abs() > time.Minute {
		t.Errorf("it was changed %v ago", ago)
	}
	s.Tag(name, map[string]string{"coffer:sync": "another"})
	if f = read(t, d); f.OwnerTag != "another" {
		t.Errorf("the mark is %q", f.OwnerTag)
	}
	f.Handle = nil // it is looked up again
	if _, err := d.Write(t.Context(), item("ours"), f); err != nil {
		t.Fatal(err)
	}
	if f := read(t, d); f.OwnerTag != ourMark || string(f.Value) != "ours" {
		t.Errorf("found %+v", f)
	}
}

// TestSecretWithoutAValue is one that was created without a value.
func TestSecretWithoutAValue(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	s.Put(name, []byte("gone"))
	s.Empty(name)
	f := read(t, d)
	if f.State != destination.Present || f.Version != "" || f.Known {
		t.Errorf("found %+v", f)
	}
	s.Put(name, []byte("theirs"))
	_, err := d.Write(t.Context(), item("ours"), f)
	failed(t, err, destination.Client, destination.Changed, true) // the tags are ours
	holds(t, s, "theirs")
	s.Empty(name)
	write(t, d, item("ours"))
	holds(t, s, "ours")
}

// TestWrongOrders are those that no client may give.
func TestWrongOrders(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	s.Put(name, []byte("theirs"))
	was := read(t, d)
	s.Actions()
	nameless := was
	nameless.ID = ""
	other := item("ours")
	other.Name = "other"
	illegal := item("ours")
	illegal.Name = "a b"
	_, err := d.Write(t.Context(), item("ours"), nameless)
	failed(t, err, destination.Internal, destination.Unexpected, false)
	_, err = d.Write(t.Context(), other, was)
	failed(t, err, destination.Internal, destination.Unexpected, false)
	_, err = d.Write(t.Context(), illegal, destination.Found{Name: illegal.Name})
	failed(t, err, destination.Client, destination.BadRequest, false)
	failed(t, d.Delete(t.Context(), nameless), destination.Internal, destination.Unexpected, false)
	did(t, s)

	// A token is for one value only.
	it := item("one")
	write(t, d, it)
	it.Value = []byte("two")
	_, err = d.Write(t.Context(), it, read(t, d))
	failed(t, err, destination.Internal, destination.Unexpected, false)
	holds(t, s, "one")
}

func TestValues(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	for _, test := range []struct {
		value []byte
		text  bool
	}{
		{[]byte("\x00"), true},
		{[]byte("\u2028<>&\"\\/\ufffd\U0010ffff"), true},
		{[]byte{0xff, 0xfe}, false},
		{bytes.Repeat([]byte{0x80}, 65536), false},
		{[]byte(strings.Repeat("ü", 32768)), true},
		{bytes.Repeat([]byte{1}, 65536), true},
	} {
		it := item("")
		it.Value = test.value
		write(t, d, it)
		holds(t, s, string(test.value))
		if f := read(t, d); !f.Known || !bytes.Equal(f.Value, test.value) {
			t.Errorf("%.9q is not read back", test.value)
		}
		if is, _ := s.Secret(name); is.Text != test.text {
			t.Errorf("%.9q is a text: %v", test.value, is.Text)
		}
	}
	s.Actions()
	for _, test := range []struct {
		value []byte
		code  string
	}{
		{nil, destination.BadRequest},
		{[]byte(strings.Repeat("ü", 32769)), destination.TooLarge},
	} {
		it := item("")
		it.Value = test.value
		_, err := d.Write(t.Context(), it, destination.Found{Name: name})
		failed(t, err, destination.Client, test.code, false)
	}
	did(t, s)
}

func TestManagedSecrets(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	s.Put(name, []byte("theirs"))
	s.Manage(name, "rds")
	was := read(t, d)
	was.OwnerTag = ourMark
	it := item("ours")
	it.OwnerTag = ""
	_, err := d.Write(t.Context(), it, was)
	failed(t, err, destination.Client, destination.BadRequest, false)
	e := failed(t, d.Delete(t.Context(), read(t, d)), destination.Client, destination.BadRequest, false)
	if !strings.Contains(e.Text, "managed by rds") {
		t.Errorf("the error says %q", e.Text)
	}
	holds(t, s, "theirs")
}

func TestValueThatMayNotBeRead(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	s.Deny(func(action, _ string) bool { return action == "GetSecretValue" })
	if f := read(t, d); f.State != destination.Present || f.OwnerTag != ourMark || f.Known {
		t.Errorf("found %+v", f)
	}
	s.Deny(nil)
	s.FailNext(1, "GetSecretValue", awstest.Fault{Code: "DecryptionFailure"})
	if f := read(t, d); f.State != destination.Present || f.Known {
		t.Errorf("found %+v", f)
	}
	// Between the two calls, it goes.
	s.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if c.Action == "GetSecretValue" {
			s.Schedule(name, time.Hour)
		}
		return awstest.Fault{}
	})
	if f := read(t, d); f.State != destination.Deleted || f.Known {
		t.Errorf("found %+v", f)
	}
}

func TestTooManyVersions(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	for i := range 100 {
		write(t, d, item(strings.Repeat("x", 100-i)))
	}
	it := item("y")
	_, err := d.Write(t.Context(), it, read(t, d))
	failed(t, err, destination.Client, destination.Quota, false)
	holds(t, s, "x")
}

func TestList(t *testing.T) {
	s := cloud1smtest.New(t, cloud1smtest.PageSize(2))
	d := open(t, s, destination.Env{}, nil)
	held := write(t, d, item("one"))
	for _, other := range []string{"b", "c", "d"} {
		s.Put(other, []byte("theirs"))
	}
	s.Schedule("d", time.Hour)
	s.Actions()
	var got []string
	for f, err := range d.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(f.Name, f.State, f.OwnerTag))
		if f.Name == name && (f.ID != held.ID || f.Version != held.Version || f.ChangedAt.IsZero()) {
			t.Errorf("listed %+v, want %+v", f, held)
		}
	}
	if want := []string{name + fmt.Sprint(destination.Present) + ourMark, "b1", "c1", "d2"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	did(t, s, "ListSecrets", "ListSecrets")
	s.FailNext(1, "ListSecrets", awstest.Fault{Code: "ThrottlingException", RetryAfter: 3 * time.Second})
	n := 0
	for _, err := range d.List(t.Context()) {
		n++
		if e := failed(t, err, destination.External, destination.Throttled, false); e.RetryAfter != 3*time.Second {
			t.Errorf("retry after %v", e.RetryAfter)
		}
	}
	if n != 1 {
		t.Errorf("%d errors", n)
	}
}

// TestMadeAnewMeanwhile: what another client makes under the name in the middle of a write or a deletion is another secret,
// which gets nothing of ours.
func TestMadeAnewMeanwhile(t *testing.T) {
	for _, action := range []string{"TagResource", "PutSecretValue", "UpdateSecretVersionStage", "DeleteSecret"} {
		t.Run(action, func(t *testing.T) {
			s := cloud1smtest.New(t)
			d := open(t, s, destination.Env{}, nil)
			write(t, d, item("one"))
			was := read(t, d)
			s.Fail(func(c cloud1smtest.Call) awstest.Fault {
				if c.Action == action {
					s.Fail(nil)
					s.Drop(name)
					s.Put(name, []byte("theirs"))
				}
				return awstest.Fault{}
			})
			it := item("two")
			it.Tags = map[string]string{"team": "payments"}
			if action == "DeleteSecret" {
				if err := d.Delete(t.Context(), was); err != nil {
					t.Error(err)
				}
			} else {
				_, err := d.Write(t.Context(), it, was)
				failed(t, err, destination.Client, destination.Changed, action != "TagResource")
			}
			is, ok := s.Secret(name)
			if !ok || is.Scheduled != 0 || len(is.Tags) > 0 || len(is.Versions) != 1 {
				t.Errorf("what is there: %v, %+v", ok, is)
			}
		})
	}
}

// TestTwoAttemptsAtOnce: the other attempt of the very same write was quicker in the middle of ours.
func TestTwoAttemptsAtOnce(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	was, it := read(t, d), item("two")
	var once sync.Once
	s.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if c.Action == "UpdateSecretVersionStage" {
			once.Do(func() {
				s.Fail(nil)
				if _, err := d.Write(t.Context(), it, was); err != nil {
					t.Error(err)
				}
			})
		}
		return awstest.Fault{}
	})
	if held, err := d.Write(t.Context(), it, was); err != nil || held.Version != it.Token {
		t.Errorf("held %+v, %v", held, err)
	}
	holds(t, s, "two")
}

// TestSomethingElse is at the address: nothing it says passes for success.
func TestSomethingElse(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item("one"))
	was := read(t, d)
	for _, page := range []struct{ kind, body string }{
		{"text/html", "<html>Welcome</html>"},
		{"application/x-amz-json-1.1", "<html>"},
		{"application/x-amz-json-1.1", "{}"},
		{"application/x-amz-json-1.1", `{"ARN":"arn:other","Name":"other"}`},
		{"application/x-amz-json-1.1", strings.Repeat(" ", 9<<20)},
	} {
		other := open(t, s, destination.Env{Client: &http.Client{Transport: always{page.kind, page.body}}}, nil)
		_, err := other.Read(t.Context(), name)
		failed(t, err, destination.External, destination.Unexpected, false)
		if len(page.body) > 1<<20 {
			continue
		}
		it := item("two")
		it.OwnerTag, it.Tags = ourMark, map[string]string{"new": page.kind}
		if page.kind == "application/x-amz-json-1.1" {
			it.Tags = nil // setting tags has no response to look at
		}
		_, err = other.Write(t.Context(), it, was)
		failed(t, err, destination.External, destination.Unexpected, true)
		_, err = other.Write(t.Context(), it, destination.Found{Name: name})
		failed(t, err, destination.External, destination.Unexpected, true)
	}
}

// always answers the same.
type always struct{ kind, body string }
