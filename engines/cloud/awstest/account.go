package awstest

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"time"
)

// Account is one of the provider's, to set up and to look into.
type Account struct {
	// ID are twelve digits.
	ID string

	s        *Server
	users    map[string]*user  // by folded name
	groups   map[string]*users // by folded name
	policies map[string]bool   // ARNs of managed ones
	roles    map[string]*Role  // by ARN
	devices  map[string]string // of MFA that are virtual: their serials, and whose they are or ""
}

// users is a group.
type users struct {
	name     string
	id       string
	arn      string
	attached []string
	inline   map[string]string
}

// user is one of IAM.
type user struct {
	account   *Account
	name      string
	id        string
	path      string
	boundary  string
	created   time.Time
	visibleAt time.Time
	tags      map[string]string
	powerful  bool // by Allow
	attached  []string
	inline    map[string]string
	groups    map[string]bool // by folded name
	keys      []*accessKey
	login     bool
	mfa       map[string]string // codes by serial
	certs     []string
	ssh       []string
	services  []string
}

func (u *user) arn() string { return "arn:aws:iam::" + u.account.ID + ":user" + u.path + u.name }

// accessKey is a key of a user.
type accessKey struct {
	id      string
	secret  string
	user    *user
	created time.Time
	validAt time.Time
	usedAt  time.Time // zero: never
	active  bool
}

// User is a user as a test sees it. Nothing of it is shared with the Server.
type User struct {
	Name     string
	ID       string
	ARN      string
	Path     string
	Boundary string
	Tags     map[string]string
	Policies []string          // ARNs of attached ones, sorted
	Inline   map[string]string // documents by name
	Groups   []string          // sorted
	Keys     []Key             // the oldest first
	Created  time.Time
}

// Key is an access key, with its secret.
type Key struct {
	ID      string
	Secret  string
	Active  bool
	Created time.Time
}

// Group is a group of users.
type Group struct {
	Name     string
	Policies []string          // ARNs of attached ones
	Inline   map[string]string // documents by name
}

// Role is one that may be assumed.
type Role struct {
	Name       string
	ExternalID string        // that has to be given, if it is not ""
	MaxTTL     time.Duration // 0 is one hour
	Powerless  bool          // it may do nothing but assume roles that trust it, as may sessions with policies of their own
	Trusted    []string      // ARNs of users and roles that may assume it; nil is everybody who may do everything
	// WebIdentity returns the code and the reason of the vendor for a token that may not assume it, "" if it may; nil: none may.
	WebIdentity func(token string) (code, reason string)
}

// In returns an account, which is made if there was none with this id.
func (s *Server) In(account string) *Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[account]
	if a == nil {
		a = &Account{
			ID: account, s: s, users: map[string]*user{}, groups: map[string]*users{}, policies: map[string]bool{},
			roles: map[string]*Role{}, devices: map[string]string{},
		}
		s.accounts[account] = a
	}
	return a
}

// letters returns n random letters and digits of base 32, after a prefix.
func letters(prefix string, n int) string { return prefix + rand.Text()[:n] }

func newSecret() string { return (rand.Text() + "/" + rand.Text())[:40] }

func newUser(a *Account, name, path string, now time.Time) *user {
	return &user{
		account: a, name: name, id: letters("AIDA", 17), path: cmp.Or(path, "/"), created: now, visibleAt: now,
		tags: map[string]string{}, inline: map[string]string{}, groups: map[string]bool{}, mfa: map[string]string{},
	}
}

func newKey(u *user, now time.Time) *accessKey {
	k := &accessKey{id: letters("AKIA", 16), secret: newSecret(), user: u, created: now, validAt: now, active: true}
	u.keys = append(u.keys, k)
	u.account.s.keys[k.id] = k
	return k
}

// AddUser makes a user without anything, and without delay.
func (a *Account) AddUser(name string) User {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.users[fold(name)] != nil {
		panic("awstest: there is a user " + name)
	}
	u := newUser(a, name, "/", a.s.now())
	a.users[fold(name)] = u
	return u.seen()
}

// must returns a user that a test names.
func (a *Account) must(name string) *user {
	u := a.users[fold(name)]
	if u == nil {
		panic("awstest: there is no user " + name)
	}
	return u
}

// change does something to a user that a test names.
func (a *Account) change(name string, f func(u *user)) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	f(a.must(name))
}

// Allow lets a user do everything.
func (a *Account) Allow(user string) { a.power(user, true) }

// Deny takes back Allow.
func (a *Account) Deny(user string) { a.power(user, false) }

func (a *Account) power(name string, may bool) { a.change(name, func(u *user) { u.powerful = may }) }

// AddKey makes a further key of a user, even above the quota.
func (a *Account) AddKey(name string) (k Key) {
	a.change(name, func(u *user) { k = newKey(u, a.s.now()).seen() })
	return k
}

// Deactivate makes a key inactive.
func (a *Account) Deactivate(key string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if k := a.s.keys[key]; k != nil {
		k.active = false
	}
}

// AddLoginProfile gives a user a password.
func (a *Account) AddLoginProfile(name string) { a.change(name, func(u *user) { u.login = true }) }

// AddMFADevice gives a user a virtual device, or one of hardware if the serial is not an ARN; "" makes one up. The code is
// the one it always shows.
func (a *Account) AddMFADevice(name, serial string) (usedSerial, code string) {
	code = "271828"
	a.change(name, func(u *user) {
		if serial == "" {
			serial = "arn:aws:iam::" + a.ID + ":mfa/" + u.name
		}
		u.mfa[serial] = code
		if strings.HasPrefix(serial, "arn:") {
			a.devices[serial] = u.name
		}
	})
	return serial, code
}

// AddCertificate gives a user a signing certificate and returns its id.
func (a *Account) AddCertificate(name string) string {
	id := letters("", 24)
	a.change(name, func(u *user) { u.certs = append(u.certs, id) })
	return id
}

// AddSSHKey gives a user a public key and returns its id.
func (a *Account) AddSSHKey(name string) string {
	id := letters("APKA", 17)
	a.change(name, func(u *user) { u.ssh = append(u.ssh, id) })
	return id
}

// AddServiceCredential gives a user a credential of one service and returns its id.
func (a *Account) AddServiceCredential(name string) string {
	id := letters("ACCA", 17)
	a.change(name, func(u *user) { u.services = append(u.services, id) })
	return id
}

// Attach attaches a managed policy to a user.
func (a *Account) Attach(name, policyARN string) {
	a.change(name, func(u *user) { u.attached = append(u.attached, policyARN) })
}

// AddGroup makes a group.
func (a *Account) AddGroup(g Group) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	inline := map[string]string{}
	maps.Copy(inline, g.Inline)
	a.groups[fold(g.Name)] = &users{
		name: g.Name, id: letters("AGPA", 17), arn: "arn:aws:iam::" + a.ID + ":group/" + g.Name, attached: slices.Clone(g.Policies), inline: inline,
	}
}

// AddPolicy makes a managed policy and returns its ARN. Those of the vendor that are named here are always there:
// AdministratorAccess, ReadOnlyAccess, AmazonEC2ReadOnlyAccess, AmazonS3ReadOnlyAccess.
func (a *Account) AddPolicy(name string) (arn string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	arn = "arn:aws:iam::" + a.ID + ":policy/" + name
	a.policies[arn] = true
	return arn
}

// AddRole makes a role and returns its ARN.
func (a *Account) AddRole(r Role) (arn string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	arn = "arn:aws:iam::" + a.ID + ":role/" + r.Name
	r.Trusted = slices.Clone(r.Trusted)
	a.roles[arn] = &r
	return arn
}

// Users returns all users, by name.
func (a *Account) Users() []User {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	all := make([]User, 0, len(a.users))
	for _, name := range sortedKeys(a.users) {
		all = append(all, a.users[name].seen())
	}
	return all
}

// User returns a user and whether there is one.
func (a *Account) User(name string) (User, bool) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	u := a.users[fold(name)]
	if u == nil {
		return User{}, false
	}
	return u.seen(), true
}

// Keys returns the keys of a user, the oldest first, nil if there is no such user.
func (a *Account) Keys(name string) []Key {
	u, _ := a.User(name)
	return u.Keys
}

// VirtualDevices returns the serials of the virtual MFA devices that exist, also of those that no user has.
func (a *Account) VirtualDevices() []string {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return sortedKeys(a.devices)
}

// DropUser removes a user with everything, as another client might.
func (a *Account) DropUser(name string) {
	a.change(name, func(u *user) {
		for _, k := range u.keys {
			delete(a.s.keys, k.id)
		}
		delete(a.users, fold(name))
	})
}

// DropKey removes a key, as another client might.
func (a *Account) DropKey(id string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if k := a.s.keys[id]; k != nil {
		k.remove()
	}
}

func (k *accessKey) remove() {
	k.user.keys = slices.DeleteFunc(k.user.keys, func(o *accessKey) bool { return o == k })
	delete(k.user.account.s.keys, k.id)
}

func (k *accessKey) seen() Key {
	return Key{ID: k.id, Secret: k.secret, Active: k.active, Created: k.created}
}

func (u *user) seen() User {
	v := User{
		Name: u.name, ID: u.id, ARN: u.arn(), Path: u.path, Boundary: u.boundary, Created: u.created,
		Tags: maps.Clone(u.tags), Inline: maps.Clone(u.inline), Policies: slices.Sorted(slices.Values(u.attached)),
	}
	for _, name := range sortedKeys(u.groups) {
		if g := u.account.groups[name]; g != nil {
			v.Groups = append(v.Groups, g.name)
		}
	}
	for _, k := range u.keys {
		v.Keys = append(v.Keys, k.seen())
	}
	return v
}
