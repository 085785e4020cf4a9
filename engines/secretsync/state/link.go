package state

import (
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Statuses of links and their items, as clients of the family know them, and conflict.
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

// outcome is how something ended, for people and programs.
type Outcome struct {
	Status string `json:"status"`
	Code   string `json:"code,omitempty"`
	Cause  string `json:"cause,omitempty"`
}

// jobKey names a link: one secret of an association.
type LinkID struct{ NS, Destination, Association, Secret string }

// LinkID returns the id of the link of one of the association's secrets.
func (a *Association) LinkID(secret string) LinkID {
	return LinkID{NS: a.NS, Destination: a.Destination, Association: a.ID, Secret: secret}
}

// link is one secret of an association: what was done for it, and what it owns at the destination.
type Link struct {
	Format int    `json:"format"`
	Secret string `json:"secret"`
	Outcome
	// Version and VersionAt are of the secret that was tried last, whatever came of it; 0: none was live. What is there is in Items.
	Version   int       `json:"version"`
	VersionAt time.Time `json:"version_at,omitzero"`
	// Live says that the version was live then: deleting it, or bringing it back, does not make another one.
	Live bool `json:"live,omitempty"`
	// Mount is the path of its mount then: templates may have it in names.
	Mount string `json:"mount,omitempty"`
	// Rules is what the names were made by: another association of the same secret makes it work to do.
	Rules string `json:"rules"`
	Items []Item `json:"items,omitempty"`
	// Adopt are names that somebody has told us to take over. They are folded.
	Adopt       []string  `json:"adopt,omitempty"`
	Attempts    int       `json:"attempts,omitempty"` // since it was right
	LastAttempt time.Time `json:"last_attempt,omitzero"`
	LastSuccess time.Time `json:"last_success,omitzero"`
	NextRetry   time.Time `json:"next_retry,omitzero"` // zero: nothing is due until something changes
	UpdatedAt   time.Time `json:"updated_at"`          // of the status
	History     []Attempt `json:"history,omitempty"`   // newest last

	Unreadable bool `json:"-"` // the stored record cannot be decoded
}

func (l *Link) RecordFormat() *int { return &l.Format }

// event is one attempt that came to something.
type Attempt struct {
	At      time.Time `json:"at"`
	Version int       `json:"version,omitempty"`
	Done    string    `json:"done"` // such as "created 1, updated 2"
	Outcome
}

const MaxHistory = 20

// item is one name at the destination.
type Item struct {
	Name string `json:"name"`
	Key  string `json:"key,omitempty"` // of the secret
	Outcome
	// Owned says that what is under the name is ours: we have made it, or were told to take it over.
	Owned       bool   `json:"owned,omitempty"`
	ID          string `json:"id,omitempty"`      // destination.Held of our last write
	Version     string `json:"version,omitempty"` // likewise
	Fingerprint []byte `json:"print,omitempty"`   // of the value of our last write
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
	// Retained says that the name is not wanted now and was left as it was, whatever becomes of it there; the claim was given up. What
	// else the ledger says of it is kept for when it is wanted again: places without marks have nothing else to tell whose it is.
	Retained bool `json:"retained,omitempty"`
}

// active returns what is, or was, to be synced.
func (l *Link) Active() []Item {
	return slices.DeleteFunc(slices.Clone(l.Items), func(it Item) bool { return it.Retained })
}

// item returns what a link says of a name, or nil.
func (l *Link) Item(name string, r destination.Rules) *Item {
	for i := range l.Items {
		if Fold(r, l.Items[i].Name) == Fold(r, name) {
			return &l.Items[i]
		}
	}
	return nil
}

// stands reports whether, by what we know, a value is under the name.
func (it *Item) UpToDate(print []byte, tagged string) bool {
	return it.Owned && it.Intent == nil && it.Status == Synced && it.Drift == "" && slices.Equal(it.Fingerprint, print) && it.TagsFingerprint == tagged
}

// intent is a write that was about to be made.
type Intent struct {
	At     time.Time `json:"at"`
	Create bool      `json:"create,omitempty"` // there was nothing
}

// of reports whether the link was synced as the secret is.
func (l *Link) IsOf(now engines.Secret) bool {
	return now.Version == l.Version && now.CreatedAt.Equal(l.VersionAt) && now.Live == l.Live
}

// unfinished reports whether something was begun of which nobody knows how it ended.
func (l *Link) IsUnfinished() bool {
	for i := range l.Items {
		if it := &l.Items[i]; !it.Retained && (it.Intent != nil || it.Status == Unsyncing) {
			return true
		}
	}
	return false
}

// waitsForName reports whether a name of the link belongs to another association.
func (l *Link) WaitsForName() bool {
	return slices.ContainsFunc(l.Items, func(it Item) bool { return it.Code == CodeNameTaken })
}

// shared reports whether another association looks after all names of the link.
func (l *Link) IsShared() bool {
	all := l.Active()
	return len(all) > 0 && !slices.ContainsFunc(all, func(it Item) bool { return it.Status != Synced || it.Code != CodeNameTaken })
}

// CodeNameTaken is the code of a name that another association has claimed.
const CodeNameTaken = "name_taken"
