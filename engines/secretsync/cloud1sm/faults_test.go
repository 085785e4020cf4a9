package cloud1sm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// TestFaultsAndOthers writes while calls fail in all ways and another client is at the same name. Whatever happens, what ours
// replaces is what was looked at, no write makes two versions, and in the end the value is ours.
func TestFaultsAndOthers(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := cloud1smtest.New(t)
			d := open(t, s, destination.Env{}, nil)
			var mu sync.Mutex
			left, theirs := 30, 0
			s.Fail(func(cloud1smtest.Call) awstest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if left--; left < 0 {
					return awstest.Fault{}
				}
				is, there := s.Secret(name)
				switch random.IntN(16) {
				case 0, 1, 2:
					if theirs++; is.Scheduled == 0 {
						s.Put(name, fmt.Append(nil, "theirs ", theirs))
					}
				case 3:
					if there {
						s.Schedule(name, time.Hour)
					}
				case 4:
					if there {
						s.Drop(name)
					}
				}
				faults := []awstest.Fault{
					{When: awstest.BeforeCommit, Drop: true}, {When: awstest.AfterCommit, Drop: true}, {Code: "ThrottlingException"},
					{Status: 500, Code: "InternalServiceError", When: awstest.AfterCommit}, {Status: 503, Code: "ServiceUnavailable"},
				}
				if n := random.IntN(12); n < len(faults) {
					return faults[n]
				}
				return awstest.Fault{}
			})
			for round := range 3 {
				it := item(fmt.Sprint("ours ", round))
				it.Tags = map[string]string{"round": fmt.Sprint(round)}
				settle(t, s, d, it)
			}
		})
	}
}

// settle writes an item until it is there, as who decides above does.
func settle(t *testing.T, s *cloud1smtest.Server, d destination.Destination, it destination.Item) {
	t.Helper()
	for range 200 {
		was, err := d.Read(t.Context(), name)
		if err != nil {
			continue
		}
		if was.Version == it.Token && was.State == destination.Present {
			if was.OwnerTag != ourMark || string(was.Value) != string(it.Value) && was.Known {
				t.Fatalf("the version is there without its mark or value: %+v", was)
			}
			return
		}
		before, _ := s.Secret(name)
		held, err := d.Write(t.Context(), it, was)
		is, _ := s.Secret(name)
		if err == nil && held.Version != it.Token {
			t.Fatalf("held %+v", held)
		}
		if is.ARN != was.ID || slices.Contains(before.Versions[it.Token], "AWSCURRENT") || !slices.Contains(is.Versions[it.Token], "AWSCURRENT") {
			continue
		}
		if e, ok := errors.AsType[*destination.Error](err); ok && !e.Unknown {
			t.Fatalf("an error without Unknown has written: %v", err)
		}
		// The version that ours came after is the one that was looked at.
		for id, labels := range is.Versions {
			if slices.Contains(labels, "AWSPREVIOUS") && id != was.Version {
				t.Fatalf("%s was replaced, %s had been looked at", id, was.Version)
			}
		}
	}
	t.Fatal("it does not settle")
}
