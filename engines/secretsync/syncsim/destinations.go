package syncsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The types of destinations.
const (
	// Marked keeps ownership tags, tags and deleted names, can be read back, compares versions and knows upper from lower case.
	Marked = "test-marked"
	// Plain keeps none of that: values cannot be read, names are upper case, and it has only the time of the last write.
	Plain = "test-plain"
)

// Sites are what destinations write to, by type and the field "site". Safe for concurrent use.
type Sites struct {
	mu    sync.Mutex
	sites map[string]*Site
	calls []Call
	harm  []string
	over  []Overwritten
	// Rate is that of the types; set it before Types is called.
	Rate destination.Rate
	// WritesPerDay is that of the types, 0 for no limit, and a fifth more is what places take of a name; set it likewise.
	WritesPerDay int
	// fault says how a call fails; nil: none does.
	fault func(Call) Fault
	run   int
}

// Call is one call that a destination has made.
type Call struct {
	At   time.Time
	Run  int    // see Restarted
	Dest string // field "label" of the destination
	Type string
	Site string
	Op   string // "read", "write", "delete", "list"
	Name string
	// Ended is how it ended, for people.
	Ended string
}

// Kind is a way to fail.
type Kind int

const (
	None       Kind = iota
	Throttle        // 429
	Trouble         // 503, nothing was done
	Reject          // 403
	DropBefore      // nothing was done, and the caller cannot know
	DropAfter       // it was done, and the caller does not learn it
	Stale           // a read tells what was so a while ago
	Panic           // a bug, met after it was done
)

// Fault says how a call fails.
type Fault struct {
	Kind       Kind
	RetryAfter time.Duration // of Throttle
	Age        time.Duration // of Stale
	Delay      time.Duration // before anything else
	Before     func()        // is called before the call has its effect
	After      func()        // is called after it had
}

// NewSites returns destinations with a budget that seldom makes anybody wait.
func NewSites() *Sites {
	return &Sites{sites: map[string]*Site{}, Rate: destination.Rate{Writes: 50, WriteBurst: 50, Reads: 200, ReadBurst: 200, Concurrency: 4}}
}

// SetFault says how calls fail from now on; nil: not at all.
func (p *Sites) SetFault(f func(Call) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// Restarted has later calls counted for another run, whose budget is its own.
func (p *Sites) Restarted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run++
}

// Calls returns all calls so far.
func (p *Sites) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Harm tells what was done to names of another client.
func (p *Sites) Harm() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.harm)
}

// Overwritten is a change of another client to a name with an ownership tag that a destination has overwritten or deleted.
type Overwritten struct {
	At      time.Time
	Name    string
	By      string // ownership tag
	Allowed bool
}

// Overwritten returns the changes that were overwritten at Marked.
func (p *Sites) Overwritten() []Overwritten {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.over)
}

// noteOverwritten records that a destination is about to end what is there, if another client has changed it.
func (s *Site) noteOverwritten(was state, by string) {
	if s.kind == Marked && was.theirs {
		s.p.over = append(s.p.over, Overwritten{At: time.Now(), Name: was.name, By: by, Allowed: was.allowed})
	}
}

// Site returns a destination; it is made if it is not there.
func (p *Sites) Site(kind, name string) *Site {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.site(kind, name)
}

func (p *Sites) site(kind, name string) *Site {
	s := p.sites[kind+"/"+name]
	if s == nil {
		s = &Site{p: p, kind: kind, name: name, objects: map[string]*object{}}
		p.sites[kind+"/"+name] = s
	}
	return s
}

// Site is one destination.
type Site struct {
	p          *Sites
	kind, name string
	objects    map[string]*object
	made       int
}

// object is a name with all that it has been.
type object struct {
	state
	before []state // oldest first
}

type state struct {
	name    string
	state   destination.State
	value   string
	mark    string
	by      string // the ownership tag of the last write of a destination, also where ownership tags are not kept
	tags    map[string]string
	id      string
	version string
	at      time.Time
	foreign bool // another client's
	allowed bool // that may be written all the same
	written bool // by a destination, in this very change
	theirs  bool // another client has changed the value of a name with an ownership tag
}

func (s *Site) fold(name string) string {
	if s.kind == Plain {
		return strings.ToUpper(name)
	}
	return name
}

func (s *Site) set(name string, st state) {
	key := s.fold(name)
	o := s.objects[key]
	if o == nil {
		o = &object{}
		s.objects[key] = o
	}
	o.before = append(o.before, o.state)
	s.made++
	st.name, st.at, st.version = key, time.Now(), fmt.Sprint("v", s.made)
	if st.id == "" {
		st.id = fmt.Sprint("id", s.made)
	}
	o.state = st
}

// writesOfToday counts the writes of destinations to a name.
func (s *Site) writesOfToday(name string) (n int) {
	o := s.objects[s.fold(name)]
	if o == nil {
		return 0
	}
	for _, st := range append(slices.Clone(o.before), o.state) {
		if st.written && time.Since(st.at) < 24*time.Hour {
			n++
		}
	}
	return n
}

func (s *Site) get(name string) state {
	if o := s.objects[s.fold(name)]; o != nil {
		return o.state
	}
	return state{name: s.fold(name)}
}

// Put writes a name as another client would.
func (s *Site) Put(name, value string) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	was := s.get(name)
	now := state{state: destination.Present, value: value, foreign: true, allowed: was.allowed}
	if was.state == destination.Present {
		now.id, now.mark, now.tags, now.by = was.id, was.mark, was.tags, was.by
		now.foreign = was.foreign || s.kind == Plain                    // an ownership tag still says whose it is
		now.theirs = !now.foreign && (was.theirs || value != was.value) // the same value again is no change
	}
	s.set(name, now)
}

// Copy puts a value with the ownership tag of another name under a name, as another client would who sees ownership tags and may write tags.
func (s *Site) Copy(mark, name, value string) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.set(name, state{state: destination.Present, value: value, foreign: true, mark: s.get(mark).mark})
}

// Delete removes a name as another client would, for good.
func (s *Site) Delete(name string) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.get(name).state != destination.Absent {
		s.set(name, state{})
	}
}

// Allow lets a name of another client be written, once.
func (s *Site) Allow(name string) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if o := s.objects[s.fold(name)]; o != nil {
		o.allowed = true
	}
}

// Object is what is under a name.
type Object struct {
	Name, Value, Mark string
	By                string // the ownership tag that came with the last write of a destination, also where ownership tags are not kept
	Tags              map[string]string
	Foreign           bool // not written by a destination, or not since another client did
	Changed           bool // written by another client, with the ownership tag of a destination
}

// Objects returns what is there, by name.
func (s *Site) Objects() map[string]Object {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	out := map[string]Object{}
	for _, o := range s.objects {
		if o.state.state == destination.Present {
			out[o.name] = Object{Name: o.name, Value: o.value, Mark: o.mark, By: o.by, Tags: o.tags, Foreign: o.foreign, Changed: o.theirs}
		}
	}
	return out
}

// Get returns the value under a name.
func (s *Site) Get(name string) (value string, ok bool) {
	o, ok := s.Objects()[s.fold(name)]
	return o.Value, ok
}

// Config is the configuration of both types.
type Config struct {
	Site  string            `json:"site" max:"64" help:"Which place; what comes after a question mark makes another name for it."`
	Label string            `json:"label" max:"64" help:"Name of the destination in Calls."`
	Token engines.Sensitive `json:"token" max:"256" help:"Something secret."`
	KeyID string            `json:"key_id" max:"64" help:"What Applied returns."`
	Area  string            `json:"area" max:"64" help:"What Fixed returns."`

	kind string
}

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	if c.Site == "" {
		problems = append(problems, "site must be given")
	}
	if strings.Contains(c.Label, " ") {
		problems = append(problems, "label must have no spaces")
	}
	return problems
}

// Location implements destination.Config.
func (c *Config) Location() string { return c.Site }

// Owner implements destination.Owned: what stands before a stop in the name of a site.
func (c *Config) Owner() string {
	owner, _, _ := strings.Cut(c.Site, ".")
	return owner
}

// Applied implements destination.Applied.
func (c *Config) Applied() string { return c.KeyID }

// Fixed implements destination.Fixed.
func (c *Config) Fixed() (text, why string) { return c.Area, "areas are for ever" }

// Ambiguous implements destination.Ambiguous.
func (c *Config) Ambiguous() string {
	if c.Site == "ambiguous" {
		return "others have sites of that name"
	}
	return ""
}

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	out := map[string]any{"site": c.Site, "label": c.Label}
	if c.Token != "" {
		out["token"] = destination.Mask
	}
	return out
}

// Types returns the types of destinations.
func (p *Sites) Types() []destination.Type {
	marked := destination.Rules{
		Granularity: destination.SecretPath, Template: "vault/{{ .MountAccessor }}/{{ .SecretPath }}", Rate: p.Rate,
		Normalise: func(name string) string { return clean(name, "/_-.", '_') }, CheckName: checkName,
		WritesPerDay: p.WritesPerDay, MinValue: 1, MaxValue: 1000, MaxTags: 5, HasOwnerTags: true, Readable: true, PropagationDelay: 20 * time.Second,
		CheckTag: func(key, _ string) string {
			if strings.HasPrefix(key, "x-") {
				return "keys that begin with x- are reserved"
			}
			return ""
		},
	}
	plain := destination.Rules{
		Granularity: destination.SecretKey, Template: "vault/{{ .MountAccessor }}/{{ .SecretPath }}", Rate: p.Rate,
		Normalise: func(name string) string { return strings.ToUpper(clean(name, "_", '_')) }, CheckName: checkName,
		WritesPerDay: p.WritesPerDay, Fold: strings.ToUpper, MaxValue: 1000, MaxNames: 100,
	}
	kind := func(name string, r destination.Rules) destination.Type {
		return destination.Type{
			Name: name, Alias: strings.Replace(name, "test", "vendor", 1), Help: "A place for tests.", Rules: r, New: func() destination.Config { return &Config{kind: name} },
			Open: func(c destination.Config, _ destination.Env) (destination.Destination, error) {
				return &dest{p, c.(*Config)}, nil
			},
		}
	}
	return []destination.Type{kind(Marked, marked), kind(Plain, plain)}
}

func clean(name, more string, other rune) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(more, r) {
			return r
		}
		return other
	}, name)
}

func checkName(name string) string {
	if name == "" || len(name) > 120 {
		return "must have 1 to 120 letters"
	}
	return ""
}

// dest is a destination.
type dest struct {
	p *Sites
	c *Config
}

func failed(class destination.Class, code string, unknown bool) *destination.Error {
	return &destination.Error{Class: class, Code: code, Text: "the place says " + code, Unknown: unknown}
}

// call makes a call, with its fault. do has the lock.
func (d *dest) call(ctx context.Context, op, name string, do func(s *Site, age time.Duration) error) (err error) {
	p := d.p
	c := Call{At: time.Now(), Dest: d.c.Label, Type: d.c.kind, Site: d.c.Site, Op: op, Name: name}
	p.mu.Lock()
	c.Run = p.run
	p.calls = append(p.calls, c)
	nth, fault := len(p.calls)-1, p.fault
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.calls[nth].Ended = fmt.Sprint("after ", time.Since(c.At), ": ", err)
	}()
	var f Fault
	if fault != nil {
		f = fault(c)
	}
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	if f.Before != nil {
		f.Before()
	}
	if ctx.Err() != nil {
		return &destination.Error{Class: destination.External, Code: destination.Unreachable, Text: "no answer in time", Unknown: op != "read", Err: ctx.Err()}
	}
	switch f.Kind {
	case Throttle:
		err := failed(destination.External, destination.Throttled, false)
		err.RetryAfter = f.RetryAfter
		return err
	case Trouble:
		return failed(destination.External, destination.Unavailable, true)
	case Reject:
		return failed(destination.Client, destination.Denied, false)
	case DropBefore:
		return failed(destination.External, destination.Unreachable, true)
	}
	p.mu.Lock()
	site, _, _ := strings.Cut(d.c.Site, "?")
	err = do(p.site(d.c.kind, site), f.Age)
	p.mu.Unlock()
	if f.After != nil {
		f.After()
	}
	if f.Kind == Panic {
		panic("a bug: " + c.Name)
	}
	if f.Kind == DropAfter {
		return failed(destination.External, destination.Unreachable, true)
	}
	return err
}

// Read implements destination.Destination.
func (d *dest) Read(ctx context.Context, name string) (f destination.Found, err error) {
	err = d.call(ctx, "read", name, func(s *Site, age time.Duration) error {
		f = s.found(s.seen(name, age), true)
		return nil
	})
	if err != nil {
		return destination.Found{}, err
	}
	return f, nil
}

// seen returns what a name was a while ago.
func (s *Site) seen(name string, age time.Duration) state {
	o := s.objects[s.fold(name)]
	if o == nil || age == 0 || !o.at.After(time.Now().Add(-age)) {
		return s.get(name)
	}
	for _, st := range slices.Backward(o.before) {
		if !st.at.After(time.Now().Add(-age)) {
			return st
		}
	}
	return s.get(name)
}

func (s *Site) found(st state, value bool) destination.Found {
	f := destination.Found{Name: st.name, State: st.state}
	if st.state == destination.Absent {
		return f
	}
	f.ID, f.Version, f.ChangedAt = st.id, st.version, st.at
	if s.kind == Marked {
		f.OwnerTag = st.mark
		if value && st.state == destination.Present {
			f.Value, f.Known = []byte(st.value), true
		}
	}
	return f
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (h destination.Held, err error) {
	err = d.call(ctx, "write", it.Name, func(s *Site, _ time.Duration) error {
		now := s.get(it.Name)
		switch {
		case len(it.Value) > 1000:
			return &destination.Error{Class: destination.Client, Code: destination.TooLarge, Text: "the place takes at most 1000 bytes"}
		case checkName(it.Name) != "":
			return failed(destination.Client, destination.BadRequest, false)
		case was.State == destination.Absent && now.state != destination.Absent:
			return failed(destination.Client, destination.Exists, false)
		case was.State != destination.Absent && (now.state != was.State || now.id != was.ID || now.version != was.Version):
			return failed(destination.Client, destination.Changed, false)
		case d.p.WritesPerDay > 0 && s.writesOfToday(it.Name) >= d.p.WritesPerDay*6/5:
			d.p.harm = append(d.p.harm, "exceeded the writes of a day at "+s.kind+"/"+s.name+" "+it.Name)
			return &destination.Error{Class: destination.Client, Code: destination.Quota, Text: "the place takes no more versions today"}
		case now.foreign && !now.allowed && now.value != string(it.Value): // the same value is no loss: it was adopted
			d.p.harm = append(d.p.harm, "wrote over "+s.kind+"/"+s.name+" "+it.Name)
		}
		next := state{state: destination.Present, value: string(it.Value), id: now.id, by: it.OwnerTag, written: true}
		if s.kind == Marked {
			next.mark, next.tags = it.OwnerTag, maps.Clone(now.tags)
			if next.tags == nil {
				next.tags = map[string]string{}
			}
			for _, tag := range it.OldTags {
				delete(next.tags, tag)
			}
			maps.Copy(next.tags, it.Tags)
		}
		s.noteOverwritten(now, it.OwnerTag)
		s.set(it.Name, next)
		now = s.get(it.Name)
		h = destination.Held{ID: now.id, Version: now.version}
		return nil
	})
	if err != nil {
		return destination.Held{}, err
	}
	return h, nil
}

// Delete implements destination.Destination. At a marked place names stay, deleted.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	return d.call(ctx, "delete", was.Name, func(s *Site, _ time.Duration) error {
		now := s.get(was.Name)
		switch {
		case now.state != destination.Present || now.id != was.ID:
			return nil
		case now.version != was.Version:
			return failed(destination.Client, destination.Changed, false)
		case now.foreign && !now.allowed:
			d.p.harm = append(d.p.harm, "deleted "+s.kind+"/"+s.name+" "+was.Name)
		}
		s.noteOverwritten(now, now.mark)
		next := state{}
		if s.kind == Marked {
			next = now
			next.state, next.written, next.theirs = destination.Deleted, false, false
		}
		s.set(was.Name, next)
		return nil
	})
}

// List implements destination.Destination.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		var all []destination.Found
		err := d.call(ctx, "list", "", func(s *Site, age time.Duration) error {
			for name := range s.objects {
				if st := s.seen(name, age); st.state != destination.Absent {
					all = append(all, s.found(st, false))
				}
			}
			return nil
		})
		if err != nil {
			yield(destination.Found{}, err)
			return
		}
		slices.SortFunc(all, func(a, b destination.Found) int { return cmp.Compare(a.Name, b.Name) })
		for _, f := range all {
			if !yield(f, nil) {
				return
			}
		}
	}
}

// Verify implements destination.Destination.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	_, err := d.Read(ctx, "verify")
	var e *destination.Error
	if errors.As(err, &e) {
		return []destination.Check{{Name: "reachable", Text: e.Text}}
	}
	return []destination.Check{{Name: "reachable", OK: true, Text: "the place answers"}, {Name: "write", Unknown: true, Text: "is known when something is written"}}
}

// Close implements destination.Destination.
func (d *dest) Close() error { return nil }

// Random returns faults that come with a probability, the same ones for the same seed and calls.
func Random(seed uint64, probability float64) func(Call) Fault {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // to be repeated
	return func(c Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		f := Fault{Delay: time.Duration(rng.IntN(200)) * time.Millisecond}
		if rng.Float64() >= probability {
			return f
		}
		switch k := 1 + Kind(rng.IntN(int(Panic))); {
		case k == Throttle:
			f.Kind, f.RetryAfter = k, time.Duration(rng.IntN(20))*time.Second
		case k == Stale && c.Type == Marked && c.Op == "read":
			f.Kind, f.Age = k, time.Duration(1+rng.IntN(15))*time.Second
		case k != Stale:
			f.Kind = k
		}
		if rng.IntN(20) == 0 {
			f.Delay = time.Duration(rng.IntN(30)) * time.Second
		}
		return f
	}
}
