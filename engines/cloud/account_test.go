package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/static"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// account is the provider in memory, for tests that move the clock or stop at each step: users, who may all do everything,
// and their keys.
type account struct {
	mu    sync.Mutex
	users map[string]*accountUser
	made  int
	calls []string
	// newKeys is how long a key does not let anybody in after it was made, and unlisted how long it is not in lists.
	newKeys, unlisted time.Duration
	// fail is asked before each call, and after it has been carried out.
	fail func(action, user string, done bool) error
}

type accountUser struct {
	id   string
	keys []accountKey
}

type accountKey struct {
	aws.Key
	secret string
}

// accountClient is the account as one key lets in.
type accountClient struct {
	aws.API
	in      *account
	options aws.Options
}

func newAccount(users ...string) *account {
	a := &account{users: map[string]*accountUser{}}
	for _, name := range users {
		a.addUser(name)
	}
	return a
}

func (a *account) addUser(name string) {
	a.made++
	a.users[name] = &accountUser{id: fmt.Sprintf("AIDA%016d", a.made)}
}

func (a *account) addKey(user string) aws.Credentials {
	a.made++
	k := accountKey{Key: aws.Key{ID: fmt.Sprintf("AKIA%016d", a.made), CreatedAt: time.Now().UTC().Truncate(time.Second), Active: true}, secret: fmt.Sprintf("secret-%d", a.made)}
	a.users[user].keys = append(a.users[user].keys, k)
	return aws.Credentials{AccessKey: k.ID, SecretKey: engines.Sensitive(k.secret)}
}

// ids are the keys of a user.
func (a *account) ids(user string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids []string
	for _, k := range a.users[user].keys {
		ids = append(ids, k.ID)
	}
	return ids
}

// lets reports whether a key is valid, now or soon.
func (a *account) lets(id, secret string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, k := a.find(id)
	return k != nil && k.secret == secret
}

func (a *account) find(id string) (string, *accountKey) {
	for name, u := range a.users {
		for i := range u.keys {
			if u.keys[i].ID == id {
				return name, &u.keys[i]
			}
		}
	}
	return "", nil
}

// count returns how often an action was called.
func (a *account) count(action string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.calls {
		if c == action {
			n++
		}
	}
	return n
}

func (a *account) total() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls)
}

func refuse(kind aws.Kind, action, code string) error {
	return &aws.Error{Kind: kind, Action: action, Code: code, Text: "said the provider"}
}

// do carries out a call of the key's user; user "" is that user.
func (c accountClient) do(ctx context.Context, action, user string, fn func(u *accountUser) error) error {
	a := c.in
	a.mu.Lock()
	fail := a.fail
	a.calls = append(a.calls, action)
	a.mu.Unlock()
	if ctx.Err() != nil {
		return &aws.Error{Kind: aws.Unavailable, Action: action, Text: "canceled", Err: ctx.Err()}
	}
	if fail != nil {
		if err := fail(action, user, false); err != nil {
			return err
		}
	}
	a.mu.Lock()
	err := c.carryOut(action, user, fn)
	a.mu.Unlock()
	if err == nil && fail != nil {
		err = fail(action, user, true)
	}
	return err
}

func (c accountClient) carryOut(action, user string, fn func(u *accountUser) error) error {
	self, k := c.in.find(c.options.AccessKey)
	if k == nil || k.secret != c.options.SecretKey.Reveal() || time.Since(k.CreatedAt) < c.in.newKeys {
		return refuse(aws.Denied, action, "InvalidClientTokenId")
	}
	if user == "" {
		user = self
	}
	u := c.in.users[user]
	if u == nil {
		return refuse(aws.NotFound, action, "NoSuchEntity")
	}
	return fn(u)
}

func (c accountClient) GetUser(ctx context.Context, name string) (got aws.User, err error) {
	err = c.do(ctx, "GetUser", name, func(u *accountUser) error {
		if got = (aws.User{Name: name, ID: u.id}); name == "" {
			got.Name, _ = c.in.find(c.options.AccessKey)
		}
		return nil
	})
	return got, err
}

func (c accountClient) ListAccessKeys(ctx context.Context, user string) (keys []aws.Key, err error) {
	err = c.do(ctx, "ListAccessKeys", user, func(u *accountUser) error {
		for _, k := range u.keys {
			if time.Since(k.CreatedAt) >= c.in.unlisted {
				keys = append(keys, k.Key)
			}
		}
		return nil
	})
	return keys, err
}

func (c accountClient) CreateAccessKey(ctx context.Context, user string) (made aws.Credentials, err error) {
	err = c.do(ctx, "CreateAccessKey", user, func(u *accountUser) error {
		if len(u.keys) >= 2 {
			return refuse(aws.Limit, "CreateAccessKey", "LimitExceeded")
		}
		made = c.in.addKey(user)
		return nil
	})
	if err != nil {
		return aws.Credentials{}, err
	}
	return made, nil
}

func (c accountClient) DeleteAccessKey(ctx context.Context, user, id string) error {
	return c.do(ctx, "DeleteAccessKey", user, func(u *accountUser) error {
		before := len(u.keys)
		u.keys = slices.DeleteFunc(u.keys, func(k accountKey) bool { return k.ID == id })
		if len(u.keys) == before {
			return refuse(aws.NotFound, "DeleteAccessKey", "NoSuchEntity")
		}
		return nil
	})
}

func (c accountClient) CallerIdentity(ctx context.Context, who aws.Credentials) (arn string, err error) {
	if who.AccessKey != "" {
		c.options.AccessKey, c.options.SecretKey = who.AccessKey, who.SecretKey
	}
	err = c.do(ctx, "GetCallerIdentity", "", func(*accountUser) error {
		name, _ := c.in.find(c.options.AccessKey)
		arn = "arn:aws:iam::123456789012:user/" + name
		return nil
	})
	return arn, err
}

// node is a mount on one node, with the account as its provider.
type node struct {
	*enginetest.Mount
	t  testing.TB
	in *account
}

// newNode configures the key of the user "root" as the root key.
func newNode(t testing.TB, in *account, more fields) *node {
	t.Helper()
	n := &node{Mount: testMount(t), t: t, in: in}
	n.dial()
	if in.users["root"] == nil {
		in.addUser("root")
		key := in.addKey("root")
		config := fields{"access_key": key.AccessKey, "secret_key": key.SecretKey.Reveal()}
		for name, value := range more {
			config[name] = value
		}
		n.Must(engines.Update, "config/root", config)
	}
	return n
}

func (n *node) dial() {
	n.Engine.(*engine).clients.Dial = func(_ context.Context, o aws.Options) (aws.API, error) {
		return accountClient{in: n.in, options: o}, nil
	}
}

// peer is the mount on another node, or after a restart, with a store that works.
func (n *node) peer() *node {
	n.t.Helper()
	p := *n
	p.Mount = n.Peer()
	if d, ok := p.Mount.Mount.Storage.(*dyingStore); ok {
		p.Mount.Mount.Storage = d.Store
	}
	p.dial()
	return &p
}

func (n *node) work() {
	n.t.Helper()
	if err := n.Engine.(*engine).Work(n.t.Context(), n.Mount.Mount, true); err != nil {
		n.t.Errorf("Work: %v", err)
	}
}

// run calls Work for so long: as often as the server does, and once a minute where it goes on for hours.
func (n *node) run(d time.Duration) {
	n.t.Helper()
	interval := engines.WorkInterval
	if d > time.Hour {
		interval = time.Minute
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		n.work()
		time.Sleep(interval)
	}
}

func (n *node) static(name string) map[string]any {
	n.t.Helper()
	return n.Data(n.Must(engines.Read, "static-roles/"+name, nil))
}

// key is the credential that a static role answers.
func (n *node) key(name string) (id, secret string) {
	n.t.Helper()
	data := n.Data(n.Must(engines.Read, "static-creds/"+name, nil))
	return data["access_key"].(string), data["secret_key"].(string)
}

// left are the records that only stay while something is unfinished.
func (n *node) left() []storage.Key {
	n.t.Helper()
	var left []storage.Key
	entries, err := n.Mount.Mount.Storage.Scan(n.t.Context(), static.LeftPrefix, "", 0)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Key)
	}
	rotation, err := getRotation(n.t.Context(), n.Mount.Mount.Storage)
	if err != nil {
		n.t.Fatal(err)
	}
	if rotation.Pending != nil || rotation.New != (accesskey.Own{}) || rotation.Old != (accesskey.Own{}) {
		left = append(left, rotationKey)
	}
	return left
}

// death ends a process after a number of steps: commits and calls at the provider. The last one is carried out, but no process
// learns it, and nothing is done any more.
type death struct {
	mu    sync.Mutex
	steps int
	dead  bool
}

func (d *death) alive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.dead
}

// step reports whether the process survives what it has just done.
func (d *death) step() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps--
	d.dead = d.dead || d.steps <= 0
	return !d.dead
}

// dyingStore is the store of a process that dies.
type dyingStore struct {
	storage.Store
	death *death
}

func (s *dyingStore) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	if !s.death.alive() {
		return storage.Entry{}, storage.ErrUnavailable
	}
	return s.Store.Get(ctx, key)
}

func (s *dyingStore) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !s.death.alive() {
		return 0, storage.ErrUnavailable
	}
	i, err := s.Store.Commit(ctx, b)
	if err == nil && !s.death.step() {
		return 0, storage.ErrOutcomeUnknown
	}
	return i, err
}

// dieAfter lets the node die after a number of steps. Its peers live.
func (n *node) dieAfter(steps int) *death {
	d := &death{steps: steps}
	n.Mount.Mount.Storage = &dyingStore{Store: n.Mount.Mount.Storage, death: d}
	n.in.fail = func(action, _ string, done bool) error {
		if !d.alive() || done && !d.step() {
			return refuse(aws.Unavailable, action, "")
		}
		return nil
	}
	return d
}

// kindOf is the kind of an error for clients, -1 for others.
func kindOf(err error) engines.Kind {
	e, ok := errors.AsType[*engines.Error](err)
	if !ok {
		return -1
	}
	return e.Kind
}
