package desttest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// seeds is how many storms a destination goes through: few, or COFFER_DEST_SEEDS.
func seeds(t *testing.T) uint64 {
	text := os.Getenv("COFFER_DEST_SEEDS")
	if text == "" {
		return 3
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal("COFFER_DEST_SEEDS is not a number")
	}
	return n
}

// storm writes and deletes a name while calls fail in all ways, as who decides above does: look, act, look again. Whatever
// fails, an error that does not say Unknown has changed nothing, what is done in the end is what was to be done, and the name
// of another client is as it was.
func (s *suite) storm(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	s.fake.Put(s.t, s.name("theirs"), "their-value")
	for round := range 4 {
		if round == 2 {
			s.struggle(random, "")
			continue
		}
		s.struggle(random, fmt.Sprint("the-value-", round))
	}
	s.fake.Fail(Fault{})
	s.holds("one", "the-value-3")
	s.holds("theirs", "their-value")
	if f := s.read("one"); s.rules.HasOwnerTags && f.OwnerTag != mark {
		s.t.Errorf("the mark is %q", f.OwnerTag)
	}
}

// struggle has a value written, or the name deleted if there is none, however often it takes.
func (s *suite) struggle(random *rand.Rand, value string) {
	for range 60 {
		if s.attempt(random, value) {
			return
		}
	}
	s.t.Fatalf("%q does not come to be", value)
}

// attempt reports whether there is nothing more to do.
func (s *suite) attempt(random *rand.Rand, value string) bool {
	kinds := []Kind{None, None, Throttle, Trouble, DropBefore, DropAfter}
	s.fake.Fail(Fault{Kind: kinds[random.IntN(len(kinds))], Writes: random.IntN(2) == 0, Times: 1 + random.IntN(3), RetryAfter: time.Second})
	f, err := s.dest.Read(s.ctx(), s.name("one"))
	if err != nil {
		s.passes(err)
		return false
	}
	before, was := s.fake.Get(s.t, s.name("one"))
	switch {
	case value == "" && f.State != destination.Present:
		return true
	case value == "":
		err = s.dest.Delete(s.ctx(), f)
	case f.State == destination.Present && f.Known && string(f.Value) == value:
		return true
	default:
		_, err = s.dest.Write(s.ctx(), s.item("one", value), f)
	}
	after, is := s.fake.Get(s.t, s.name("one"))
	switch {
	case err == nil && (after != value || is != (value != "")):
		s.t.Fatalf("%q is said to be done, and is not", value)
	case err != nil && !s.passes(err).Unknown && (before != after || was != is):
		s.t.Fatalf("an error that says nothing was done has changed the destination: %v", err)
	}
	return err == nil
}

// passes says that an error is one of those that come and go, or comes of a view that a destination has been slow to bring up to date.
func (s *suite) passes(err error) *destination.Error {
	s.t.Helper()
	return s.failed(err, destination.Throttled, destination.Unavailable, destination.Unreachable, destination.Unexpected,
		destination.Recovering, destination.Exists, destination.Changed)
}
