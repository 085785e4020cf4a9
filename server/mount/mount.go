// Package mount owns the mount table: which engine answers below which path. Every mount is one entry in
// storage, so concurrent changes to different mounts never meet, and every node derives the same routes from
// the same entries. A shared mount's entry is class s; a local mount's entry and data are class l and
// invisible to other clusters. Start reading at Entry, then Table.
package mount

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// AuthPrefix begins the path of every auth method.
const AuthPrefix = "auth/"

// Entry is the stored record of one mount. UUID and Accessor never change.
type Entry struct {
	Format    int    `json:"format"` // 1
	UUID      string `json:"uuid"`
	Accessor  string `json:"accessor"`
	Namespace string `json:"namespace"` // id
	Path      string `json:"path"`      // ends in "/"; auth methods begin with "auth/"
	Type      string `json:"type"`
	// Plugin says that Type names a plugin, PluginVersion which version was asked for, if one was.
	Plugin        bool              `json:"plugin,omitempty"`
	PluginVersion string            `json:"plugin_version,omitempty"`
	Description   string            `json:"description,omitempty"`
	Options       map[string]string `json:"options,omitempty"`
	Local         bool              `json:"local,omitempty"`
	Config        Config            `json:"config"`
	// Deleting is set once the mount is being disabled: it is out of the routes, its data may be partly gone.
	Deleting bool `json:"deleting,omitempty"`
	// Moving is set while the mount is on its way to another place: it is out of the routes.
	Moving *Target `json:"moving,omitempty"`

	version storage.Index // of the stored entry; 0 of one that was not read
}

// Target is where a mount is being moved to.
type Target struct {
	Migration string `json:"migration"` // id
	Namespace string `json:"namespace"` // id
	Path      string `json:"path"`
}

// Config is what can be tuned. TTLs are in seconds; 0 means the system's default.
type Config struct {
	DefaultLeaseTTL           int64    `json:"default_lease_ttl"`
	MaxLeaseTTL               int64    `json:"max_lease_ttl"`
	ForceNoCache              bool     `json:"force_no_cache"`
	ListingVisibility         string   `json:"listing_visibility,omitempty"` // "", "hidden" or "unauth"
	AuditNonHMACRequestKeys   []string `json:"audit_non_hmac_request_keys,omitempty"`
	AuditNonHMACResponseKeys  []string `json:"audit_non_hmac_response_keys,omitempty"`
	PassthroughRequestHeaders []string `json:"passthrough_request_headers,omitempty"`
	AllowedResponseHeaders    []string `json:"allowed_response_headers,omitempty"`
	TokenType                 string   `json:"token_type,omitempty"` // auth methods only
	// UserLockout is what was tuned of it; only for engines.LockoutTypes.
	UserLockout *engines.LockoutSettings `json:"user_lockout,omitempty"`
}

// IsAuth reports whether the mount is an auth method.
func (e *Entry) IsAuth() bool { return strings.HasPrefix(e.Path, AuthPrefix) }

// Built-in mounts exist from initialisation on and cannot be disabled, moved or enabled a second time.
var builtin = map[string]bool{"system": true, "cubbyhole": true, "token": true, "identity": true}

// Builtin reports whether the mount is part of the server.
func (e *Entry) Builtin() bool { return builtin[e.Type] }

func (e *Entry) class() storage.Class {
	if e.Local && !e.Builtin() {
		return storage.Local
	}
	return storage.Shared
}

func entryKey(class storage.Class, namespace, uuid string) storage.Key {
	return storage.NewKey(class, "sys", namespace+"/mounts/"+uuid)
}

func (e *Entry) key() storage.Key { return entryKey(e.class(), e.Namespace, e.UUID) }

func (e *Entry) put() storage.Put {
	value, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings, numbers and booleans only
	}
	return storage.Put{Key: e.key(), Value: value}
}

func decodeEntry(se storage.Entry) (*Entry, error) {
	var e Entry
	if err := json.Unmarshal(se.Value, &e); err != nil {
		return nil, fmt.Errorf("decoding mount entry %s: %w", se.Key, err)
	}
	if e.Format != 1 {
		return nil, fmt.Errorf("mount entry %s has format %d, this version knows 1", se.Key, e.Format)
	}
	if e.UUID == "" || e.Path == "" || e.Type == "" {
		return nil, fmt.Errorf("mount entry %s lacks its UUID, path or type", se.Key)
	}
	e.version = se.Version
	return &e, nil
}

// NewEntry returns an entry with a fresh UUID and accessor.
func NewEntry(namespace, path, kind, description string) *Entry {
	b := make([]byte, 4)
	rand.Read(b)
	prefix := kind
	if strings.HasPrefix(path, AuthPrefix) {
		prefix = "auth_" + kind
	}
	return &Entry{
		Format: 1, UUID: uuid.NewString(), Accessor: prefix + "_" + hex.EncodeToString(b),
		Namespace: namespace, Path: path, Type: kind, Description: description,
	}
}

// defaults are the mounts that every namespace has.
func defaults(namespace string) []*Entry {
	cubbyhole := NewEntry(namespace, "cubbyhole/", "cubbyhole", "per-token private secret storage")
	cubbyhole.Local = true
	return []*Entry{
		NewEntry(namespace, "sys/", "system", "system endpoints used for control, policy and debugging"),
		NewEntry(namespace, "auth/token/", "token", "token based credentials"),
		cubbyhole,
		NewEntry(namespace, "identity/", "identity", "identity store"),
	}
}

// Defaults returns the entries a new namespace begins with.
func Defaults(namespace string) []storage.Put {
	var puts []storage.Put
	for _, e := range defaults(namespace) {
		puts = append(puts, e.put())
	}
	return puts
}

// limits of what an operator can name.
const maxPathBytes = 512

// CleanPath brings a mount path into the stored form: no leading slash, one trailing slash. It reports what
// is wrong with the path in words for the caller.
func CleanPath(path string) (string, error) {
	path = strings.Trim(path, "/")
	if path == "" {
		return "", engines.Invalid("the mount path is empty: name one, such as \"secret\"")
	}
	if len(path) > maxPathBytes {
		return "", engines.Invalid("the mount path is %d bytes long, the limit is %d", len(path), maxPathBytes)
	}
	for _, seg := range strings.Split(path, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return "", engines.Invalid("the mount path has an empty, \".\" or \"..\" segment")
		}
	}
	for _, r := range path {
		if r < ' ' || r == 0x7f || r == '*' || r == '+' {
			return "", engines.Invalid("the mount path has a control character, \"*\" or \"+\"")
		}
	}
	return path + "/", nil
}

// TTLs returns the effective default and maximum lease TTL of a mount.
func (c Config) TTLs(systemDefault, systemMax time.Duration) (def, max time.Duration) {
	max = systemMax
	if c.MaxLeaseTTL > 0 {
		max = time.Duration(c.MaxLeaseTTL) * time.Second
	}
	def = systemDefault
	if c.DefaultLeaseTTL > 0 {
		def = time.Duration(c.DefaultLeaseTTL) * time.Second
	}
	return min(def, max), max
}
