package userpass

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/coffer-project/coffer/engines"
)

// recent knows logins that were right lately, so that they need not queue behind wrong ones: they are only put first, and
// checked like any other. It keeps 16 bits of a keyed hash of name and password, in memory: a wrong password is put first
// once in 65,536 times, and who reads the memory cannot tell a password from very many others by them.
type recent struct {
	key [32]byte

	mu   sync.Mutex
	tags map[string]uint16 // by name
}

const maxRecent = 1 << 16 // names; one more puts out any other

func newRecent() *recent {
	r := &recent{tags: map[string]uint16{}}
	rand.Read(r.key[:]) // never fails
	return r
}

func (r *recent) tag(name string, password engines.Sensitive) uint16 {
	mac := hmac.New(sha256.New, r.key[:])
	mac.Write([]byte(name + "\x00" + password.Reveal())) // a name has no NUL
	return binary.BigEndian.Uint16(mac.Sum(nil))
}

func (r *recent) has(name string, password engines.Sensitive) bool {
	tag := r.tag(name, password)
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.tags[name]
	return ok && known == tag
}

func (r *recent) add(name string, password engines.Sensitive) {
	if password == "" { // not known: a hash was imported
		return
	}
	tag := r.tag(name, password)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.tags[name]; !ok && len(r.tags) >= maxRecent {
		for other := range r.tags {
			delete(r.tags, other)
			break
		}
	}
	r.tags[name] = tag
}
