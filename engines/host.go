package engines

import (
	"context"
	"encoding/json"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Host is what the server does for secret sync, which answers paths below sys/ and works on what is mounted elsewhere.
// Safe for concurrent use.
type Host interface {
	// Store holds everything, in plain text. The keys of secret sync are "s/sys/<namespace id>/sync/…".
	Store() storage.Store
	// Owner reports whether this cluster writes what is shared, and so syncs.
	Owner() bool
	// FormatsAgreed reports whether every node of this cluster knows what this version stores. Until then, a setting that an earlier
	// version would ignore must not be stored.
	FormatsAgreed() bool
	// MountAt returns the mount whose path (with or without trailing slash) is given, relative to a namespace; nil if there is
	// none.
	MountAt(ctx context.Context, namespaceID, path string) (*Mounted, error)
	// MountOf returns a mount by its UUID, nil if there is none or it is being disabled.
	MountOf(ctx context.Context, uuid string) (*Mounted, error)
	// Namespaces returns the ids of all namespaces, "root" first.
	Namespaces(ctx context.Context) ([]string, error)
	// NamespacePath returns the path of a namespace, "" for root, else ending in "/".
	NamespacePath(id string) string
	// MayRead reports whether a principal could read a path of a namespace by what is stored now: their policies, their entity
	// and its groups. The error is of storage, and says nothing about who may what.
	MayRead(ctx context.Context, who Principal, namespaceID, path string) (bool, error)
	// IdentityToken returns a token by which a provider knows the subject "plugin-identity:<namespace id>:<subject>": see
	// Mount.IdentityToken.
	IdentityToken(ctx context.Context, namespaceID, subject, audience string, ttl time.Duration) (Sensitive, error)
	// Record writes what secret sync did of its own accord to the audit log. If it fails, it must not be done.
	Record(ctx context.Context, e Event) error
}

// Mounted is a mount with its engine.
type Mounted struct {
	Mount
	Engine Engine
}

// Principal is a user or workload whose rights are asked for without a request of theirs. It is stored.
type Principal struct {
	NamespaceID string   `json:"namespace_id"` // of the token
	Policies    []string `json:"policies"`     // of the token alone
	EntityID    string   `json:"entity_id,omitempty"`
	DisplayName string   `json:"display_name,omitempty"`
}

// PrincipalOf returns who asks.
func PrincipalOf(c Caller) Principal {
	return Principal{NamespaceID: c.NamespaceID, Policies: c.TokenPolicies, EntityID: c.EntityID, DisplayName: c.DisplayName}
}

// Event is something that the server did of its own accord.
type Event struct {
	NamespaceID string
	Operation   Operation
	Path        string         // below which the one who wanted it would have asked for it
	Data        map[string]any // no value of a secret
	Who         Principal      // on whose behalf
	Error       string
}

// SecretSource is an Engine whose secrets the server itself may read, for what others have associated with them.
type SecretSource interface {
	// LatestSecret returns what is at a name now.
	LatestSecret(ctx context.Context, m Mount, name string) (Secret, error)
	// SecretNames returns the names of secrets that begin with prefix and come after the given one, in order, at most limit of
	// them. Secrets that are deleted but still have metadata are among them.
	SecretNames(ctx context.Context, m Mount, prefix, after string, limit int) ([]string, error)
	// SecretOf returns the name of the secret that a key of the mount's storage belongs to.
	SecretOf(key storage.Key) (name string, ok bool)
	// ReadPath returns the path, relative to the mount, by whose policies a secret is read.
	ReadPath(name string) string
}

// Secret is the newest version of a secret.
type Secret struct {
	Version   int       // 0: there is none
	CreatedAt time.Time // of the version
	// DeletedAt is when the version was, or will be, deleted. Zero: never.
	DeletedAt time.Time
	Live      bool            // there is a version, and it is neither deleted nor destroyed
	Data      json.RawMessage // a JSON object; nil unless Live
}
