package userpass

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
)

// The cost of new hashes: the second choice of the OWASP password storage cheat sheet.
const (
	hashMemoryKiB = 19 << 10
	hashTime      = 2
	hashThreads   = 1
	saltBytes     = 16
	hashBytes     = 32
)

// maxBcryptCost bounds what one login costs in a mount with an imported hash: about a quarter of a second. Hashes of up to
// cost 14 that an older version has imported still work.
const maxBcryptCost = 12

// hashing bounds how many hashes of all mounts are computed at once, and so their memory.
var (
	hashSlots = max(2, min(runtime.GOMAXPROCS(0), 8))
	hashing   = fairqueue.New(fairqueue.DefaultLimits(hashSlots))
)

// argon is one argon2id hash and what it was made with.
type argon struct {
	memory, time uint32
	threads      uint8
	salt, sum    []byte
}

// hasher makes and checks hashes.
type hasher struct {
	derive func(password []byte, a argon) []byte
	bcrypt func(hash, password []byte) error
}

func newHasher() hasher {
	return hasher{
		derive: func(password []byte, a argon) []byte {
			return argon2.IDKey(password, a.salt, a.time, a.memory, a.threads, hashBytes)
		},
		bcrypt: bcrypt.CompareHashAndPassword,
	}
}

// hashOf returns what to store for new credentials, "" if there are none.
func (e *engine) hashOf(ctx context.Context, req *engines.Request, c *credentials) (string, error) {
	switch password, imported := c.Password.Reveal(), c.PasswordHash.Reveal(); {
	case password != "" && imported != "":
		return "", engines.Invalid("fields \"password\" and \"password_hash\" are both given: give one of them")
	case imported != "":
		return imported, checkBcrypt(imported)
	case password != "":
		release, err := hashing.AcquireFirst(ctx, fairqueue.SourceOf(req))
		if err != nil {
			return "", err
		}
		defer release()
		return e.hasher.of(password), nil
	}
	return "", nil
}

// of returns the hash of a new password. The caller holds a slot.
func (h hasher) of(password string) string {
	a := argon{memory: hashMemoryKiB, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes)}
	rand.Read(a.salt) // never fails
	a.sum = h.derive([]byte(password), a)
	return a.String()
}

// unknownUser is what the passwords of names without a user are compared with. No password is accepted for them.
var unknownUser = argon{memory: hashMemoryKiB, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes), sum: make([]byte, hashBytes)}.String()

// matches reports whether the password is the one of a stored hash. The caller holds a slot.
func (h hasher) matches(stored, password string) (bool, error) {
	if isBcrypt(stored) {
		err := h.bcrypt([]byte(stored), []byte(password))
		if errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
			return false, nil
		}
		return err == nil, err
	}
	a, err := parseArgon(stored)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(a.sum, h.derive([]byte(password), a)) == 1, nil
}

func isBcrypt(stored string) bool { return strings.HasPrefix(stored, "$2") }

// bcryptCost returns the cost of an imported hash, 0 of any other.
func bcryptCost(stored string) int {
	if !isBcrypt(stored) {
		return 0
	}
	cost, err := bcrypt.Cost([]byte(stored))
	if err != nil {
		return 0
	}
	return cost
}

// pad does the rest of the work of a login that is rejected, after matches: one hash of ours, and one bcrypt hash of the
// cost most, 0 for none. As the work doubles from one cost to the next, a hash of cost c and one of each from c up to
// most-1 are one of most.
func (h hasher) pad(stored, password string, most int) {
	cost := bcryptCost(stored)
	if cost == 0 {
		if most > 0 {
			h.burn(password, most)
		}
		return
	}
	_, _ = h.matches(unknownUser, password)
	for ; cost < most; cost++ {
		h.burn(password, cost)
	}
}

// burn computes a bcrypt hash for nothing.
func (h hasher) burn(password string, cost int) {
	const salted = "N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
	_ = h.bcrypt(fmt.Appendf(nil, "$2a$%02d$%s", cost, salted), []byte(password))
}

// checkBcrypt rejects what bcrypt could not compare with, or only at a price.
func checkBcrypt(hash string) error {
	const alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil || len(hash) != 60 || !slices.Contains([]string{"$2a$", "$2b$", "$2y$"}, hash[:4]) || hash[6] != '$' || strings.Trim(hash[7:], alphabet) != "":
		return engines.Invalid("field \"password_hash\": must be a bcrypt hash, which is 60 characters and begins with \"$2a$\", \"$2b$\" or \"$2y$\"")
	case cost > maxBcryptCost:
		return engines.Invalid("field \"password_hash\": has the cost %d, the limit is %d: import a hash of a lower cost, or give the field \"password\" instead", cost, maxBcryptCost)
	}
	return nil
}

// String returns the PHC form of the hash.
func (a argon) String() string {
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, a.memory, a.time, a.threads, b64(a.salt), b64(a.sum))
}

// parseArgon is the inverse of String.
func parseArgon(text string) (argon, error) {
	var a argon
	unknown := errors.New("stored password hash has an unknown format")
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprint("v=", argon2.Version) {
		return a, unknown
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &a.memory, &a.time, &a.threads); err != nil {
		return a, unknown
	}
	var saltErr, sumErr error
	a.salt, saltErr = base64.RawStdEncoding.Strict().DecodeString(parts[4])
	a.sum, sumErr = base64.RawStdEncoding.Strict().DecodeString(parts[5])
	if saltErr != nil || sumErr != nil || len(a.sum) != hashBytes || a.time == 0 || a.threads == 0 || a.String() != text {
		return a, unknown
	}
	return a, nil
}
