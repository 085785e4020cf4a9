package saml

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

const (
	loginPrefix     storage.Key = "login/"
	relayPrefix     storage.Key = "relay/"
	linkPrefix      storage.Key = "go/"
	assertionPrefix storage.Key = "assertion/"
	expiryPrefix    storage.Key = "expiry/"
)

// What can become of a login.
const (
	pendingState    = "pending"    // the identity provider has not responded
	confirmingState = "confirming" // it has, and the role admits the user, who has yet to confirm it in the browser
	completedState  = "completed"  // to be redeemed
	rejectedState   = "refused"    // by the identity provider, the role or the user: no user is admitted
)

// login is the stored form of a login that was started, as JSON.
type login struct {
	Format int `json:"format"` // 1

	Role       string `json:"role"`
	Challenge  []byte `json:"challenge,omitempty"` // the SHA-256 of the verifier
	ClientType string `json:"client_type,omitempty"`
	ACSURL     string `json:"acs_url"`
	RequestID  string `json:"request_id,omitempty"` // of the AuthnRequest
	// Unsolicited marks what the identity provider began: the holder of its code redeems it, without a verifier.
	Unsolicited      bool   `json:"unsolicited,omitempty"`
	VerificationCode string `json:"verification_code,omitempty"`
	Target           string `json:"target,omitempty"` // where its short link leads, if it has one

	Address   string    `json:"address"` // who started it
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`

	State  string         `json:"state"`
	User   *role.Identity `json:"user,omitempty"`   // once the response is accepted
	Trust  string         `json:"trust,omitempty"`  // once the response is accepted: config.trust of then
	Reason string         `json:"reason,omitempty"` // once rejected, for the client that redeems
	// Confirmation is the hash of what the page knows that asks the user.
	Confirmation string `json:"confirmation,omitempty"`
	// Browser is the address that the response came from.
	Browser string `json:"browser,omitempty"`

	// Keys are what else there is of it, to be removed with it.
	Keys []storage.Key `json:"keys,omitempty"`

	// AuditID names the login in the audit records of its requests. It is random, and leads to nothing else.
	AuditID string `json:"audit_id,omitempty"`

	id string // hash of what redeems it
}

func (l *login) RecordFormat() *int { return &l.Format }

// reference leads to a login.
type reference struct {
	Format int    `json:"format"` // 1
	Login  string `json:"login"`  // id
}

func (r *reference) RecordFormat() *int { return &r.Format }

// used says that an assertion has been used.
type used struct {
	Format int `json:"format"` // 1
}

func (u *used) RecordFormat() *int { return &u.Format }

// expiry is what is to be removed at its time.
type expiry struct {
	Format int           `json:"format"` // 1
	Keys   []storage.Key `json:"keys"`
}

func (x *expiry) RecordFormat() *int { return &x.Format }

// hash names something secret in a key. The domain keeps apart what must not stand for one another.
func hash(domain, text string) string {
	sum := sha256.Sum256([]byte(domain + "\x00" + text))
	return hex.EncodeToString(sum[:])
}

func loginKey(id string) storage.Key    { return loginPrefix + storage.Key(id) }
func relayKey(relay string) storage.Key { return relayPrefix + storage.Key(hash("relay", relay)) }
func linkKey(code string) storage.Key   { return linkPrefix + storage.Key(hash("link", code)) }

// pollLogin and codeLogin return the id of the login that a poll id or a sign-in code redeems.
func pollLogin(pollID string) string { return hash("poll", pollID) }
func codeLogin(code string) string   { return hash("code", plainCode(code)) }

func assertionKey(issuer, id string) storage.Key {
	return assertionPrefix + storage.Key(hash("assertion", strconv.Itoa(len(issuer))+":"+issuer+id))
}

// expiryKey sorts by time. What is due at a time is removed in the second after it.
func expiryKey(at time.Time, name string) storage.Key {
	return expiryPrefix + storage.Key(fmt.Sprintf("%012d-%s", at.Unix()+1, name))
}

// getLogin returns a login, nil if there is none or its time is over.
func getLogin(ctx context.Context, g engines.Getter, id string) (*login, error) {
	l := &login{id: id}
	found, err := engines.GetRecord(ctx, g, loginKey(id), l)
	if err != nil || !found || !time.Now().Before(l.ExpiresAt) {
		return nil, err
	}
	return l, nil
}

// referredLogin returns the login that a key below relay/ or go/ leads to, nil if there is none.
func referredLogin(ctx context.Context, g engines.Getter, key storage.Key) (*login, error) {
	var r reference
	found, err := engines.GetRecord(ctx, g, key, &r)
	if err != nil || !found {
		return nil, err
	}
	return getLogin(ctx, g, r.Login)
}

// create stores a new login with the keys that lead to it.
func (l *login) create(t *storage.Txn, leading ...storage.Key) error {
	x := expiryKey(l.ExpiresAt, l.id)
	l.Keys = append(leading, x)
	if err := engines.PutRecord(t, x, &expiry{Keys: append([]storage.Key{loginKey(l.id)}, leading...)}); err != nil {
		return err
	}
	for _, key := range leading {
		if err := engines.PutRecord(t, key, &reference{Login: l.id}); err != nil {
			return err
		}
	}
	return engines.PutRecord(t, loginKey(l.id), l)
}

// drop removes a login with all that leads to it.
func (l *login) drop(t *storage.Txn) {
	t.Delete(loginKey(l.id))
	for _, key := range l.Keys {
		t.Delete(key)
	}
}

// memory is how much longer than necessary used assertions are remembered: clocks of nodes differ, and the next active
// node may have one that is slow.
const memory = 5 * time.Minute

// use marks an assertion as used, and reports whether it was new. It must not be accepted before the time until.
func use(ctx context.Context, t *storage.Txn, key storage.Key, until time.Time) (fresh bool, err error) {
	found, err := engines.GetRecord(ctx, t, key, new(used))
	if err != nil || found {
		return false, err
	}
	x := expiryKey(until.Add(memory), strings.TrimPrefix(string(key), string(assertionPrefix)))
	if err := engines.PutRecord(t, x, &expiry{Keys: []storage.Key{key}}); err != nil {
		return false, err
	}
	return true, engines.PutRecord(t, key, new(used))
}

// Limits of what is pending.
const (
	maxPending    = 20_000         // logins of a mount
	crowded       = maxPending / 2 // from here on there is no room for more from where many come from
	maxOfOne      = 1_000          // of one site, in the last five to ten minutes
	sweepInterval = 10 * time.Second
	sweepTimeout  = 20 * time.Second
	sweepPage     = 256 // what expires together is removed in pages
	sweepPages    = 8   // in a row: the request that sweeps must not wait long
)

// pending is what the node knows of how many logins there are: not their state, which is stored. There is no counter in
// the storage, which every start would have to write. The node counts what is stored every ten seconds, if anything is
// started, and adds what it starts between. What is redeemed between counts until then, so the limit is not exact: it
// bounds what starts cost that are not followed up.
type pending struct {
	mu       sync.Mutex
	next     time.Time // when to sweep and count again
	sweeping bool
	count    int
	// started are the logins of the last five minutes by site, the oldest first: who starts too many loses those, and keeps
	// no other site out.
	started map[netip.Prefix][]startedLogin
}

type startedLogin struct {
	id string
	at time.Time
}

// begin reports whether the caller is to sweep; then it calls end.
func (p *pending) begin(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A clock that was set back must not keep the next sweep away.
	if p.sweeping || now.Before(p.next) && p.next.Sub(now) <= sweepInterval {
		return false
	}
	p.sweeping = true
	return true
}

// endSweep records how many logins there are, below 0 if that is not known, and whether the next sweep should come soon.
func (p *pending) endSweep(now time.Time, count int, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweeping, p.next = false, now.Add(sweepInterval)
	if count >= 0 {
		p.count = count
	}
	for site := range p.started {
		p.forgetLocked(site, now)
	}
	if more {
		p.next = now
	}
}

// add counts one more login from an address. If there is too little room it returns the login that has to make some: the
// oldest of the same site, or of the one with most if the mount is full. It reports false if none is known, as after a change
// of the active node.
func (p *pending) add(now time.Time, from netip.Addr, id string) (evict string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started == nil {
		p.started = map[netip.Prefix][]startedLogin{}
	}
	site := siteOf(from)
	p.forgetLocked(site, now)
	crowd, full := site, p.count >= crowded && len(p.started[site]) >= maxOfOne
	if !full && p.count >= maxPending {
		for other := range p.started {
			if p.forgetLocked(other, now); len(p.started[other]) > len(p.started[crowd]) {
				crowd = other
			}
		}
		if full = true; len(p.started[crowd]) == 0 {
			return "", false
		}
	}
	if full {
		evict, p.started[crowd] = p.started[crowd][0].id, p.started[crowd][1:]
	} else {
		p.count++
	}
	p.started[site] = append(p.started[site], startedLogin{id, now})
	return evict, true
}

// forgetLocked drops what has expired.
func (p *pending) forgetLocked(site netip.Prefix, now time.Time) {
	list := p.started[site]
	for len(list) > 0 && (now.Sub(list[0].at) >= loginTTL || now.Before(list[0].at)) {
		list = list[1:]
	}
	if p.started[site] = list; len(list) == 0 {
		delete(p.started, site)
	}
}

// siteOf returns the network that one user has: an IPv4 address, or 64 bits of an IPv6 one.
func siteOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	site, err := addr.Prefix(min(addr.BitLen(), 64))
	if err != nil {
		return netip.Prefix{} // no address
	}
	return site
}

// checkPendingLimit removes what has expired, now and then, and makes room for a further login: it returns the one that it takes the place
// of, if any, for the transaction that creates it.
func (e *engine) checkPendingLimit(ctx context.Context, s storage.Store, from netip.Addr, id string) (evict string, err error) {
	now := time.Now()
	if e.pending.begin(now) {
		// The sweep is for all clients: the one that sent the request may hang up before it is done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
		count, more, err := sweep(ctx, s, now)
		cancel()
		if err != nil {
			e.log.Warn("removing expired logins failed", "err", err)
		}
		e.pending.endSweep(now, count, more)
	}
	if evict, ok := e.pending.add(now, from, id); ok {
		return evict, nil
	}
	return "", &engines.Error{
		Kind: engines.KindLimited, Detail: "too many logins are pending: try again in a few minutes",
		Header: http.Header{"Retry-After": {strconv.Itoa(int(loginTTL / time.Second))}},
	}
}

// makeRoom removes a login in favour of a newer one, if it still waits for the identity provider.
func makeRoom(ctx context.Context, t *storage.Txn, id string) error {
	if id == "" {
		return nil
	}
	l, err := getLogin(ctx, t, id)
	if err == nil && l != nil && l.State == pendingState {
		l.drop(t)
	}
	return err
}

// sweep removes what has expired and returns how many logins are left, -1 if they cannot be counted, and whether there is
// more to remove.
func sweep(ctx context.Context, s storage.Store, now time.Time) (left int, more bool, err error) {
	for page := 0; page < sweepPages && err == nil; page++ {
		if more, err = sweepOnce(ctx, s, now); !more {
			break
		}
	}
	names, listErr := s.List(ctx, loginPrefix, "", maxPending)
	if listErr != nil {
		return -1, more, errors.Join(err, listErr)
	}
	return len(names), more, err
}

// sweepOnce removes one page of what has expired. Those keys are not written again: they are named after random values, or
// after an assertion that is not acceptable any more.
func sweepOnce(ctx context.Context, s storage.Store, now time.Time) (more bool, err error) {
	entries, err := s.Scan(ctx, expiryPrefix, "", sweepPage)
	if err != nil {
		return false, err
	}
	due := storage.Begin(s)
	end := expiryPrefix + storage.Key(fmt.Sprintf("%012d", now.Unix()))
	n := 0
	for ; n < len(entries) && entries[n].Key < end; n++ {
		var x expiry
		if err := engines.DecodeRecord(entries[n], &x); err != nil {
			return false, err
		}
		due.Delete(entries[n].Key)
		for _, key := range x.Keys {
			due.Delete(key)
		}
	}
	if n == 0 {
		return false, nil
	}
	_, err = s.Commit(ctx, due.Batch())
	return n == sweepPage, err
}

// alphabet is of codes that human users read and type: without I, O, 0 and 1.
const alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// newCode returns n random groups of size signs, with a dash between: 5 bits a sign.
func newCode(n, size int) string {
	b := make([]byte, n*size)
	rand.Read(b) // never fails
	var code strings.Builder
	for i, r := range b {
		if i > 0 && i%size == 0 {
			code.WriteByte('-')
		}
		code.WriteByte(alphabet[r%32])
	}
	return code.String()
}

// plainCode returns a code as it was made, however it was typed.
func plainCode(code string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(code))
}

// newPollID returns a random UUID.
func newPollID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// newRelayState returns 256 random bits in 43 bytes: identity providers carry at least 80.
func newRelayState() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}
