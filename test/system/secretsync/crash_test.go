package secretsync_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/test/harness"
)

// patience is how long anything may take that is expected to happen.
const patience = 3 * time.Minute

// TestKilledWhileSyncing kills the active node of three, with kill -9, right in the middle of what is pending: after a destination
// has done what it was asked for and before it has answered, before it has done it, and at any other moment. All secrets arrive,
// none is written twice in effect, their status is true, and names of others are left alone. Every other time the
// node is only stopped until another one is active, and goes on as if it still were.
func TestKilledWhileSyncing(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	k := newKillings(t, 5000, 6)
	k.prepare()
	k.killAtRepository()
	k.killAtSecretsManager()
	k.must("PATCH", "sys/sync/config", object{"disabled": false})
	k.restartKilled()
	k.arrive()
	k.quiet()
	k.checkSecretsManager()
	k.checkRepository()
}

// killings is a cluster whose active node is killed while it syncs to a destination with ownership tags, whose values can be read, and to one
// without. The secrets of the first are bulk/<lane>/<number>, a destination for each lane so that their budgets add up; those of
// the second are repo/r<number>.
type killings struct {
	*places
	t     *testing.T
	c     *harness.Cluster
	total int
	kills int
	clock time.Time // as of which the repository's clock was set

	mu     sync.Mutex
	down   bool     // a node was killed and is not back yet
	done   int      // kills
	at     []int    // after how many writing calls of the first place the next kills are
	writes int      // such calls so far
	order  []string // names of the first place, as they were written first
	seen   map[string]bool
	killed chan string // ids of nodes; the buffer holds all kills
	want   map[string]wanted
}

// wanted is a secret as it is now.
type wanted struct {
	value    string // "": deleted
	versions int
}

const (
	lanes      = 4
	inRepo     = 30
	foreign    = "of another client"
	takenName  = "bulk/0/00003"
	takenRepo  = "R03_VALUE"
	repoAtOnce = 4 // calls to a repository, and to Secrets Manager
	awsAtOnce  = 8
)

func newKillings(t *testing.T, total, kills int) *killings {
	t.Helper()
	k := &killings{places: newPlaces(t), t: t, total: total, kills: kills, clock: time.Now(), killed: make(chan string, kills+1), want: map[string]wanted{}, seen: map[string]bool{}}
	k.c = harness.NewCluster(t, 3, harness.Options{Prefix: "k", Config: k.stanza(t, true), ReadyIn: patience})
	for i := range kills {
		k.at = append(k.at, total*(i+1)/(kills+1))
	}
	return k
}

func repository() string { return repohosttest.Repository("acme", "web") }

func bulk(i int) string { return fmt.Sprintf("bulk/%d/%05d", i%lanes, i) }

// must sends a request to the active node until it succeeds. It has to be one that may be repeated.
func (k *killings) must(method, path string, body any) object {
	k.t.Helper()
	var out struct{ Data object }
	harness.Await(k.t, method+" "+path, patience, func() error {
		return send(k.c, method, path, body, &out)
	})
	return out.Data
}

// send sends one request to the active node and decodes the response.
func send(c *harness.Cluster, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	header := []string{"X-Vault-Consistency", "linearizable"}
	if method == "PATCH" {
		header = append(header, "Content-Type", "application/merge-patch+json")
	}
	a, err := active(c).Do(ctx, method, "/v1/"+path, c.RootToken, body, header...)
	switch {
	case err != nil:
		return err
	case a.Status >= 300:
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	case a.Status == 204 || out == nil:
		return nil
	}
	return json.Unmarshal(a.Body, out)
}

// active returns the node that says it is active, or else any that runs. Other than Cluster.Leader it may be called by any
// goroutine.
func active(c *harness.Cluster) *harness.Node {
	any := c.Nodes[0]
	for _, n := range c.Nodes {
		switch {
		case !n.Running():
		case n.Health() == 200:
			return n
		default:
			any = n
		}
	}
	return any
}

// put writes a new version of a secret.
func (k *killings) put(name, value string) {
	k.t.Helper()
	k.must("POST", "kv/data/"+name, object{"data": object{"value": value}, "options": object{"cas": k.want[name].versions}})
	k.want[name] = wanted{value, k.want[name].versions + 1}
}

// prepare writes the secrets and associates them, one by one and by prefix, while nothing is synced.
func (k *killings) prepare() {
	k.t.Helper()
	k.must("POST", "sys/mounts/kv", object{"type": "kv", "options": object{"version": "2"}})
	k.must("PATCH", "sys/sync/config", object{"disabled": true})
	var all []string
	for i := range k.total {
		all = append(all, bulk(i))
	}
	for i := range inRepo {
		all = append(all, fmt.Sprintf("repo/r%02d", i))
	}
	for _, name := range all {
		k.want[name] = wanted{"first " + name, 1}
	}
	inParallel(k.t, all, func(name string) error {
		return send(k.c, "POST", "kv/data/"+name, object{"data": object{"value": k.want[name].value}}, nil)
	})
	for lane := range lanes {
		k.must("POST", lanePath(lane), k.fields("cloud1-sm", object{"secret_name_template": "{{ .SecretPath }}"}))
		if lane > 0 {
			k.must("POST", lanePath(lane)+"/associations/set", object{"mount": "kv", "secret_prefix": fmt.Sprintf("bulk/%d/", lane)})
		}
	}
	var first []string
	for i := 0; i < k.total; i += lanes {
		first = append(first, bulk(i))
	}
	inParallel(k.t, first, func(name string) error {
		return send(k.c, "POST", lanePath(0)+"/associations/set", object{"mount": "kv", "secret_name": name}, nil)
	})
	k.must("POST", repoPath, k.fields("repohost", object{"secret_name_template": "{{ .SecretBaseName | uppercase }}_{{ .SecretKey | uppercase }}"}))
	k.must("POST", repoPath+"/associations/set", object{"mount": "kv", "secret_prefix": "repo/"})
	k.one.Put(takenName, []byte(foreign))
	k.one.Put("theirs/alone", []byte(foreign))
	k.repo.Put(repository(), takenRepo, foreign)
	k.repo.Put(repository(), "THEIRS", foreign)
	k.one.Actions()
	k.repo.Calls()
	for lane := range lanes {
		for name, e := range k.entries(lanePath(lane)) {
			if e.Status != "PENDING" {
				k.t.Fatalf("disabled, %s is %+v", name, e)
			}
		}
	}
}

const repoPath = destinations + "repohost/app"

func lanePath(lane int) string { return fmt.Sprintf("%scloud1-sm/lane%d", destinations, lane) }

// inParallel does something with each of the names, some at a time, until it succeeds.
func inParallel(t *testing.T, names []string, do func(name string) error) {
	t.Helper()
	next := make(chan string)
	failed := make(chan error, 1)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for name := range next {
				if err := do(name); err != nil {
					select {
					case failed <- fmt.Errorf("%s: %w", name, err):
					default:
					}
				}
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	workers.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
}

// reserve reports whether a node may be killed now: all nodes run. It needs the lock.
func (k *killings) reserve() bool {
	if k.down {
		return false
	}
	k.down = true
	k.done++
	return true
}

// killActive kills the active node, or stops it. It was reserved.
func (k *killings) killActive() {
	k.mu.Lock()
	stop := k.done%2 == 0
	k.mu.Unlock()
	n := active(k.c)
	if stop {
		n.Pause()
	} else {
		n.Kill9()
	}
	k.killed <- n.ID
}

// comeBack starts a node that was killed, or wakes one that was stopped when another is active.
func (k *killings) comeBack(n *harness.Node) {
	k.t.Helper()
	if !n.Running() {
		n.Start()
		return
	}
	harness.Await(k.t, "another active node", patience, func() error {
		if !slices.ContainsFunc(k.c.Nodes, func(other *harness.Node) bool { return other != n && other.Health() == 200 }) {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	n.Resume()
}

// killAtRepository kills when a write to the repository has come in, which carries it out all the same.
func (k *killings) killAtRepository() {
	may := func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.reserve() }
	k.repo.BeforePut(func() {
		k.keepTime()
		for !may() {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-k.t.Context().Done():
				return
			}
		}
		k.killActive()
	})
}

// keepTime moves the repository's clock on to the real time.
func (k *killings) keepTime() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.repo.Advance(time.Since(k.clock))
	k.clock = time.Now()
}

// killAtSecretsManager kills after so many writes, now after the service has carried out the call, now before.
func (k *killings) killAtSecretsManager() {
	k.one.Fail(func(c cloud1smtest.Call) awstest.Fault {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !slices.Contains(writing, c.Action) {
			return awstest.Fault{}
		}
		k.writes++
		if !k.seen[c.SecretID] {
			k.seen[c.SecretID] = true
			k.order = append(k.order, c.SecretID)
		}
		if len(k.at) == 0 || k.writes < k.at[0] || !k.reserve() {
			return awstest.Fault{}
		}
		f := awstest.Fault{When: awstest.BeforeCommit, Drop: true, Then: k.killActive}
		if len(k.at)%2 == 1 {
			f.When = awstest.AfterCommit
		}
		k.at = k.at[1:]
		return f
	})
}

// writing are the calls of Secrets Manager that change something.
var writing = []string{"CreateSecret", "PutSecretValue", "UpdateSecretVersionStage", "TagResource", "DeleteSecret", "RestoreSecret"}

// restartKilled starts killed nodes again until there were enough kills, and meanwhile changes secrets that were written already.
func (k *killings) restartKilled() {
	k.t.Helper()
	changed := 0
	for range k.kills + 1 {
		var id string
		select {
		case id = <-k.killed:
		case <-time.After(patience):
			k.t.Fatalf("there were %d kills, want %d", k.done, k.kills+1)
		}
		k.comeBack(k.c.Node(id))
		k.c.WaitServing()
		k.c.Leader()
		k.keepTime()
		k.mu.Lock()
		names := slices.Clone(k.order[changed:min(len(k.order), changed+25)])
		k.mu.Unlock()
		changed += len(names)
		for i, name := range names {
			switch {
			case k.want[name].value == "": // an ARN, or another client's
			case i%5 == 4:
				k.must("DELETE", "kv/data/"+name, nil)
				k.want[name] = wanted{"", k.want[name].versions}
			default:
				k.put(name, "second "+name)
			}
		}
		k.mu.Lock()
		k.down = false
		k.mu.Unlock()
	}
	k.t.Logf("%d kills, %d secrets", k.done, k.total+inRepo)
}

// arrive waits until all that should be at the destinations is there.
func (k *killings) arrive() {
	k.t.Helper()
	harness.Await(k.t, "all secrets to arrive", 2*patience, func() error {
		for name, w := range k.want {
			if missing := k.missing(name, w); missing != "" {
				return fmt.Errorf("%s: %s", name, missing)
			}
		}
		return nil
	})
}

// missing says what differs at a destination from what should be there.
func (k *killings) missing(name string, w wanted) string {
	var got string
	var ok bool
	value := fmt.Sprintf(`{"value":%q}`, w.value)
	if base, is := strings.CutPrefix(name, "repo/"); is {
		base = strings.ToUpper(base) + "_VALUE"
		got, ok = k.repo.Get(repository(), base)
		value = w.value
		if base == takenRepo {
			value = foreign
		}
	} else {
		raw, is := k.one.Get(name)
		got, ok = string(raw), is
		if name == takenName {
			value, w.value = foreign, foreign
		}
	}
	switch {
	case ok != (w.value != ""):
		return fmt.Sprintf("is there: %v", ok)
	case ok && got != value:
		return "has another value"
	}
	return ""
}

func (k *killings) entries(path string) map[string]entry {
	k.t.Helper()
	return entriesOf(k.t, k.must("GET", path+"/associations", nil))
}

// quiet waits until all statuses are what they should be in the end.
func (k *killings) quiet() {
	k.t.Helper()
	found := 0
	for _, path := range []string{lanePath(0), lanePath(1), lanePath(2), lanePath(3), repoPath} {
		harness.Await(k.t, path+" to be settled", patience, func() error {
			all := k.entries(path)
			for _, e := range all {
				if want := k.status(e.Secret); e.Status != want || want != "CONFLICT" && e.Version != k.want[e.Secret].versions {
					return fmt.Errorf("%s: %+v, want %s of version %d", e.Secret, e, want, k.want[e.Secret].versions)
				}
			}
			found += len(all)
			return nil
		})
	}
	if found != len(k.want) {
		k.t.Errorf("%d statuses, want %d", found, len(k.want))
	}
}

func (k *killings) status(name string) string {
	switch {
	case name == takenName || name == "repo/r03":
		return "CONFLICT"
	case k.want[name].value == "":
		return "UNSYNCED"
	}
	return "SYNCED"
}

// same has the service compare what it knows with what a destination lists.
func (k *killings) same(path string) {
	k.t.Helper()
	found := k.must("POST", path+"/drift", nil)
	if drifted, ok := found["drifted"].([]any); !ok || len(drifted) > 0 {
		k.t.Errorf("%s: what is known differs from what is there: %v", path, found["drifted"])
	}
}

func (k *killings) checkSecretsManager() {
	k.t.Helper()
	calls := map[string]int{}
	for _, c := range k.one.Calls() {
		calls[c.Action+" "+c.SecretID]++
	}
	repeated := 0
	for i := range k.total {
		name := bulk(i)
		w := k.want[name]
		if name == takenName {
			continue
		}
		made := calls["CreateSecret "+name]
		repeated += max(made-1, 0)
		if made > 1+k.done {
			k.t.Errorf("%s was created %d times", name, made)
		}
		secret, ok := k.one.Secret(name)
		if ok && len(secret.Versions) > w.versions {
			k.t.Errorf("%s has %d versions of %d that there were", name, len(secret.Versions), w.versions)
		}
	}
	k.t.Logf("%d creations repeated", repeated)
	if repeated > k.done*awsAtOnce*lanes {
		k.t.Errorf("%d creations were repeated, with %d kills", repeated, k.done)
	}
	for lane := range lanes {
		for _, e := range k.entries(lanePath(lane)) {
			secret, _ := k.one.Secret(e.Name)
			labels := secret.Versions[e.ExternalVersion]
			if e.Status == "SYNCED" && !slices.Contains(labels, "AWSCURRENT") {
				k.t.Errorf("%s: version %s is told of, there are %v", e.Secret, e.ExternalVersion, secret.Versions)
			}
		}
		k.same(lanePath(lane))
	}
	for _, name := range []string{takenName, "theirs/alone"} {
		secret, _ := k.one.Secret(name)
		if got, _ := k.one.Get(name); string(got) != foreign || len(secret.Versions) != 1 || len(secret.Tags) > 0 || calls["PutSecretValue "+secret.ARN]+calls["TagResource "+secret.ARN] > 0 {
			k.t.Errorf("%s of another client was touched: %v", name, secret)
		}
	}
}

func (k *killings) checkRepository() {
	k.t.Helper()
	puts := map[string]int{}
	total := 0
	for _, call := range k.repo.Calls() {
		if path, ok := strings.CutPrefix(call, "PUT "); ok {
			puts[path[strings.LastIndex(path, "/")+1:]]++
			total++
		}
	}
	for name, n := range puts {
		if n > 1+k.done || name == takenRepo || name == "THEIRS" {
			k.t.Errorf("%s was written %d times", name, n)
		}
	}
	k.t.Logf("%d writes of %d names of the repository", total, inRepo-1)
	if most := inRepo - 1 + k.done*repoAtOnce; total > most {
		k.t.Errorf("%d writes, want %d at most", total, most)
	}
	k.same(repoPath)
	for _, name := range []string{takenRepo, "THEIRS"} {
		if got, _ := k.repo.Get(repository(), name); got != foreign {
			k.t.Errorf("%s of another client was touched", name)
		}
	}
}

// TestKilledWhileRemoving kills the server right after much was begun to be removed: all that was synced goes all the same, and
// the destination, or the mount, behind it.
func TestKilledWhileRemoving(t *testing.T) {
	t.Parallel()
	p := newPlaces(t)
	quick := strings.Replace(p.stanza(t, true), `endpoint "cloud1-sm" {`, "endpoint \"cloud1-sm\" {\n    writes_per_second = 1000\n    reads_per_second = 1000", 1)
	c := harness.NewCluster(t, 1, harness.Options{Prefix: "removal", Config: quick})
	s := &site{places: p, t: t, c: c, n: c.Nodes[0], token: c.RootToken}
	tests := []struct{ name, path string }{
		{"purge", destinations + "cloud1-sm/purge?purge=true"},
		{"mount", "sys/mounts/mount"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			d, names := s.manyAssociated(test.name, 60)
			s.killWhenDeleting(test.path)
			harness.Await(t, "what was synced to go", patience, func() error {
				for _, name := range names {
					if _, ok := s.one.Get(name); ok {
						return fmt.Errorf("%s is still there", name)
					}
				}
				return nil
			})
			if test.name == "mount" {
				s.awaitNone(d)
				s.rejected(400, "GET", "sys/mounts/mount", nil)
				return
			}
			harness.Await(t, "the destination to go", patience, func() error {
				if a := s.do("GET", d, nil); a.Status != 404 {
					return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
				}
				return nil
			})
		})
	}
}

// manyAssociated makes a mount, and a destination with as many associations. It returns that and the names there.
func (s *site) manyAssociated(mount string, count int) (dest string, names []string) {
	s.t.Helper()
	s.mount(mount)
	names = make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%d", mount, i)
	}
	dest = s.dest("cloud1-sm", mount, object{"secret_name_template": "{{ .MountBaseName }}/{{ .SecretPath }}"})
	inParallel(s.t, names, func(name string) error {
		secret := strings.TrimPrefix(name, mount+"/")
		if err := send(s.c, "POST", mount+"/data/"+secret, object{"data": object{"value": name}}, nil); err != nil {
			return err
		}
		return send(s.c, "POST", dest+"/associations/set", object{"mount": mount, "secret_name": secret}, nil)
	})
	s.await(dest, "SYNCED")
	return dest, names
}

// killWhenDeleting has something deleted and kills the server when the first name is to go.
func (s *site) killWhenDeleting(path string) {
	s.t.Helper()
	begun := make(chan struct{}, 1000) // the buffer holds all calls
	s.one.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if c.Action == "DeleteSecret" {
			begun <- struct{}{}
		}
		return awstest.Fault{}
	})
	answered := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := s.n.Do(ctx, "DELETE", "/v1/"+path, s.token, nil)
		answered <- err
	}()
	select {
	case <-begun:
	case <-time.After(patience):
		s.t.Fatal("nothing is deleted")
	}
	s.n.Kill9()
	s.t.Logf("killed before an answer: %v", <-answered != nil)
	s.one.Fail(nil)
	s.n.Start()
	s.n.WaitHealth(200)
}

// awaitNone waits until a destination has no associations.
func (s *site) awaitNone(dest string) {
	s.t.Helper()
	harness.Await(s.t, "the associations to go", patience, func() error {
		if all := s.entries(dest); len(all) > 0 {
			return fmt.Errorf("%d are still there", len(all))
		}
		return nil
	})
}
