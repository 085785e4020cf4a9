package state

import (
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
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
	// PastWrites are the writes of names that were deleted since, folded: the destination may count them when they come back.
	PastWrites map[string]*Writes `json:"past_writes,omitempty"`
	// UnsyncedSince is when the oldest change was that is not at the destination, while the last attempt has failed.
	UnsyncedSince time.Time `json:"unsynced_since,omitzero"`

	Unreadable bool          `json:"-"` // the stored record cannot be decoded
	StoredAt   storage.Index `json:"-"` // of the record, if a scan has read it
}

func (l *Link) setStoredAt(at storage.Index) { l.StoredAt = at }

func (l *Link) RecordFormat() *int { return &l.Format }

// The code and the cause of what needs a record that cannot be decoded.
const (
	CodeUnreadable  = "unreadable"
	UnreadableCause = "a record of secret sync that this needs cannot be read: it was written by a newer version of the server, or is damaged. Nothing is changed; the log names the record"
)

// UnreadableLink stands for a link that cannot be decoded.
func UnreadableLink(secret string) *Link {
	return &Link{Secret: secret, Unreadable: true, Outcome: Outcome{Status: InternalError, Code: CodeUnreadable, Cause: UnreadableCause}}
}

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
	Writes    *Writes   `json:"writes,omitempty"`    // by us, where the destination limits them; those that are about to be made, too
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
	return it.Status == Synced && it.HasValue(print, tagged)
}

// HasValue reports whether a value was written under the name, and no other write, or change of another client, is known since.
func (it *Item) HasValue(print []byte, tagged string) bool {
	return it.Owned && it.Intent == nil && it.Drift == "" && slices.Equal(it.Fingerprint, print) && it.TagsFingerprint == tagged
}

// IsRateLimited reports whether the name waits for its next write.
func (it *Item) IsRateLimited() bool { return it.Status == Pending && it.Code == CodeRateLimited }

// Intent is a write that was about to be made.
type Intent struct {
	At     time.Time `json:"at"`
	Create bool      `json:"create,omitempty"` // there was nothing
	// Fingerprints are those of the values that writes with unknown outcome may have put there, newest last.
	Fingerprints [][]byte `json:"prints,omitempty"`
	Overwrites   bool     `json:"overwrites,omitempty"` // a change of another client
}

// IsOf reports whether the write with a fingerprint is the last one of the intent; nil has none.
func (in *Intent) IsOf(print []byte) bool {
	return in != nil && len(in.Fingerprints) > 0 && slices.Equal(in.Fingerprints[len(in.Fingerprints)-1], print)
}

// With returns the fingerprints of the intent, which may be nil, with that of another write. The oldest go.
func (in *Intent) With(print []byte) [][]byte {
	const most = 8
	switch {
	case in == nil:
		return [][]byte{print}
	case in.IsOf(print):
		return in.Fingerprints
	}
	all := append(slices.Clone(in.Fingerprints), print)
	return all[max(0, len(all)-most):]
}

// MayHaveWritten reports whether the write of the intent, or one before it, may have written the value with a fingerprint. Intents of
// earlier versions of the server have no fingerprints.
func (in *Intent) MayHaveWritten(print []byte) bool {
	return len(in.Fingerprints) == 0 || slices.ContainsFunc(in.Fingerprints, func(p []byte) bool { return slices.Equal(p, print) })
}

// IsOf reports whether the link was synced as the secret is.
func (l *Link) IsOf(now engines.Secret) bool {
	return now.Version == l.Version && now.CreatedAt.Equal(l.VersionAt) && now.Live == l.Live
}

// IsInSync reports whether the last attempt has succeeded.
func (l *Link) IsInSync() bool { return l.Status == Synced || l.Status == Unsynced }

// HasDrifted reports whether a check has found a name changed or missing.
func (l *Link) HasDrifted() bool {
	return slices.ContainsFunc(l.Items, func(it Item) bool { return it.Drift != "" && !it.Retained })
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

// CodeRateLimited is the code of a name whose next write is later: see destination.Rules.WritesPerDay.
const CodeRateLimited = "rate_limited"
