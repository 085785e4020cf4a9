// Package desttest is what every type of destination must pass, against a destination that behaves like the vendor's:
//
//	func TestDestination(t *testing.T) {
//		desttest.Run(t, mine.Type, func(t *testing.T) desttest.Fake { return newFake(t) })
//	}
//
// It also has the faults that destinations show, for fakes that speak HTTP (see Faults).
package desttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Fake is a destination for tests, empty at first.
type Fake interface {
	// Open returns the destination, which the suite closes.
	Open(t *testing.T) destination.Destination
	// Put writes a name as another client would, without any ownership tag of ours.
	Put(t *testing.T, name, value string)
	// Get returns the value that another client of the destination reads under a name.
	Get(t *testing.T, name string) (value string, ok bool)
	// Fail has the next calls that fit the fault fail so, until it is called with the zero Fault.
	Fail(f Fault)
	// Secrets are credentials that no text may hold.
	Secrets() []string
}

// Kind is a way to fail.
type Kind int

const (
	None       Kind = iota
	Throttle        // 429 or what the vendor has for it, with RetryAfter
	Trouble         // 503
	Reject          // the credentials are not good enough
	DropBefore      // the connection breaks before anything is done
	DropAfter       // the call is carried out, and the response is lost
	Hang            // no response until the client gives up
)

// Fault says how calls fail.
type Fault struct {
	Kind       Kind
	RetryAfter time.Duration // of Throttle
	Writes     bool          // only calls that write
	Times      int           // this many; 0: all
}

const (
	mark    = "0123456789abcdef0123456789abcdef-fedcba9876543210fedcba9876543210"
	another = "0123456789abcdef0123456789abcdef-00000000000000000000000000000000"
)

// suite is one running test.
type suite struct {
	t     *testing.T
	rules destination.Rules
	fake  Fake
	dest  destination.Destination
}

// Run runs all tests, each on a destination of its own.
func Run(t *testing.T, kind destination.Type, newFake func(t *testing.T) Fake) {
	t.Run("rules", func(t *testing.T) { checkRules(t, kind.Rules) })
	for name, test := range map[string]func(*suite){
		"a name that is not there":                (*suite).absent,
		"create, read, update, delete":            (*suite).life,
		"a name of another client is not created": (*suite).foreignStays,
		"an old view of a name does not write":    (*suite).changed,
		"an old view of a name does not delete":   (*suite).changedDelete,
		"a write that is done again":              (*suite).again,
		"a deleted name comes back":               (*suite).recovered,
		"the list":                                (*suite).list,
		"the largest value":                       (*suite).largest,
		"values of any bytes":                     (*suite).bytes,
		"tags":                                    (*suite).tags,
		"throttled":                               (*suite).throttled,
		"trouble":                                 (*suite).trouble,
		"rejected":                                (*suite).rejected,
		"a lost request":                          (*suite).lostRequest,
		"a lost answer":                           (*suite).lostAnswer,
		"a lost answer to an update":              (*suite).lostUpdate,
		"no answer":                               (*suite).noAnswer,
		"verify":                                  (*suite).verify,
		"many at once":                            (*suite).parallel,
	} {
		t.Run(name, func(t *testing.T) { test(open(t, kind, newFake)) })
	}
	for name, test := range hooked {
		t.Run(name, func(t *testing.T) {
			s := open(t, kind, newFake)
			if f, ok := s.fake.(Hooked); ok {
				test(s, f)
			}
		})
	}
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("storm ", seed), func(t *testing.T) { open(t, kind, newFake).storm(seed) })
	}
}

func open(t *testing.T, kind destination.Type, newFake func(t *testing.T) Fake) *suite {
	p := newFake(t)
	s := &suite{t: t, rules: kind.Rules, fake: p, dest: p.Open(t)}
	if kind.Rules.WriteOnly {
		s.dest = &remembering{Destination: s.dest, held: map[string]destination.Found{}}
	}
	t.Cleanup(func() {
		if err := s.dest.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

// checkRules holds the rules to their own word.
func checkRules(t *testing.T, r destination.Rules) {
	t.Helper()
	if r.Granularity != destination.SecretPath && r.Granularity != destination.SecretKey {
		t.Errorf("the default granularity is %q", r.Granularity)
	}
	if r.Template == "" || r.MaxValue == 0 || r.Rate.Writes == 0 || r.Rate.Reads == 0 || r.Rate.WriteBurst < 1 || r.Rate.ReadBurst < 1 || r.Rate.Concurrency < 1 {
		t.Errorf("rules are missing: %+v", r)
	}
	legal := func(name string) bool {
		out := r.Normalise(name)
		if again := r.Normalise(out); again != out {
			t.Errorf("normalising twice makes %q of %q", again, out)
			return false
		}
		if r.Fold != nil && r.Fold(r.Fold(out)) != r.Fold(out) {
			t.Errorf("folding %q twice is not folding it once", out)
			return false
		}
		// What is too long, empty or reserved stays illegal, with a reason; letters never are the reason.
		problem := r.CheckName(out)
		return problem == "" || r.CheckName(r.Normalise("a"+strings.ToLower(keepLetters(name))+"a")) == "" || len(name) > 60
	}
	if err := quick.Check(legal, nil); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", strings.Repeat("n", 4096)} {
		if r.CheckName(name) == "" {
			t.Errorf("a name of %d bytes is legal", len(name))
		}
	}
	if problem := r.CheckName(r.Normalise("coffer/kv_1234/my secret")); problem != "" {
		t.Errorf("an ordinary name is not legal: %s", problem)
	}
}

func keepLetters(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, s)
}

func (s *suite) ctx() context.Context { return s.t.Context() }

func (s *suite) name(text string) string { return s.rules.Normalise(text) }

func (s *suite) item(name, value string) destination.Item {
	return destination.Item{Name: s.name(name), Value: []byte(value), OwnerTag: mark, Token: fmt.Sprintf("%x", sha256.Sum256([]byte(name+"\x00"+value)))[:32]}
}

func (s *suite) read(name string) destination.Found {
	s.t.Helper()
	found, err := s.dest.Read(s.ctx(), s.name(name))
	if err != nil {
		s.t.Fatalf("reading %s: %v", name, err)
	}
	return found
}

// write writes what is not there yet, or what was read just now.
func (s *suite) write(name, value string) destination.Held {
	s.t.Helper()
	held, err := s.dest.Write(s.ctx(), s.item(name, value), s.read(name))
	if err != nil {
		s.t.Fatalf("writing %s: %v", name, err)
	}
	return held
}

// holds checks the value that another client of the destination reads.
func (s *suite) holds(name, value string) {
	s.t.Helper()
	got, ok := s.fake.Get(s.t, s.name(name))
	switch {
	case !ok:
		s.t.Errorf("%s is not at the destination", name)
	case got != value:
		s.t.Errorf("%s is another value at the destination", name)
	}
}

// present says what Read must find of ours.
func (s *suite) present(name, value string, held destination.Held) destination.Found {
	s.t.Helper()
	f := s.read(name)
	if f.State != destination.Present || f.ID != held.ID || f.Version != held.Version {
		s.t.Errorf("%s: found state %d, id %q, version %q; the write left %+v", name, f.State, f.ID, f.Version, held)
	}
	if s.rules.HasOwnerTags && f.OwnerTag != mark {
		s.t.Errorf("%s: the mark is %q", name, f.OwnerTag)
	}
	if f.Known && !bytes.Equal(f.Value, []byte(value)) {
		s.t.Errorf("%s: another value is read back", name)
	}
	if f.Known != s.rules.Readable {
		s.t.Errorf("%s: values can be read: %v, the rules say %v", name, f.Known, s.rules.Readable)
	}
	return f
}

// failed says how a call must have failed, and that its text gives nothing away.
func (s *suite) failed(err error, codes ...string) *destination.Error {
	s.t.Helper()
	var e *destination.Error
	if !errors.As(err, &e) {
		s.t.Fatalf("failed with %T %v, want a *destination.Error with code %v", err, err, codes)
	}
	if !slices.Contains(codes, e.Code) {
		s.t.Errorf("failed with %q (%s), want %v", e.Code, e.Text, codes)
	}
	if e.Text == "" || e.Class == "" {
		s.t.Errorf("the error says too little: %+v", e)
	}
	for text := range strings.SplitSeq(fmt.Sprintf("%v\n%s\n%v", err, e.Text, e.Err), "\n") {
		for _, secret := range append(s.fake.Secrets(), "the-value") {
			if secret != "" && strings.Contains(text, secret) {
				s.t.Errorf("an error of code %q tells a secret", e.Code)
			}
		}
	}
	return e
}

func (s *suite) absent() {
	f := s.read("nothing")
	if f.State != destination.Absent || f.OwnerTag != "" {
		s.t.Errorf("found %+v", f)
	}
	if err := s.dest.Delete(s.ctx(), f); err != nil {
		s.t.Errorf("deleting it: %v", err)
	}
}

func (s *suite) life() {
	held := s.write("one", "the-value-1")
	s.holds("one", "the-value-1")
	s.present("one", "the-value-1", held)

	next := s.write("one", "the-value-2")
	s.holds("one", "the-value-2")
	if next.Version == held.Version {
		s.t.Error("a write leaves the version as it was")
	}
	f := s.present("one", "the-value-2", next)

	if err := s.dest.Delete(s.ctx(), f); err != nil {
		s.t.Fatal(err)
	}
	if _, ok := s.fake.Get(s.t, s.name("one")); ok {
		s.t.Error("it is still there after it was deleted")
	}
	if after := s.read("one"); after.State == destination.Present {
		s.t.Error("read finds it after it was deleted")
	}
	if err := s.dest.Delete(s.ctx(), f); err != nil {
		s.t.Errorf("deleting what has gone: %v", err)
	}
}

func (s *suite) foreignStays() {
	before := s.read("theirs")
	s.fake.Put(s.t, s.name("theirs"), "their-value")
	_, err := s.dest.Write(s.ctx(), s.item("theirs", "the-value"), before)
	s.failed(err, destination.Exists)
	s.holds("theirs", "their-value")
	f := s.read("theirs")
	if s.rules.WriteOnly {
		f.State = destination.Present
	}
	if f.State != destination.Present || f.OwnerTag == mark {
		s.t.Errorf("found state %d with the mark %q", f.State, f.OwnerTag)
	}
	// Told to, it takes the name over.
	held, err := s.dest.Write(s.ctx(), s.item("theirs", "the-value"), f)
	if err != nil {
		s.t.Fatalf("taking it over: %v", err)
	}
	s.holds("theirs", "the-value")
	s.present("theirs", "the-value", held)
}

// changed: where the destination has a call for it, what has changed since it was read is not overwritten; elsewhere it is seen by
// the next read.
func (s *suite) changed() {
	held := s.write("one", "the-value")
	before := s.read("one")
	s.fake.Put(s.t, s.name("one"), "their-value")
	if now := s.read("one"); now.ID == held.ID && now.Version == held.Version && !s.rules.WriteOnly {
		s.t.Error("what another client has written is not noticed")
	}
	if _, err := s.dest.Write(s.ctx(), s.item("one", "the-value-2"), before); err != nil {
		s.failed(err, destination.Changed)
		s.holds("one", "their-value")
	}
}

// changedDelete: what another client has made of a name is not deleted, nor what they have created again under it.
func (s *suite) changedDelete() {
	s.write("one", "the-value")
	before := s.read("one")
	s.fake.Put(s.t, s.name("one"), "their-value")
	s.failed(s.dest.Delete(s.ctx(), before), destination.Changed)
	s.holds("one", "their-value")
	if s.rules.WriteOnly {
		return
	}
	if err := s.dest.Delete(s.ctx(), s.read("one")); err != nil {
		s.t.Fatal(err)
	}
	if s.read("one").State != destination.Absent {
		return // the name is not free
	}
	s.fake.Put(s.t, s.name("one"), "their-value-2")
	if err := s.dest.Delete(s.ctx(), before); err != nil {
		s.failed(err, destination.Changed)
	}
	s.holds("one", "their-value-2")
}

// again: who does not know of a write that it was done makes it once more, with the same Token, after another look.
func (s *suite) again() {
	s.write("one", "the-value-1")
	it := s.item("one", "the-value-2")
	for range 2 {
		held, err := s.dest.Write(s.ctx(), it, s.read("one"))
		if err != nil {
			s.t.Fatal(err)
		}
		s.holds("one", "the-value-2")
		s.present("one", "the-value-2", held)
	}
}

func (s *suite) recovered() {
	s.write("one", "the-value-1")
	if err := s.dest.Delete(s.ctx(), s.read("one")); err != nil {
		s.t.Fatal(err)
	}
	f := s.read("one")
	if s.rules.HasOwnerTags && f.State == destination.Deleted && f.OwnerTag != mark {
		s.t.Errorf("a deleted name of ours has the mark %q", f.OwnerTag)
	}
	held, err := s.dest.Write(s.ctx(), s.item("one", "the-value-2"), f)
	if err != nil {
		s.t.Fatal(err)
	}
	s.holds("one", "the-value-2")
	s.present("one", "the-value-2", held)
}

func (s *suite) list() {
	if s.rules.WriteOnly {
		for f, err := range s.dest.List(s.ctx()) {
			s.t.Errorf("what cannot be listed has %q (%v)", f.Name, err)
		}
		return
	}
	const own = 10
	others := 120 // in all more than a page of any vendor
	if s.rules.MaxNames > 0 {
		others = min(others, s.rules.MaxNames-2*own)
	}
	want := map[string]bool{}
	for i := range own {
		name := fmt.Sprintf("name %d", i)
		want[s.fold(s.name(name))] = true
		s.write(name, "the-value")
	}
	for i := range others {
		name := s.name(fmt.Sprintf("other %d", i))
		want[s.fold(name)] = true
		s.fake.Put(s.t, name, "their-value")
	}
	seen := map[string]destination.Found{}
	for f, err := range s.dest.List(s.ctx()) {
		if err != nil {
			s.t.Fatal(err)
		}
		if f.Known || f.Value != nil {
			s.t.Errorf("the list has the value of %s", f.Name)
		}
		if _, twice := seen[s.fold(f.Name)]; twice {
			s.t.Errorf("%s is listed twice", f.Name)
		}
		seen[s.fold(f.Name)] = f
	}
	if theirs, ok := seen[s.fold(s.name("other 7"))]; !ok || theirs.OwnerTag == mark {
		s.t.Errorf("the name of another client is listed: %v, with the mark %q", ok, theirs.OwnerTag)
	}
	for name := range want {
		if f, ok := seen[name]; !ok || f.State != destination.Present {
			s.t.Fatalf("%s is not listed, of %v", name, slices.Sorted(maps.Keys(seen)))
		}
	}
	for range s.dest.List(s.ctx()) {
		break // the caller may stop
	}
}

func (s *suite) fold(name string) string {
	if s.rules.Fold == nil {
		return name
	}
	return s.rules.Fold(name)
}

func (s *suite) largest() {
	value := strings.Repeat("v", s.rules.MaxValue)
	s.write("large", value)
	s.holds("large", value)
	it := s.item("larger", "v")
	it.Value = []byte(value + "v")
	_, err := s.dest.Write(s.ctx(), it, s.read("larger"))
	if e := s.failed(err, destination.TooLarge); e.Class != destination.Client || !strings.Contains(e.Text, strconv.Itoa(s.rules.MaxValue)) {
		s.t.Errorf("too large a value is the fault of %q: %s", e.Class, e.Text)
	}
}

func (s *suite) bytes() {
	for i, value := range []string{" ", "{}", `"quoted"`, "line\nline\r\n", "ünïcödé ✓ \U0001F512", "\ttab", "a=b&c=d%20", "${{ secrets.X }}", "</script>"} {
		name := fmt.Sprintf("value %d", i)
		if s.rules.CheckValue != nil && s.rules.CheckValue([]byte(value)) != "" {
			_, err := s.dest.Write(s.ctx(), s.item(name, value), s.read(name))
			s.failed(err, destination.BadRequest)
			continue
		}
		held := s.write(name, value)
		s.holds(name, value)
		s.present(name, value, held)
	}
}

func (s *suite) tags() {
	it := s.item("tagged", "the-value-1")
	if s.rules.MaxTags > 0 {
		it.Tags = map[string]string{"team": "payments", "stage": "test"}
	}
	if _, err := s.dest.Write(s.ctx(), it, s.read("tagged")); err != nil {
		s.t.Fatal(err)
	}
	it = s.item("tagged", "the-value-2")
	if s.rules.MaxTags > 0 {
		it.Tags, it.OldTags = map[string]string{"team": "accounts"}, []string{"stage"}
	}
	held, err := s.dest.Write(s.ctx(), it, s.read("tagged"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.present("tagged", "the-value-2", held)
}

func (s *suite) throttled() {
	was := s.read("one")
	s.fake.Fail(Fault{Kind: Throttle, RetryAfter: 7 * time.Second})
	if !s.rules.WriteOnly {
		_, err := s.dest.Read(s.ctx(), s.name("one"))
		if e := s.failed(err, destination.Throttled); e.Class != destination.External || e.RetryAfter != 7*time.Second {
			s.t.Errorf("class %q, retry after %v", e.Class, e.RetryAfter)
		}
	}
	_, err := s.dest.Write(s.ctx(), s.item("one", "the-value"), was)
	if e := s.failed(err, destination.Throttled); e.Unknown || e.RetryAfter != 7*time.Second {
		s.t.Errorf("a throttled write was certainly not done: unknown %v, retry after %v", e.Unknown, e.RetryAfter)
	}
	for _, err := range s.dest.List(s.ctx()) {
		s.failed(err, destination.Throttled)
	}
	s.fake.Fail(Fault{})
	s.write("one", "the-value")
	s.holds("one", "the-value")
	was = s.read("one")
	s.fake.Fail(Fault{Kind: Throttle, RetryAfter: 7 * time.Second})
	if e := s.failed(s.dest.Delete(s.ctx(), was), destination.Throttled); e.Unknown {
		s.t.Error("a throttled deletion was certainly not done")
	}
	s.fake.Fail(Fault{})
	s.holds("one", "the-value")
}

func (s *suite) trouble() {
	s.write("one", "the-value-1")
	was := s.read("one")
	s.fake.Fail(Fault{Kind: Trouble})
	if !s.rules.WriteOnly {
		_, err := s.dest.Read(s.ctx(), s.name("one"))
		if e := s.failed(err, destination.Unavailable); e.Class != destination.External {
			s.t.Errorf("class %q", e.Class)
		}
	}
	s.fake.Fail(Fault{Kind: Trouble, Writes: true})
	_, err := s.dest.Write(s.ctx(), s.item("one", "the-value-2"), was)
	if e := s.failed(err, destination.Unavailable); !e.Unknown {
		s.t.Error("a write that failed so may have been done")
	}
	s.fake.Fail(Fault{Kind: Trouble})
	s.failed(s.dest.Delete(s.ctx(), was), destination.Unavailable)
	for _, err := range s.dest.List(s.ctx()) {
		s.failed(err, destination.Unavailable)
	}
	s.fake.Fail(Fault{})
	s.holds("one", "the-value-1")
}

func (s *suite) rejected() {
	was := s.read("one")
	s.fake.Fail(Fault{Kind: Reject})
	if !s.rules.WriteOnly {
		_, err := s.dest.Read(s.ctx(), s.name("one"))
		if e := s.failed(err, destination.Denied, destination.NoLocation); e.Class != destination.Client {
			s.t.Errorf("class %q", e.Class)
		}
	}
	_, err := s.dest.Write(s.ctx(), s.item("one", "the-value"), was)
	if e := s.failed(err, destination.Denied, destination.NoLocation); e.Unknown {
		s.t.Error("a rejected write was certainly not done")
	}
	checks := s.dest.Verify(s.ctx())
	if !slices.ContainsFunc(checks, func(c destination.Check) bool { return !c.OK && !c.Unknown }) {
		s.t.Errorf("verify finds nothing wrong: %+v", checks)
	}
	s.fake.Fail(Fault{})
}

func (s *suite) lostRequest() {
	was := s.read("one")
	s.fake.Fail(Fault{Kind: DropBefore})
	if !s.rules.WriteOnly {
		_, err := s.dest.Read(s.ctx(), s.name("one"))
		if e := s.failed(err, destination.Unreachable, destination.Unavailable); e.Class != destination.External {
			s.t.Errorf("class %q", e.Class)
		}
	}
	_, err := s.dest.Write(s.ctx(), s.item("one", "the-value"), was)
	s.failed(err, destination.Unreachable, destination.Unavailable)
	s.fake.Fail(Fault{})
	s.write("one", "the-value")
	s.holds("one", "the-value")
}

func (s *suite) lostAnswer() {
	was := s.read("one")
	s.fake.Fail(Fault{Kind: DropAfter, Writes: true, Times: 1})
	it := s.item("one", "the-value")
	held, err := s.dest.Write(s.ctx(), it, was)
	s.fake.Fail(Fault{})
	if err != nil { // it is allowed to find out by itself
		if e := s.failed(err, destination.Unreachable, destination.Unavailable, destination.Unexpected); !e.Unknown {
			s.t.Error("a write whose answer is lost may have been done")
		}
		// An implementation that reads back detects whether it was, and may finish it.
		f := s.read("one")
		if s.rules.HasOwnerTags && f.State == destination.Present && f.OwnerTag != mark {
			s.t.Errorf("what the lost write made has the mark %q", f.OwnerTag)
		}
		if held, err = s.dest.Write(s.ctx(), it, f); err != nil {
			s.t.Fatalf("finishing it: %v", err)
		}
	}
	s.holds("one", "the-value")
	s.present("one", "the-value", held)

	f := s.read("one")
	s.fake.Fail(Fault{Kind: DropAfter, Writes: true, Times: 1})
	err = s.dest.Delete(s.ctx(), f)
	s.fake.Fail(Fault{})
	if err != nil {
		if err := s.dest.Delete(s.ctx(), s.read("one")); err != nil {
			s.t.Fatalf("deleting it again: %v", err)
		}
	}
	if _, ok := s.fake.Get(s.t, s.name("one")); ok {
		s.t.Error("it is still there")
	}
}

func (s *suite) lostUpdate() {
	s.write("one", "the-value-1")
	was, it := s.read("one"), s.item("one", "the-value-2")
	s.fake.Fail(Fault{Kind: DropAfter, Writes: true, Times: 1})
	held, err := s.dest.Write(s.ctx(), it, was)
	s.fake.Fail(Fault{})
	if err != nil {
		if e := s.failed(err, destination.Unreachable, destination.Unavailable, destination.Unexpected); !e.Unknown {
			s.t.Error("an update whose answer is lost may have been done")
		}
		if held, err = s.dest.Write(s.ctx(), it, s.read("one")); err != nil {
			s.t.Fatalf("finishing it: %v", err)
		}
	}
	s.holds("one", "the-value-2")
	s.present("one", "the-value-2", held)
}

func (s *suite) noAnswer() {
	s.write("two", "the-value")
	was, there := s.read("one"), s.read("two")
	s.fake.Fail(Fault{Kind: Hang})
	defer s.fake.Fail(Fault{})
	for what, call := range map[string]func(context.Context) error{
		"read": func(ctx context.Context) error { _, err := s.dest.Read(ctx, s.name("one")); return err },
		"write": func(ctx context.Context) error {
			_, err := s.dest.Write(ctx, s.item("one", "the-value"), was)
			return err
		},
		"delete": func(ctx context.Context) error { return s.dest.Delete(ctx, there) },
		"list": func(ctx context.Context) error {
			for _, err := range s.dest.List(ctx) {
				return err
			}
			return nil
		},
		"verify": func(ctx context.Context) error { s.dest.Verify(ctx); return ctx.Err() },
	} {
		if s.rules.WriteOnly && (what == "read" || what == "list") {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx(), 50*time.Millisecond)
		if err := call(ctx); err == nil {
			s.t.Errorf("%s succeeds without an answer", what)
		}
		cancel()
	}
}

func (s *suite) verify() {
	for _, c := range s.dest.Verify(s.ctx()) {
		if !c.OK && !c.Unknown || c.Name == "" || c.Text == "" {
			s.t.Errorf("verify: %+v", c)
		}
	}
	for f, err := range s.dest.List(s.ctx()) {
		if err != nil || f.State == destination.Present {
			s.t.Errorf("verify leaves %q behind (%v)", f.Name, err)
		}
	}
}

func (s *suite) parallel() {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			name := fmt.Sprintf("name %d", i)
			f, err := s.dest.Read(s.ctx(), s.name(name))
			if err == nil {
				_, err = s.dest.Write(s.ctx(), s.item(name, "the-value"), f)
			}
			if err != nil {
				s.t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	for i := range 8 {
		s.holds(fmt.Sprintf("name %d", i), "the-value")
	}
}
