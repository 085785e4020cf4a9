package secretsync_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestSecondary: secrets that are written on a performance secondary are synced once, by the primary. What the secondary answers
// about secret sync is what the primary answers. When the primary is killed, right after it has asked a destination for a write, and
// the secondary is promoted, that goes on where the other was: nothing that is right is written again, what was left unfinished
// is finished, and the name whose response was lost is not taken for another client's.
func TestSecondary(t *testing.T) {
	t.Parallel()
	s := newPair(t)
	s.follow()
	s.onceByThePrimary()
	s.sameAnswers()
	s.localMount()
	s.promoteAfterKill()
}

// pair are two clusters that reach the same destinations.
type pair struct {
	*places
	t                  *testing.T
	primary, secondary *harness.Cluster
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := newPlaces(t)
	options := func(prefix string) harness.Options {
		return harness.Options{Prefix: prefix, Config: p.stanza(t, true), ReadyIn: patience}
	}
	return &pair{p, t, harness.NewCluster(t, 1, options("p")), harness.NewCluster(t, 1, options("s"))}
}

// must sends a request to a cluster until it succeeds. It has to be one that may be repeated.
func (s *pair) must(c *harness.Cluster, method, path string, body any) object {
	s.t.Helper()
	var out struct{ Data object }
	harness.Await(s.t, method+" "+path, patience, func() error { return send(c, method, path, body, &out) })
	return out.Data
}

func (s *pair) put(c *harness.Cluster, name, value string) {
	s.t.Helper()
	s.must(c, "POST", "kv/data/"+name, object{"data": object{"value": value}})
}

// arrive waits until a destination has a value.
func (s *pair) arrive(kind, name, value string) {
	s.t.Helper()
	harness.Await(s.t, kind+" to have "+name, patience, func() error {
		if got, ok := s.get(kind, name); !ok || got != value {
			return fmt.Errorf("it is there: %v, right: %v", ok, got == value)
		}
		return nil
	})
}

// settle waits until all secrets of a destination have a status.
func (s *pair) settle(c *harness.Cluster, dest, status string) map[string]entry {
	s.t.Helper()
	var all map[string]entry
	harness.Await(s.t, dest+" to be "+status, patience, func() error {
		all = entriesOf(s.t, s.must(c, "GET", dest+"/associations", nil))
		for _, e := range all {
			if e.Status != status {
				return fmt.Errorf("%s: %+v", e.Secret, e)
			}
		}
		return nil
	})
	return all
}

const (
	awsPath  = destinations + "cloud1-sm/prod"
	hubPath  = destinations + "repohost/app"
	hubNames = "{{ .SecretBaseName | uppercase }}_{{ .SecretKey | uppercase }}"
)

// follow makes the one a secondary of the other, and associates a prefix with both destinations.
func (s *pair) follow() {
	s.t.Helper()
	s.must(s.primary, "POST", "sys/mounts/kv", object{"type": "kv", "options": object{"version": "2"}})
	harness.Replicate(s.primary, s.secondary, "eu")
	s.must(s.primary, "POST", awsPath, s.fields("cloud1-sm", object{"secret_name_template": "{{ .SecretPath }}"}))
	s.must(s.primary, "POST", hubPath, s.fields("repohost", object{"secret_name_template": hubNames}))
	for _, dest := range []string{awsPath, hubPath} {
		s.must(s.primary, "POST", dest+"/associations/set", object{"mount": "kv", "secret_prefix": "app/"})
	}
}

// writes returns what changed something at the destinations since the last time, with the name of the secret if it has one.
func (s *pair) writes() []string {
	var all []string
	for _, c := range s.one.Calls() {
		if slices.Contains(writing, c.Action) {
			all = append(all, c.Action+" "+c.SecretID)
		}
	}
	s.one.Actions()
	for _, call := range s.repo.Calls() {
		if verb, path, _ := strings.Cut(call, " "); verb != "GET" {
			all = append(all, verb+" "+path[strings.LastIndex(path, "/")+1:])
		}
	}
	slices.Sort(all)
	return all
}

// onceByThePrimary writes on both clusters.
func (s *pair) onceByThePrimary() {
	s.t.Helper()
	s.put(s.secondary, "app/one", "first")
	s.arrive("cloud1-sm", "app/one", `{"value":"first"}`)
	s.arrive("repohost", "ONE_VALUE", "first")
	s.put(s.primary, "app/two", "first")
	s.arrive("cloud1-sm", "app/two", `{"value":"first"}`)
	s.arrive("repohost", "TWO_VALUE", "first")
	s.settle(s.primary, awsPath, "SYNCED")
	s.settle(s.primary, hubPath, "SYNCED")
	s.secondary.AwaitHead(s.primary)
	equal(s.t, "writes", s.writes(), []string{"CreateSecret app/one", "CreateSecret app/two", "PUT ONE_VALUE", "PUT TWO_VALUE"})
	if mine, theirs := s.written(s.primary), s.written(s.secondary); mine != "4" || theirs != "0" {
		s.t.Errorf("the primary says that it has written %s names, the secondary %s", mine, theirs)
	}
}

var writtenTotal = regexp.MustCompile(`(?m)^coffer_sync_writes_total (\d+)$`)

// written returns how many names a cluster says it has written.
func (s *pair) written(c *harness.Cluster) string {
	s.t.Helper()
	a := c.Leader().MustDo("GET", "/v1/sys/metrics?format=prometheus", nil)
	m := writtenTotal.FindSubmatch(a.Body)
	if m == nil {
		s.t.Fatal("there is no coffer_sync_writes_total among the metrics")
	}
	return string(m[1])
}

// sameAnswers asks both clusters the same.
func (s *pair) sameAnswers() {
	s.t.Helper()
	for _, q := range [][2]string{
		{"LIST", "sys/sync/destinations"}, {"LIST", destinations + "cloud1-sm"}, {"GET", awsPath}, {"GET", hubPath},
		{"GET", awsPath + "/associations"}, {"GET", hubPath + "/associations"}, {"LIST", "sys/sync/associations"},
		{"GET", "sys/sync/associations/destinations?mount=kv&secret_name=app/one"}, {"GET", "sys/sync/associations/kv/app/two"},
		{"POST", awsPath + "/plan"}, {"POST", hubPath + "/drift"},
	} {
		mine, theirs := s.must(s.primary, q[0], q[1], nil), s.must(s.secondary, q[0], q[1], nil)
		equal(s.t, q[0]+" "+q[1]+" on the secondary", theirs, mine)
		if text, err := json.Marshal(mine); err != nil || !bytes.Contains(text, []byte(`"`)) {
			s.t.Errorf("%s %s answers nothing: %s, %v", q[0], q[1], text, err)
		}
	}
	equal(s.t, "writes by reads", s.writes(), nil)
}

// localMount: what only the secondary has is not synced.
func (s *pair) localMount() {
	s.t.Helper()
	s.must(s.secondary, "POST", "sys/mounts/here", object{"type": "kv", "local": true, "options": object{"version": "2"}})
	s.must(s.secondary, "POST", "here/data/app/one", object{"data": object{"value": "local"}})
	err := send(s.secondary, "POST", awsPath+"/associations/set", object{"mount": "here", "secret_name": "app/one"}, nil)
	if err == nil || !strings.Contains(err.Error(), "status 400") || !strings.Contains(err.Error(), "primary cluster") {
		s.t.Errorf("associating a secret of a local mount: %v", err)
	}
}

// promoteAfterKill kills the primary while a write to the repository is under way and another secret waits, and promotes the
// secondary.
func (s *pair) promoteAfterKill() {
	s.t.Helper()
	s.must(s.primary, "POST", awsPath+"/pause", nil)
	s.put(s.secondary, "app/one", "second")
	s.arrive("repohost", "ONE_VALUE", "second")
	s.settle(s.primary, hubPath, "SYNCED")
	begun, carryOut := make(chan struct{}), make(chan struct{})
	s.repo.BeforePut(func() {
		close(begun)
		select {
		case <-carryOut:
		case <-s.t.Context().Done():
		}
	})
	s.put(s.secondary, "app/three", "first")
	select {
	case <-begun:
	case <-time.After(patience):
		s.t.Fatal("the primary does not write to the repository")
	}
	s.secondary.AwaitHead(s.primary)
	for _, n := range s.primary.Nodes {
		n.Kill9()
	}
	close(carryOut)
	s.arrive("repohost", "THREE_VALUE", "first")
	equal(s.t, "writes of the old primary", s.writes(), []string{"PUT ONE_VALUE", "PUT THREE_VALUE"})
	s.must(s.secondary, "POST", "sys/replication/performance/secondary/promote", object{"force": true})
	s.secondary.AwaitReplication("to be the primary", func(r harness.Replication) bool { return r.Mode == "primary" })
	s.must(s.secondary, "POST", awsPath+"/resume", nil)
	s.arrive("cloud1-sm", "app/one", `{"value":"second"}`)
	s.arrive("cloud1-sm", "app/three", `{"value":"first"}`)
	for _, dest := range []string{hubPath, awsPath} {
		if all := s.settle(s.secondary, dest, "SYNCED"); len(all) != 3 {
			s.t.Errorf("%s: %d statuses, want 3", dest, len(all))
		}
	}
	one, _ := s.one.Secret("app/one")
	equal(s.t, "writes of the new primary", s.writes(), []string{ // a value that no client can read back is written once more
		"CreateSecret app/three", "PUT THREE_VALUE", "PutSecretValue " + one.ARN, "UpdateSecretVersionStage " + one.ARN,
	})
	three, _ := s.one.Secret("app/three")
	if len(one.Versions) != 2 || len(three.Versions) != 1 {
		s.t.Errorf("one has %d versions and three %d, want 2 and 1", len(one.Versions), len(three.Versions))
	}
	for _, dest := range []string{awsPath, hubPath} {
		if drifted, _ := s.must(s.secondary, "POST", dest+"/drift", nil)["drifted"].([]any); len(drifted) > 0 {
			s.t.Errorf("%s: what is known differs from what is there: %v", dest, drifted)
		}
	}
	s.must(s.secondary, "DELETE", "kv/data/app/two", nil)
	harness.Await(s.t, "the new primary to delete", patience, func() error {
		if _, ok := s.get("repohost", "TWO_VALUE"); ok {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
}

// TestSwitchOverWhileSyncing demotes the primary while a destination does not answer, and promotes the secondary: the destination is not
// waited for, each secret arrives once, and the former primary leaves the rest to the new one.
func TestSwitchOverWhileSyncing(t *testing.T) {
	t.Parallel()
	s := newPair(t)
	s.follow()
	const secrets = 40
	name := func(i int) string { return fmt.Sprintf("app/%02d", i) }
	s.must(s.primary, "DELETE", hubPath+"?purge=true", nil)
	s.must(s.primary, "POST", awsPath+"/pause", nil)
	for i := range secrets {
		s.put(s.primary, name(i), "first")
	}
	var calls atomic.Int64
	stuck, answer := make(chan struct{}), make(chan struct{})
	s.one.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if c.Action != "CreateSecret" {
			return awstest.Fault{}
		}
		n := calls.Add(1)
		if n == 11 {
			close(stuck)
		}
		if n > 10 {
			select {
			case <-answer:
			case <-t.Context().Done():
			}
		}
		return awstest.Fault{}
	})
	s.must(s.primary, "POST", awsPath+"/resume", nil)
	select {
	case <-stuck:
	case <-time.After(patience):
		t.Fatal("nothing is synced")
	}
	s.secondary.AwaitHead(s.primary)
	s.must(s.primary, "POST", "sys/replication/performance/primary/demote", nil)
	s.secondary.AwaitReplication("to have the primary's final word", func(r harness.Replication) bool { return r.Final })
	s.must(s.secondary, "POST", "sys/replication/performance/secondary/promote", nil)
	s.secondary.AwaitReplication("to be the primary", func(r harness.Replication) bool { return r.Mode == "primary" })
	close(answer)
	s.primary.UpdatePrimary(s.secondary, s.secondary.SecondaryToken("former"))
	s.primary.AwaitStreaming()
	for i := range secrets {
		s.arrive("cloud1-sm", name(i), `{"value":"first"}`)
	}
	if all := s.settle(s.secondary, awsPath, "SYNCED"); len(all) != secrets {
		t.Errorf("%d statuses, want %d", len(all), secrets)
	}
	for i := range secrets {
		if secret, _ := s.one.Secret(name(i)); len(secret.Versions) != 1 {
			t.Errorf("%s has %d versions", name(i), len(secret.Versions))
		}
	}
	if drifted, _ := s.must(s.secondary, "POST", awsPath+"/drift", nil)["drifted"].([]any); len(drifted) > 0 {
		t.Errorf("what is known differs from what is there: %v", drifted)
	}
	before := s.written(s.primary)
	s.put(s.secondary, name(0), "second")
	s.arrive("cloud1-sm", name(0), `{"value":"second"}`)
	if after := s.written(s.primary); after != before {
		t.Errorf("the former primary has written: %s names, then %s", before, after)
	}
}
