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
)

// The cost of new hashes: the second choice of the OWASP password storage cheat sheet.
const (
	hashMemoryKiB = 19 << 10
	hashTime      = 2
	hashThreads   = 1
	saltBytes     = 16
	hashBytes     = 32
)

// maxBcryptCost bounds what one login with an imported hash may cost: about a second.
const maxBcryptCost = 14

// slots bounds how many hashes of all mounts are computed at once, and so their memory.
var slots = make(chan struct{}, max(2, min(runtime.GOMAXPROCS(0), 8)))

// argon is one argon2id hash and what it was made with.
type argon struct {
	memory, time uint32
	threads      uint8
	salt, sum    []byte
}

// hasher makes and checks hashes.
type hasher struct {
	derive func(password []byte, a argon) []byte
}

func newHasher() hasher {
	return hasher{derive: func(password []byte, a argon) []byte {
		return argon2.IDKey(password, a.salt, a.time, a.memory, a.threads, hashBytes)
	}}
}

// acquire waits for a slot until ctx ends.
func acquire(ctx context.Context) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// of returns what to store for new credentials, "" if there are none.
func (h hasher) of(ctx context.Context, c *credentials) (string, error) {
	switch password, imported := c.Password.Reveal(), c.PasswordHash.Reveal(); {
	case password != "" && imported != "":
		return "", engines.Invalid("fields \"password\" and \"password_hash\" are both given: give one of them")
	case imported != "":
		return imported, checkBcrypt(imported)
	case password != "":
		release, err := acquire(ctx)
		if err != nil {
			return "", err
		}
		defer release()
		a := argon{memory: hashMemoryKiB, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes)}
		rand.Read(a.salt) // never fails
		a.sum = h.derive([]byte(password), a)
		return a.String(), nil
	}
	return "", nil
}

// nobody is what the passwords of users that are not there are compared with. No password is accepted for them.
var nobody = argon{memory: hashMemoryKiB, time: hashTime, threads: hashThreads, salt: make([]byte, saltBytes), sum: make([]byte, hashBytes)}.String()

// matches reports whether the password is the one of a stored hash. The caller holds a slot.
func (h hasher) matches(stored, password string) (bool, error) {
	if strings.HasPrefix(stored, "$2") {
		err := bcrypt.CompareHashAndPassword([]byte(stored), []byte(password))
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

// checkBcrypt refuses what bcrypt could not compare with, or only at a price.
func checkBcrypt(hash string) error {
	const alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil || len(hash) != 60 || !slices.Contains([]string{"$2a$", "$2b$", "$2y$"}, hash[:4]) || hash[6] != '$' || strings.Trim(hash[7:], alphabet) != "":
		return engines.Invalid("field \"password_hash\": must be a bcrypt hash, which is 60 characters and begins with \"$2a$\", \"$2b$\" or \"$2y$\"")
	case cost > maxBcryptCost:
		return engines.Invalid("field \"password_hash\": has the cost %d, the limit is %d", cost, maxBcryptCost)
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
