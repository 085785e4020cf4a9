// Package namespace owns the namespaces: each has its own mounts, policies, tokens and identities, and may hold
// further namespaces. Every namespace is one entry in storage; every node derives the same tree from the same
// entries and keeps it in memory, so that finding the namespace of a request reads nothing. Creation is one
// transaction with everything the namespace begins with. Deletion takes the namespace out of reach at once and
// removes what it held afterwards, on the active node, from wherever an interruption left it. Start reading at
// Store, then Namespace.
package namespace

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// RootID and RootPath name the root namespace, which has no entry: it is always there.
const (
	RootID   = "root"
	RootPath = ""
)

// Limits of what can be named and kept.
const (
	maxDepth       = 16  // of namespaces within each other
	maxNameBytes   = 128 // one name
	maxMetadata    = 64  // pairs
	maxMetaKey     = 128 // bytes
	maxMetaValue   = 512 // bytes
	idLetters      = 6
	unlockKeyBytes = 32 // letters
)

// Namespace is one namespace as it was when the tree was read. Do not modify it.
type Namespace struct {
	ID   string // "root", or random letters
	UUID string
	Path string // full: "" for root, else "a/b/"
	// Metadata is the operators' own.
	Metadata map[string]string
	// Deleting is set once it, or one it lies in, is being deleted: it does not resolve any more.
	Deleting bool

	stored record
	parent *Namespace // nil for root
	locked bool
}

// Name returns the last segment of the path, "" for root.
func (n *Namespace) Name() string {
	path := strings.TrimSuffix(n.Path, "/")
	return path[strings.LastIndexByte(path, '/')+1:]
}

// Locked reports whether the namespace or one it lies in is locked. A locked one answers nothing but
// sys/namespaces/api-lock/unlock.
func (n *Namespace) Locked() bool { return n.locked }

// depth is the number of namespaces above it.
func (n *Namespace) depth() int { return strings.Count(n.Path, "/") }

// record is what is stored of a namespace. The id, the path and the parent never change.
type record struct {
	Format     int               `json:"format"` // 1
	ID         string            `json:"id"`
	UUID       string            `json:"uuid"`
	Path       string            `json:"path"` // full, ends in "/"
	Parent     string            `json:"parent"`
	Metadata   map[string]string `json:"custom_metadata,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	Locked     bool              `json:"locked,omitempty"`
	UnlockHash []byte            `json:"unlock_hash,omitempty"` // SHA-256 of the unlock key, which is random
	Deleting   bool              `json:"deleting,omitempty"`
}

const area = "namespace"

// namespaces is what all their keys begin with.
var namespaces = storage.NewKey(storage.Shared, area, "")

// Entries are s/namespace/<id>; s/namespace/<parent id>/<name> holds the id of the one with that name, and so
// makes names unique.
func recordKey(id string) storage.Key { return storage.NewKey(storage.Shared, area, id) }

func nameKey(parent, name string) storage.Key { return recordKey(parent) + "/" + storage.Key(name) }

func (r *record) value() []byte {
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts, bytes and booleans only
	}
	return value
}

func decodeRecord(e storage.Entry) (record, error) {
	var r record
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return r, fmt.Errorf("decoding namespace entry %s: %w", e.Key, err)
	}
	if r.Format != 1 {
		return r, fmt.Errorf("namespace entry %s has format %d, this version knows 1", e.Key, r.Format)
	}
	return r, nil
}

// reserved are the first segments of paths that mean something else, and what clients write for the root.
var reserved = map[string]bool{
	RootID: true, "sys": true, "audit": true, "auth": true, "cubbyhole": true, "identity": true, "v1": true, "ui": true,
	"api-lock": true, ".": true, "..": true,
}

// sealPaths are paths below a namespace's own that clients know where namespaces have seals of their own.
var sealPaths = map[string]bool{"seal": true, "unseal": true, "seal-status": true, "key-status": true, "rotate": true, "rekey": true, "generate-root": true}

// checkName reports what is wrong with the name of a new namespace, in words for the caller.
func checkName(name string) error {
	switch {
	case name == "":
		return engines.Invalid("the namespace's path has an empty segment")
	case len(name) > maxNameBytes:
		return engines.Invalid("the namespace's name is %d bytes long, the limit is %d", len(name), maxNameBytes)
	case reserved[name]:
		return engines.Invalid("%q is a reserved path and cannot be a namespace", name)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "*+") || strings.ContainsFunc(name, unprintable):
		return engines.Invalid("the namespace's name must not have spaces, control characters, \"*\" or \"+\"")
	}
	return nil
}

func unprintable(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// checkMetadata bounds what is kept for people.
func checkMetadata(metadata map[string]string) error {
	if len(metadata) > maxMetadata {
		return engines.Invalid("field \"custom_metadata\" has more than %d pairs", maxMetadata)
	}
	for k, v := range metadata {
		if k == "" || len(k) > maxMetaKey || len(v) > maxMetaValue {
			return engines.Invalid("field \"custom_metadata\": a key has 1 to %d bytes, a value at most %d", maxMetaKey, maxMetaValue)
		}
	}
	return nil
}

const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// random returns n random letters and digits.
func random(n int) string {
	b := make([]byte, n)
	most := big.NewInt(int64(len(letters)))
	for i := range b {
		k, err := rand.Int(rand.Reader, most)
		if err != nil {
			panic(err) // crypto/rand.Reader does not fail
		}
		b[i] = letters[k.Int64()]
	}
	return string(b)
}
