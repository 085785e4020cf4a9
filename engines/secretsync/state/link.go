package state

import (
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Statuses of links and their items: those of the Vault-compatible API, and CONFLICT.
const (
	Unknown       = "UNKNOWN"
	Pending       = "PENDING"
	Synced        = "SYNCED"
	Unsynced      = "UNSYNCED"
	Unsyncing     = "UNSYNCING"
	InternalError = "INTERNAL_VAULT_ERROR"
	ClientError   = "CLIENT_SIDE_ERROR"
	ExternalError = "EXTERNAL_SERVICE_ERROR"
	Conflict      = "CONFLICT"
)

// Outcome is the result of an attempt: a status, a code for programs and a cause for human users.
type Outcome struct {
	Status string `json:"status"`
	Code   string `json:"code,omitempty"`
	Cause  string `json:"cause,omitempty"`
}

// LinkID names a link: one secret of an association.
type LinkID struct{ NS, Destination, Association, Secret string }

// LinkID returns the id of the link of one of the association's secrets.
func (a *Association) LinkID(secret string) LinkID {
	return LinkID{NS: a.NS, Destination: a.Destination, Association: a.ID, Secret: secret}
}

// Link is one secret of an association: what was done for it, and what it owns at the destination.
type Link struct {
	Format int    `json:"format"`
	Secret string `json:"secret"`
	Outcome
	// Version and VersionAt are of the secret at the last attempt, also a failed one; 0: none was live. Items have what was written.
	Version   int       `json:"version"`
	VersionAt time.Time `json:"version_at,omitzero"`
	// Live says that the version was live then: deleting it, or bringing it back, does not make another one.
	Live bool `json:"live,omitempty"`
	// Mount is the path of its mount then: templates may have it in names.
	Mount string `json:"mount,omitempty"`
	// Rules is what the names were made by: another association of the same secret makes it work to do.
	Rules string `json:"rules"`
	Items []Item `json:"items,omitempty"`
	// Adopt has the names whose adoption was requested, folded.
	Adopt []string `json:"adopt,omitempty"`
	// AdoptEqual has those, folded, whose adoption was requested if they have the desired value already.
	AdoptEqual []string `json:"adopt_equal,omitempty"`
	Attempts   int      `json:"attempts,omitempty"` // since it was right
	// RemovalFailures counts the failed attempts to remove its names since its association began to go.
	RemovalFailures int       `json:"removal_failures,omitempty"`
	LastAttempt     time.Time `json:"last_attempt,omitzero"`
	LastSuccess     time.Time `json:"last_success,omitzero"`
	NextRetry       time.Time `json:"next_retry,omitzero"` // zero: nothing is due until something changes
	UpdatedAt       time.Time `json:"updated_at"`          // of the status
	History         []Attempt `json:"history,omitempty"`   // newest last

	Unreadable bool `json:"-"` // the stored record cannot be decoded
}

func (l *Link) RecordFormat() *int { return &l.Format }

// Attempt is one attempt that came to something.
type Attempt struct {
	At      time.Time `json:"at"`
	Version int       `json:"version,omitempty"`
	Done    string    `json:"done"` // such as "created 1, updated 2"
	Outcome
}

const MaxHistory = 20

// Item is one name at the destination.
type Item struct {
	Name string `json:"name"`
	Key  string `json:"key,omitempty"` // of the secret
	Outcome
	// Owned says that secret sync owns the name: it has created or adopted it.
	Owned       bool   `json:"owned,omitempty"`
	ID          string `json:"id,omitempty"`      // destination.Held of our last write
	Version     string `json:"version,omitempty"` // likewise
	Fingerprint []byte `json:"print,omitempty"`   // of the last value written
	// Source is the version of the secret that has this value, the newest one that was seen; 0: nothing of it is known to be there.
	SecretVersion int `json:"source,omitempty"`
	// Tags are the keys of the custom tags that our writes may have set, and Tagged stands for those of the last one with their
	// values.
	Tags            []string `json:"tags,omitempty"`
	TagsFingerprint string   `json:"tagged,omitempty"`
	// Intent is what was about to be done: it is stored before anything is asked for. One that is there still may have been
	// done, or not.
	Intent    *Intent   `json:"intent,omitempty"`
	WrittenAt time.Time `json:"written_at,omitzero"` // by us, the last time
	UpdatedAt time.Time `json:"updated_at"`          // of the status
	// Drift says what a scan has found to differ: "", "changed" or "missing".
	Drift string `json:"drift,omitempty"`
	// Retained says that the name is not desired now and was retained at the destination, and that its claim was released. The rest of
	// the item is kept for when it is desired again: without ownership tags nothing else identifies the owner.
	Retained bool `json:"retained,omitempty"`
}

// IsAdopting reports whether the adoption of a name, folded, was requested and is still to be decided.
func (l *Link) IsAdopting(name string) bool {
	return slices.Contains(l.Adopt, name) || slices.Contains(l.AdoptEqual, name)
}

// Active returns the items that are not retained.
func (l *Link) Active() []Item {
	return slices.DeleteFunc(slices.Clone(l.Items), func(it Item) bool { return it.Retained })
}

// Item returns what a link says of a name, or nil.
func (l *Link) Item(name string, r destination.Rules) *Item {
	for i := range l.Items {
		if Fold(r, l.Items[i].Name) == Fold(r, name) {
			return &l.Items[i]
		}
	}
	return nil
}

// UpToDate reports whether, by what we know, a value is under the name.
func (it *Item) UpToDate(print []byte, tagged string) bool {
	return it.Owned && it.Intent == nil && it.Status == Synced && it.Drift == "" && slices.Equal(it.Fingerprint, print) && it.TagsFingerprint == tagged
}

// Intent is a write that was about to be made.
type Intent struct {
	At     time.Time `json:"at"`
	Create bool      `json:"create,omitempty"` // there was nothing
}

// IsOf reports whether the link was synced as the secret is.
func (l *Link) IsOf(now engines.Secret) bool {
	return now.Version == l.Version && now.CreatedAt.Equal(l.VersionAt) && now.Live == l.Live
}

// IsUnfinished reports whether a write or a deletion was begun whose outcome is unknown.
func (l *Link) IsUnfinished() bool {
	for i := range l.Items {
		if it := &l.Items[i]; !it.Retained && (it.Intent != nil || it.Status == Unsyncing) {
			return true
		}
	}
	return false
}

// WaitsForName reports whether a name of the link belongs to another association.
func (l *Link) WaitsForName() bool {
	return slices.ContainsFunc(l.Items, func(it Item) bool { return it.Code == CodeNameTaken })
}

// IsShared reports whether another association owns all names of the link.
func (l *Link) IsShared() bool {
	all := l.Active()
	return len(all) > 0 && !slices.ContainsFunc(all, func(it Item) bool { return it.Status != Synced || it.Code != CodeNameTaken })
}

// CodeNameTaken is the code of a name that another association has claimed.
const CodeNameTaken = "name_taken"
