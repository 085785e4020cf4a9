package secretsync

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"  //nolint:gosec // to be looked for
	"crypto/sha1" //nolint:gosec // likewise
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/adoption"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/storage"
)

// TestSimulationConverges does random things to secrets, associations, destinations and nodes, with faults, and then holds what is
// there to what should be. COFFER_SIM_SEEDS says how many seeds, COFFER_SIM_SEED repeats one.
func TestSimulationConverges(t *testing.T) {
	first, n := 1, 100
	if text := os.Getenv("COFFER_SIM_SEEDS"); text != "" {
		all, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		n = max(all/10, 1) // each is as costly as some of replication
	}
	if text := os.Getenv("COFFER_SIM_SEED"); text != "" {
		one, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		first, n = one, 1
	}
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, uint64(seed)) //nolint:gosec // it is not negative
			s.run()
			if t.Failed() {
				for _, c := range s.sites.Calls() {
					s.done = append(s.done, fmt.Sprintf("%8.1fs   %s: %s %s %s", c.At.Sub(s.began).Seconds(), c.Dest, c.Op, c.Name, c.Ended))
				}
				slices.SortStableFunc(s.done, func(a, b string) int { return cmp.Compare(a[:9], b[:9]) })
				t.Logf("COFFER_SIM_SEED=%d repeats it; what was done:\n%s", seed, strings.Join(s.done, "\n"))
			}
		})
	}
}

// sim is one random life of a cluster.
type sim struct {
	t      *testing.T
	rng    *rand.Rand
	w      *syncsim.World
	sites  *syncsim.Sites
	mounts []*syncsim.KV
	dests  []*state.Destination
	logs   logs
	values []string
	done   []string
	began  time.Time

	// meddles says that another client changes things at the destinations, too.
	meddles bool
	// retains are the associations, by id, that were to leave what they have made at some time.
	retains map[string]bool
	// policies are the drift policies that associations, by id, had.
	policies map[string][]policy

	node *syncsim.Node
	svc  *Service
	// operator is what New is told from the next start on.
	operator connection.Operator
	stop     func() // waits for the end
	crash    func() // does not
	faults   func(syncsim.Call) syncsim.Fault
}

// policy is a drift policy, since a time.
type policy struct {
	since time.Time
	drift string
}

// logs is a buffer that several may write to.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), w: syncsim.NewWorld(), sites: syncsim.NewSites(), retains: map[string]bool{}, policies: map[string][]policy{}, began: time.Now(), meddles: seed%3 > 0} //nolint:gosec // to be repeated
	s.sites.Rate = destination.Rate{Writes: 5, WriteBurst: 10, Reads: 20, ReadBurst: 30, Concurrency: 2}
	if seed%4 == 0 {
		s.sites.WritesPerDay = 20
	}
	s.w.Namespace("n1", "team/")
	s.mounts = []*syncsim.KV{s.w.Mount("root", "kv/"), s.w.Mount("root", "other/"), s.w.Mount("n1", "kv/")}
	s.start()
	for i, d := range []struct{ ns, kind, site string }{
		{"root", syncsim.Marked, "m"}, {"root", syncsim.Marked, "m"}, {"root", syncsim.Plain, "p"}, {"n1", syncsim.Plain, "p"},
	} {
		s.makeDestination(d.ns, d.kind, fmt.Sprint("d", i), d.site)
	}
	return s
}

func (s *sim) say(format string, args ...any) {
	s.done = append(s.done, fmt.Sprintf("%8.1fs ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

func (s *sim) start() {
	s.node = s.w.Node()
	s.svc = New(Options{Host: s.node, Types: s.sites.Types(), Operator: s.operator, Logger: slog.New(slog.NewTextHandler(&s.logs, nil))})
	ctx, cancel := context.WithCancel(s.t.Context())
	unhear := s.w.Store.OnChange(s.svc.Changed)
	ended := make(chan struct{})
	svc := s.svc
	go func() { defer close(ended); svc.Run(ctx) }()
	node := s.node
	s.stop = func() { node.Stop(); cancel(); <-ended; unhear() }
	crash := func() { node.Stop(); cancel() }
	s.crash = crash
}

func (s *sim) restart() {
	s.say("restart")
	s.stop()
	s.sites.Restarted()
	s.sites.SetFault(s.faults)
	s.w.OnCommit(nil)
	s.start()
}

func (s *sim) ctx() context.Context { return s.t.Context() }

func (s *sim) must(err error) {
	s.t.Helper()
	if err != nil && !errors.Is(err, storage.ErrReadOnly) && !errors.Is(err, storage.ErrOutcomeUnknown) && !errors.Is(err, errNoAudit) {
		s.t.Error(err)
	}
}

var errNoAudit = errors.New("no audit device")

// update is the store without the faults of nodes.
func (s *sim) update(do func(tx *storage.Txn) error) {
	s.t.Helper()
	_, err := storage.Update(s.ctx(), s.w.Store, do)
	s.must(err)
}

func (s *sim) makeDestination(ns, kind, name, site string) {
	c := &syncsim.Config{Site: site, Label: name, Token: "sekrit-token"}
	config, err := state.EncodeConfig(c)
	s.must(err)
	d := &state.Destination{ID: state.Hash(name, fmt.Sprint(len(s.done))), NS: ns, Type: kind, Name: name, Config: config, FingerprintKey: []byte("key of " + name), CreatedAt: time.Now(), UpdatedAt: time.Now()}
	s.dests = append(s.dests, d)
	s.update(func(tx *storage.Txn) error {
		s.must(state.EnsureInstallation(s.ctx(), tx))
		return engines.PutRecord(tx, d.Key(), d)
	})
}

func pick[T any](s *sim, of []T) T { return of[s.rng.IntN(len(of))] }

var simNames = []string{"a", "b/c", "b/C", "x-y", "x_y"}

func (s *sim) value() string {
	v := fmt.Sprintf("sekrit-%d-%d", len(s.values), s.rng.IntN(1e9))
	s.values = append(s.values, v)
	return v
}

func (s *sim) putSecret() {
	kv, name := pick(s, s.mounts), pick(s, simNames)
	for range 1 + s.rng.IntN(3)*s.rng.IntN(3) {
		var pairs []string
		for _, key := range []string{"k", "K", "l"} {
			if s.rng.IntN(2) == 0 {
				value := s.value()
				if s.rng.IntN(30) == 0 {
					value += strings.Repeat("x", 1000) // too large
				}
				pairs = append(pairs, key, value)
			}
		}
		kv.Put(name, pairs...)
		s.say("put %s%s: %d keys", kv.Describe().Path, name, len(pairs)/2)
		time.Sleep(time.Duration(s.rng.IntN(50)) * time.Millisecond)
	}
}

// hurry writes a secret again and again.
func (s *sim) hurry() {
	kv, name := pick(s, s.mounts), pick(s, simNames)
	pause := pick(s, []time.Duration{300 * time.Millisecond, 5 * time.Second, 2 * time.Minute})
	s.say("put %s%s 30 times, each %v", kv.Describe().Path, name, pause)
	for range 30 {
		kv.Put(name, "k", s.value())
		time.Sleep(pause)
	}
}

func (s *sim) changeSecret() {
	kv, name := pick(s, s.mounts), pick(s, simNames)
	ops := map[string]func(){
		"delete": func() { kv.Delete(name) }, "undelete": func() { kv.Undelete(name) }, "destroy": func() { kv.Destroy(name) }, "drop": func() { kv.Drop(name) },
		"delete later": func() { kv.DeleteAt(name, time.Now().Add(time.Duration(s.rng.IntN(600))*time.Second)) },
	}
	what := pick(s, slices.Sorted(maps.Keys(ops)))
	s.say("%s %s%s", what, kv.Describe().Path, name)
	ops[what]()
}

// templates, of which the first is the default, some collide, and one has the path of the mount.
var simTemplates = []string{"", "{{ .MountBaseName }}/{{ .SecretPath }}", "{{ .SecretBaseName }}", "{{ .SecretBaseName }}_{{ .SecretKey }}", "{{ .MountPath }}_{{ .SecretPath }}_{{ .SecretKey }}"}

func (s *sim) associate() {
	d := pick(s, s.dests)
	var kv *syncsim.KV
	for kv == nil || kv.Describe().NamespaceID != d.NS {
		kv = pick(s, s.mounts)
	}
	a := &state.Association{
		Destination: d.ID, Type: d.Type, Name: d.Name, NS: d.NS, MountUUID: kv.Describe().UUID, Accessor: kv.Describe().Accessor, MountPath: kv.Describe().Path,
		Secret: pick(s, simNames), Template: pick(s, simTemplates), Granularity: pick(s, []string{destination.SecretPath, destination.SecretKey}),
		Deletion: pick(s, []string{state.DeleteOnRemoval, state.DeleteOnRemoval, state.DeleteOnRemoval, state.RetainOnRemoval}), Drift: pick(s, []string{state.DriftReport, state.DriftRepair, state.DriftConflict, state.DriftIgnore}),
		Owner: engines.Principal{DisplayName: "caller", EntityID: "e1"}, CreatedAt: time.Now(), UpdatedAt: time.Now().UTC(),
	}
	if s.rng.IntN(3) == 0 {
		a.Selector, a.Secret = true, pick(s, []string{"", "b/", "x"})
	}
	if s.rng.IntN(4) == 0 {
		a.Exclude = []string{"l"}
	}
	switch s.rng.IntN(8) {
	case 0:
		a.Rename = map[string]string{"l": "m"}
	case 1:
		a.ValueTemplate = `{{ if has "l" }}{{ .Secrets.l }}/{{ end }}{{ if has "k" }}{{ .Secrets.k | base64 }}{{ else }}none{{ end }}`
	case 2:
		a.ValueFormat = template.Dotenv
	}
	a.ID = state.AssociationID(d.ID, a.MountUUID, a.Secret, a.Selector)
	if a.Deletion == state.RetainOnRemoval {
		s.retains[a.ID] = true
	}
	if a.Drift == state.DriftRepair { // also what another client has overwritten before
		for _, l := range s.links(a) {
			for _, it := range l.Items {
				if it.Owned {
					s.sites.Site(d.Type, siteOf(d.Type)).Allow(it.Name)
				}
			}
		}
	}
	rules := s.svc.Pool.Types[d.Type].Rules
	if len(a.Plan(rules).Check()) > 0 {
		return
	}
	s.say("associate %s with %s%s selector %v, %s %q %s", d.Name, a.MountPath, a.Secret, a.Selector, a.Granularity, a.Template, a.Deletion)
	s.policies[a.ID] = append(s.policies[a.ID], policy{time.Now(), a.Drift})
	s.put(s.ctx(), d, a, nil)
	s.svc.Associations.Put(a)
	if !a.Selector {
		s.svc.Queue.Push(a.LinkID(a.Secret), time.Time{}, true, nil)
	}
}

func (s *sim) associations() []*state.Association {
	var all []*state.Association
	for _, ns := range []string{"root", "n1"} {
		s.must(state.Scan(s.ctx(), s.w.Store, state.Area(ns, "a/"), func(_ storage.Key, a *state.Association) bool {
			all = append(all, a)
			return true
		}))
	}
	return all
}

func (s *sim) links(a *state.Association) []*state.Link {
	var all []*state.Link
	s.must(state.Scan(s.ctx(), s.w.Store, state.LinkKey(a.NS, a.Destination, a.ID, ""), func(_ storage.Key, l *state.Link) bool {
		all = append(all, l)
		return true
	}))
	return all
}

func (s *sim) changeAssociation() {
	all := s.associations()
	if len(all) == 0 {
		return
	}
	a := pick(s, all)
	var change func(*state.Association)
	switch s.rng.IntN(3) {
	case 0:
		pause := s.rng.IntN(2) == 0
		change = func(a *state.Association) { a.Paused = pause && !a.Removing }
		s.say("pause %v of %s at %s", pause, a.Secret, a.Name)
	default:
		retain := s.rng.IntN(6) == 0
		change = func(a *state.Association) { a.Removing, a.Retain, a.Paused = true, retain, false }
		s.say("remove %s at %s, retain %v", a.Secret, a.Name, retain)
		if retain {
			s.retains[a.ID] = true
		}
	}
	s.update(func(tx *storage.Txn) error {
		var now state.Association
		found, err := engines.GetRecord(s.ctx(), tx, a.Key(), &now)
		if err != nil || !found {
			return err
		}
		change(&now)
		now.UpdatedAt = time.Now().UTC()
		return engines.PutRecord(tx, a.Key(), &now)
	})
}

func (s *sim) changeDestination() {
	d := pick(s, s.dests)
	s.update(func(tx *storage.Txn) error {
		if _, err := state.GetDestination(s.ctx(), tx, d.Key(), d); err != nil {
			return err
		}
		switch s.rng.IntN(3) {
		case 0:
			d.Paused = !d.Paused
			s.say("pause %v of %s", d.Paused, d.Name)
		default:
			if d.Type != syncsim.Marked {
				return nil
			}
			d.CustomTags = map[string]string{pick(s, []string{"team", "stage"}): fmt.Sprint(s.rng.IntN(3))}
			d.UpdatedAt = time.Now()
			s.say("tags of %s: %v", d.Name, d.CustomTags)
		}
		return engines.PutRecord(tx, d.Key(), d)
	})
}

// forget deletes a destination and leaves what it holds, and makes another one of the same name.
func (s *sim) forget() {
	i := s.rng.IntN(len(s.dests))
	d := s.dests[i]
	s.say("forget %s", d.Name)
	all := s.associations()
	s.forceDelete(d)
	var now state.Destination
	if _, err := state.GetDestination(s.ctx(), s.w.Store, d.Key(), &now); err != nil || now.ID == d.ID {
		s.must(err)
		return // the node stopped before, or there was no audit log
	}
	for _, a := range all {
		if a.Destination == d.ID {
			s.retains[a.ID] = true
		}
	}
	s.makeDestination(d.NS, d.Type, d.Name, siteOf(d.Type))
	s.dests[i] = s.dests[len(s.dests)-1]
	s.dests = s.dests[:len(s.dests)-1]
}

func (s *sim) changeConfig() {
	c := state.Config{Disabled: s.rng.IntN(2) == 0, QueueCapacity: state.DefaultQueueCapacity}
	s.say("disabled: %v", c.Disabled)
	s.update(func(tx *storage.Txn) error { return engines.PutRecord(tx, state.ConfigKey, &c) })
}

func (s *sim) changeMount() {
	i := s.rng.IntN(len(s.mounts))
	kv := s.mounts[i]
	m := kv.Describe()
	if s.rng.IntN(2) == 0 {
		s.say("move %s", m.Path)
		s.must(s.w.Move(s.ctx(), kv, pick(s, []string{"moved/", "again/", "kv/"})))
		return
	}
	s.say("disable %s of %q", m.Path, m.Namespace)
	if err := s.svc.MountGone(s.ctx(), m.UUID); err != nil {
		return // it is kept
	}
	s.must(s.w.Unmount(s.ctx(), kv))
	s.mounts[i] = s.w.Mount(m.NamespaceID, m.Path)
}

func (s *sim) meddle() {
	kind, site := syncsim.Marked, "m"
	if s.rng.IntN(2) == 0 {
		kind, site = syncsim.Plain, "p"
	}
	there := s.sites.Site(kind, site)
	var names []string
	repaired, unsure := map[string]bool{}, map[string]bool{}
	for _, a := range s.associations() {
		if a.Type != kind {
			continue
		}
		for _, l := range s.links(a) {
			for _, it := range l.Items {
				name := state.Fold(s.svc.Pool.Types[kind].Rules, it.Name)
				names = append(names, name)
				// Where there are no ownership tags, a write of another client cannot be told from a lost one of ours at the same time.
				if kind == syncsim.Plain && it.Intent != nil {
					unsure[name] = true
				}
				repaired[name] = repaired[name] || it.Owned && a.Drift == state.DriftRepair
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return unsure[name] })
	if kind == syncsim.Marked {
		names = append(names, "kv/a", "a", "C", "vault/"+s.mounts[0].Describe().Accessor+"/a", "another/client")
	}
	if len(names) == 0 {
		return
	}
	name := pick(s, names)
	if s.rng.IntN(3) == 0 {
		s.say("another client deletes %s %s", kind, name)
		there.Delete(name)
		return
	}
	value := "theirs"
	if now, ok := there.Get(name); ok && s.rng.IntN(3) == 0 {
		value = now
	}
	s.say("another client writes %s %s, the same value: %v", kind, name, value != "theirs")
	there.Put(name, value)
	if repaired[name] { // that is what it says
		there.Allow(name)
	}
}

// hotfix has another client change a name that is ours, and then the secret changes.
func (s *sim) hotfix() {
	for _, a := range s.associations() {
		i := slices.IndexFunc(s.mounts, func(kv *syncsim.KV) bool { return kv.Describe().UUID == a.MountUUID })
		if a.Type != syncsim.Marked || i < 0 || s.rng.IntN(2) == 0 {
			continue
		}
		for _, l := range s.links(a) {
			if len(l.Items) == 0 || !l.Items[0].Owned {
				continue
			}
			s.say("another client changes %s, policy %s, and %s%s is put", l.Items[0].Name, a.Drift, a.MountPath, l.Secret)
			s.sites.Site(a.Type, siteOf(a.Type)).Put(l.Items[0].Name, "hotfix")
			time.Sleep(pick(s, []time.Duration{0, time.Second, time.Minute}))
			s.mounts[i].Put(l.Secret, "k", s.value(), "l", s.value())
			return
		}
	}
}

func (s *sim) adopt() {
	for _, a := range s.associations() {
		for _, l := range s.links(a) {
			for _, it := range l.Items {
				if it.Status != state.Conflict || it.Code == state.CodeNameTaken || s.rng.IntN(3) > 0 {
					continue
				}
				d := s.destOf(a)
				if d == nil {
					continue
				}
				s.say("adopt %s at %s", it.Name, d.Name)
				s.sites.Site(a.Type, siteOf(a.Type)).Allow(it.Name)
				key := state.LinkKey(a.NS, a.Destination, a.ID, l.Secret)
				s.update(func(tx *storage.Txn) error {
					var now state.Link
					found, err := engines.GetRecord(s.ctx(), tx, key, &now)
					if err != nil || !found {
						return err
					}
					now.Adopt = append(now.Adopt, state.Fold(s.svc.Pool.Types[a.Type].Rules, it.Name))
					return engines.PutRecord(tx, key, &now)
				})
				s.svc.Queue.Push(a.LinkID(l.Secret), time.Time{}, true, nil)
				return
			}
		}
	}
}

// adoptEqual has all names of a destination adopted that have the right value already.
func (s *sim) adoptEqual() {
	d := pick(s, s.dests)
	if d.Type != syncsim.Marked {
		return
	}
	s.say("adopt at %s what is equal", d.Name)
	adopter := adoption.Adopter{Reconciler: s.svc.Reconciler}
	_, links, err := adopter.Request(s.ctx(), &adoption.Scope{
		Dest: d, Equal: true, MayRead: func(*state.Association, *engines.Mounted, string) bool { return true },
	})
	s.must(err)
	for _, id := range links {
		s.svc.Queue.Push(id, time.Time{}, true, nil)
	}
}

// siteOf is where a type of destination writes.
func siteOf(kind string) string {
	if kind == syncsim.Plain {
		return "p"
	}
	return "m"
}

func (s *sim) destOf(a *state.Association) *state.Destination {
	for _, d := range s.dests {
		if d.ID == a.Destination {
			return d
		}
	}
	return nil // it was forgotten, and that was interrupted
}

// crashSoon has the node stop in the middle of something.
func (s *sim) crashSoon() {
	crash, n := s.crash, 1+s.rng.IntN(6)
	var mu sync.Mutex
	if s.rng.IntN(2) == 0 {
		s.say("crash at commit %d", n)
		lost := s.rng.IntN(2) == 0
		s.w.OnCommit(func(b storage.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			if n--; n != 0 {
				return nil
			}
			if lost { // it is done, and its response is lost
				if _, err := s.w.Store.Commit(context.Background(), b); err != nil {
					return err
				}
			}
			crash()
			return storage.ErrOutcomeUnknown
		})
		return
	}
	after, faults := s.rng.IntN(2) == 0, s.faults
	s.say("crash at call %d, after it: %v", n, after)
	s.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
		mu.Lock()
		defer mu.Unlock()
		f := syncsim.Fault{}
		if faults != nil {
			f = faults(c)
		}
		if n--; n == 0 {
			if after {
				f.After = crash
			} else {
				f.Before = crash
			}
		}
		return f
	})
}

func (s *sim) changeFaults() {
	p := pick(s, []float64{0, 0.05, 0.2, 0.6})
	s.say("faults with probability %v", p)
	s.faults = nil
	if p > 0 {
		s.faults = syncsim.Random(s.rng.Uint64(), p)
	}
	s.sites.SetFault(s.faults)
}

func (s *sim) changeRights() {
	may := s.rng.IntN(2) == 0
	s.say("the owner may read: %v", may)
	s.w.SetMayRead(func(engines.Principal, string, string) bool { return may })
}

func (s *sim) changeAudit() {
	works := s.rng.IntN(2) == 0
	s.say("the audit log works: %v", works)
	s.w.FailAudit(nil)
	if !works {
		s.w.FailAudit(errNoAudit)
	}
}

func (s *sim) changeRole() {
	owner := s.rng.IntN(2) == 0
	s.say("this cluster is the primary: %v", owner)
	s.w.SetOwner(owner)
	s.svc.RoleChanged()
}

func (s *sim) run() {
	type op struct {
		weight int
		do     func()
	}
	ops := []op{
		{30, s.putSecret}, {15, s.changeSecret}, {20, s.associate}, {8, s.changeAssociation}, {3, s.changeDestination}, {2, s.changeConfig},
		{2, s.changeMount}, {10, s.meddle}, {4, s.adopt}, {6, s.crashSoon}, {2, s.restart}, {5, s.changeFaults}, {2, s.changeRights},
		{2, s.changeAudit}, {2, s.changeRole}, {1, s.forget}, {3, s.adoptEqual},
	}
	if s.meddles {
		ops = append(ops, op{8, s.hotfix})
	} else {
		ops[7].weight, ops[8].weight, ops[len(ops)-1].weight = 0, 0, 0
	}
	if s.sites.WritesPerDay > 0 {
		ops = append(ops, op{10, s.hurry})
	}
	total := 0
	for _, op := range ops {
		total += op.weight
	}
	for range 20 + s.rng.IntN(60) {
		n := s.rng.IntN(total)
		for _, op := range ops {
			if n -= op.weight; n < 0 {
				op.do()
				break
			}
		}
		time.Sleep(pick(s, []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second, 5 * time.Second, time.Minute, 20 * time.Minute}))
		if s.node.Stopped() {
			s.restart()
		}
	}
	s.quiet()
	s.check()
	s.stop()
}

// quiet ends all trouble and lets time pass.
func (s *sim) quiet() {
	s.say("quiet")
	s.sites.SetFault(nil)
	s.faults = nil
	s.w.OnCommit(nil)
	s.w.FailAudit(nil)
	s.w.SetMayRead(nil)
	s.w.SetOwner(true)
	time.Sleep(time.Minute) // what is in the middle of something may still crash
	if s.node.Stopped() {
		s.restart()
	}
	s.update(func(tx *storage.Txn) error { tx.Delete(state.ConfigKey); return nil })
	for _, d := range s.dests {
		s.update(func(tx *storage.Txn) error {
			if _, err := state.GetDestination(s.ctx(), tx, d.Key(), d); err != nil {
				return err
			}
			d.Paused = false
			return engines.PutRecord(tx, d.Key(), d)
		})
	}
	for _, a := range s.associations() {
		s.must(s.svc.ChangeAssociations(s.ctx(), []storage.Key{a.Key()}, func(a *state.Association) bool { a.Paused = false; return true }))
	}
	s.svc.RoleChanged()
	time.Sleep(3 * time.Hour)
	if s.sites.WritesPerDay > 0 { // by then every name has room for the newest value
		time.Sleep(24 * time.Hour)
	}
	if !s.meddles {
		return
	}
	for _, a := range s.associations() {
		for _, l := range s.links(a) { // drift is found when a scan is requested
			s.svc.Queue.Push(a.LinkID(l.Secret), time.Time{}, true, nil)
		}
	}
	time.Sleep(2 * time.Hour)
}

// want is a desired name.
type want struct {
	a      *state.Association
	secret string
	item   template.Item
	status state.Outcome
	owned  bool
}

// check holds what is there to what should be.
func (s *sim) check() {
	s.t.Helper()
	for _, harm := range s.sites.Harm() {
		s.t.Errorf("harm: %s", harm)
	}
	wanted := s.wanted()
	for _, d := range []struct{ kind, site string }{{syncsim.Marked, "m"}, {syncsim.Plain, "p"}} {
		s.checkSite(d.kind, d.site, wanted)
	}
	s.checkClaims()
	s.checkOverwritten()
	s.checkBudget()
	s.checkLeaks()
}

// wanted returns who wants what, by type and folded name, and checks the links.
func (s *sim) wanted() map[string][]want {
	s.t.Helper()
	out := map[string][]want{}
	for _, a := range s.associations() {
		if a.Removing || a.Gone {
			s.t.Errorf("the association of %q with %s, which was removed, is still there: %+v", a.Secret, a.Name, s.links(a))
			continue
		}
		m, err := s.node.MountOf(s.ctx(), a.MountUUID)
		s.must(err)
		if m == nil {
			s.t.Errorf("the association of %q with %s is of a mount that is gone", a.Secret, a.Name)
			continue
		}
		kv := m.Engine.(*syncsim.KV)
		rules := s.svc.Pool.Types[a.Type].Rules
		links := map[string]*state.Link{}
		for _, l := range s.links(a) {
			links[l.Secret] = l
		}
		names := []string{a.Secret}
		if a.Selector {
			names, err = kv.SecretNames(s.ctx(), m.Mount, a.Secret, "", 0)
			s.must(err)
		}
		for _, name := range names {
			secret, err := kv.LatestSecret(s.ctx(), m.Mount, name)
			s.must(err)
			l := links[name]
			delete(links, name)
			if l == nil {
				s.t.Errorf("%s of %s at %s has no link", name, a.MountPath, a.Name)
				continue
			}
			var items []template.Item
			if secret.Live {
				src := template.NewSource(a.Type, a.Name, s.node.NamespacePath(a.NS), a.NS, m.Path, a.Accessor, name)
				items, err = a.Plan(rules).Items(src, secret.Data)
				s.must(err)
			}
			s.checkLink(a, l, secret, items)
			for _, it := range items {
				w := want{a: a, secret: name, item: it}
				if had := l.Item(it.Name, rules); had != nil {
					w.status, w.owned = had.Outcome, had.Owned
				}
				key := a.Type + " " + state.Fold(rules, it.Name)
				out[key] = append(out[key], w)
			}
		}
		for name, l := range links {
			if l.Status == state.Unsynced && len(l.Items) > 0 && len(l.Active()) == 0 {
				continue // it may come back to what it has retained
			}
			s.t.Errorf("%s of %s at %s has a link, and is no secret", name, a.MountPath, a.Name)
		}
	}
	return out
}

// checkLink checks what a link says of itself.
func (s *sim) checkLink(a *state.Association, l *state.Link, secret engines.Secret, items []template.Item) {
	s.t.Helper()
	what := fmt.Sprintf("%s at %s", l.Secret, a.Name)
	if l.Version != secret.Version || l.Live != secret.Live {
		s.t.Errorf("%s: the link is of version %d (live %v), the secret is at %d (live %v)", what, l.Version, l.Live, secret.Version, secret.Live)
	}
	problems := slices.ContainsFunc(items, func(it template.Item) bool { return it.Problem != "" })
	if len(l.Adopt)+len(l.AdoptEqual) > 0 {
		s.t.Errorf("%s: %v, and where equal %v, are still to be adopted", what, l.Adopt, l.AdoptEqual)
	}
	switch l.Status {
	case state.Synced:
		if problems || !secret.Live || l.Attempts > 0 {
			s.t.Errorf("%s: SYNCED, with problems %v, live %v, attempts %d", what, problems, secret.Live, l.Attempts)
		}
	case state.Unsynced:
		if secret.Live || len(l.Active()) > 0 {
			s.t.Errorf("%s: UNSYNCED, with live %v and %d names", what, secret.Live, len(l.Items))
		}
	case state.ClientError:
		if !problems {
			s.t.Errorf("%s: %+v without a problem", what, l.Outcome)
		}
	case state.Conflict:
	default:
		s.t.Errorf("%s: the status is %+v in the end", what, l.Outcome)
	}
	if l.IsUnfinished() && (l.Status == state.Synced || l.Status == state.Unsynced) {
		s.t.Errorf("%s: something was begun and never ended", what)
	}
}

func (s *sim) checkSite(kind, site string, wanted map[string][]want) {
	s.t.Helper()
	rules := s.svc.Pool.Types[kind].Rules
	there := s.sites.Site(kind, site).Objects()
	waits := s.waits(kind)
	for key, all := range wanted {
		name, ok := strings.CutPrefix(key, kind+" ")
		if !ok {
			continue
		}
		o, present := there[name]
		owners, shares := 0, 0
		for _, w := range all {
			if w.item.Problem != "" { // what is there stays
				continue
			}
			d := s.destOf(w.a)
			mark, err := state.OwnerTagPrefix(s.ctx(), s.svc.Host.Store(), w.a)
			s.must(err)
			mark = d.OwnerTag(mark, name, rules)
			switch w.status.Status {
			case state.Synced:
				if w.status.Code == state.CodeNameTaken {
					shares++
					break
				}
				owners++
				if !present || o.Foreign || o.Value != string(w.item.Value) {
					s.t.Errorf("%s: SYNCED by %s, and present %v, foreign %v, with another value", key, d.Name, present, o.Foreign)
				}
				if rules.HasOwnerTags && (o.Mark != mark || !hasTags(o.Tags, d.CustomTags)) {
					s.t.Errorf("%s: mark %q tags %v, want %q %v", key, o.Mark, o.Tags, mark, d.CustomTags)
				}
			case state.Conflict:
				switch {
				case w.status.Code == state.CodeNameTaken:
					if len(all) == 1 && !waits[name] {
						s.t.Errorf("%s: %s of %s waits for a name that no other link wants: %s", key, w.secret, d.Name, w.status.Cause)
					}
				case !present:
					s.t.Errorf("%s: a conflict of %s with nothing", key, d.Name)
				case rules.HasOwnerTags && o.Mark == mark && (w.a.Drift != state.DriftConflict || !s.meddles && !s.retains[w.a.ID]):
					s.t.Errorf("%s: a conflict of %s with itself", key, d.Name)
				case !rules.HasOwnerTags && !o.Foreign && !s.stays(o):
					s.t.Errorf("%s: a conflict of %s with what is ours: %+v", key, d.Name, w.status)
				}
			default:
				if w.status.Status != state.ClientError {
					s.t.Errorf("%s: the status of %s at %s is %+v", key, w.secret, d.Name, w.status)
				}
			}
		}
		if shares > 0 && owners == 0 && !slices.ContainsFunc(all, func(w want) bool { return w.owned }) {
			s.t.Errorf("%s: is left to another association, and there is none", key)
		}
		if owners > 1 {
			s.t.Errorf("%s: %d associations have it", key, owners)
		}
		delete(there, name)
	}
	for name, o := range there {
		if !o.Foreign && !s.stays(o) && !waits[name] {
			s.t.Errorf("%s %s is still there, and is not desired", kind, name)
		}
	}
}

// waits returns names that are deleted only when what replaces them is right, which it cannot be.
func (s *sim) waits(kind string) map[string]bool {
	out := map[string]bool{}
	for _, a := range s.associations() {
		for _, l := range s.links(a) {
			if a.Type != kind || l.Status != state.ClientError && l.Status != state.Conflict {
				continue
			}
			for _, it := range l.Items {
				if it.Status == state.Unsyncing && it.Code == "waits" {
					out[state.Fold(s.svc.Pool.Types[kind].Rules, it.Name)] = true
				}
			}
		}
	}
	return out
}

// stays reports whether a name may exist that is not desired any more.
func (s *sim) stays(o syncsim.Object) bool {
	parts := strings.Split(o.By, "-") // installation, association, name
	return len(parts) == 3 && (s.retains[parts[1]] || o.Changed && slices.ContainsFunc(s.policies[parts[1]], func(p policy) bool { return p.drift == state.DriftConflict }))
}

// hasTags reports whether all tags are there. A name that was deleted and recovered may have others: the sync state does not record which of
// them were ours.
func hasTags(there, want map[string]string) bool {
	for key, value := range want {
		if there[key] != value {
			return false
		}
	}
	return true
}

func tagsOf(tags map[string]string) map[string]string {
	if tags == nil {
		return map[string]string{}
	}
	return tags
}

// checkClaims: whatever is claimed is a name of the link that has claimed it.
func (s *sim) checkClaims() {
	s.t.Helper()
	names := map[storage.Key]bool{}
	for _, a := range s.associations() {
		d := s.destOf(a)
		place, err := s.svc.Pool.Location(d)
		s.must(err)
		for _, l := range s.links(a) {
			for _, it := range l.Items {
				names[state.ClaimKey(a.Type, place, state.Fold(s.svc.Pool.Types[a.Type].Rules, it.Name))+storage.Key(" "+a.ID+l.Secret)] = true
			}
		}
	}
	s.must(state.Scan(s.ctx(), s.w.Store, state.Area(state.RootNS, "c/"), func(key storage.Key, c *state.Claim) bool {
		if !names[key+storage.Key(" "+c.Association+c.Secret)] {
			s.t.Errorf("a name is claimed by %s of %s for %s, which does not have it", c.Secret, c.Name, c.Association)
		}
		return true
	}))
}

// checkOverwritten: what another client has changed is overwritten with a record in the audit log and not against the drift policy.
func (s *sim) checkOverwritten() {
	s.t.Helper()
	recorded := map[string]int{}
	for _, e := range s.w.Audited() {
		names, _ := e.Data["over_changes"].([]string)
		for _, name := range names {
			recorded[name]++
		}
		if len(names) > 0 && !s.meddles && len(s.retains) == 0 {
			s.t.Errorf("changes of other clients are recorded, and there were none: %v", e.Data)
		}
	}
	for _, o := range s.sites.Overwritten() {
		if o.Allowed {
			continue // it was adopted, or is repaired
		}
		if recorded[o.Name]--; recorded[o.Name] < 0 {
			s.t.Errorf("a change to %s was overwritten at %v without a record", o.Name, o.At.Sub(s.began))
		}
		keeps := false
		for _, p := range s.policies[strings.Split(o.By, "-")[1]] {
			// A write that has begun goes on under the policy before.
			keeps = p.drift == state.DriftConflict && !p.since.After(o.At.Add(-2*time.Minute)) || keeps && p.since.After(o.At)
		}
		if keeps {
			s.t.Errorf("a change to %s was overwritten at %v against the drift policy", o.Name, o.At.Sub(s.began))
		}
	}
}

// checkBudget replays the calls of each destination against its budget.
func (s *sim) checkBudget() {
	s.t.Helper()
	type bucket struct {
		tokens float64
		at     time.Time
	}
	buckets := map[string]*bucket{}
	for _, c := range s.sites.Calls() {
		budget, rate, burst := "reads", s.sites.Rate.Reads, s.sites.Rate.ReadBurst
		if c.Op == "write" || c.Op == "delete" {
			budget, rate, burst = "writes", s.sites.Rate.Writes, s.sites.Rate.WriteBurst
		}
		key := fmt.Sprint(c.Run, c.Dest, budget)
		b := buckets[key]
		if b == nil {
			b = &bucket{float64(burst), c.At}
			buckets[key] = b
		}
		b.tokens = min(b.tokens+c.At.Sub(b.at).Seconds()*rate, float64(burst))
		b.at = c.At
		if b.tokens--; b.tokens < -1.01 {
			s.t.Errorf("%s of %s exceed the budget at %v", budget, c.Dest, c.At.Sub(s.began))
			return
		}
	}
}

// checkLeaks looks for values, and plain hashes of some, in all that was stored or said.
func (s *sim) checkLeaks() {
	s.t.Helper()
	var said bytes.Buffer
	entries, err := s.w.Store.Scan(s.ctx(), "s/sys/", "", 0)
	s.must(err)
	for _, e := range entries {
		if kind := strings.Split(string(e.Key), "/"); len(kind) > 4 && kind[4] == "d" {
			continue // it holds the credentials, and nothing of secrets
		}
		said.WriteString(string(e.Key))
		said.Write(e.Value)
	}
	for _, d := range s.dests {
		fmt.Fprint(&said, d.CustomTags, d.PurgeError)
	}
	s.logs.mu.Lock()
	said.Write(s.logs.b.Bytes())
	s.logs.mu.Unlock()
	audited, err := json.Marshal(s.w.Audited())
	s.must(err)
	said.Write(audited)
	for _, c := range s.sites.Calls() {
		said.WriteString(c.Name)
	}
	text := said.String()
	if i := strings.Index(text, "sekrit-"); i >= 0 {
		s.t.Errorf("a value is told: …%s", text[max(0, i-200):i])
	}
	for range min(10, len(s.values)) {
		value := []byte(pick(s, s.values))
		a, b, c := sha256.Sum256(value), md5.Sum(value), sha1.Sum(value) //nolint:gosec // likewise
		for _, sum := range [][]byte{a[:], b[:], c[:], a[:16], value} {
			for _, form := range []string{hex.EncodeToString(sum), base64.StdEncoding.EncodeToString(sum), base64.RawURLEncoding.EncodeToString(sum)} {
				if strings.Contains(text, form) {
					s.t.Error("a hash of a value is told")
				}
			}
		}
	}
}
