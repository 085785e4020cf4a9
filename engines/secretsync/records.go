package secretsync

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
)

// What is stored, all of class s, so that another cluster that becomes the primary goes on where this one was. Below
// "sys/<namespace id>/sync/":
//
//	d/<type>/<name>                                    a destination
//	a/<destination id>/<association id>                an association
//	l/<destination id>/<association id>/<secret name>  the link of one associated secret
//	n/<destination id>                                 when an association was made last
//
// and in the root namespace, because places do not care for namespaces:
//
//	config                                             the configuration
//	installation                                       the id by which marks begin
//	c/<hash of place>/<hash of name>                   who has claimed a name at a place

// area returns the key prefix of a namespace.
func Area(ns, rest string) storage.Key {
	return storage.NewKey(storage.Shared, "sys", ns+"/sync/"+rest)
}

const RootNS = "root"

func DestinationKey(ns, kind, name string) storage.Key { return Area(ns, "d/"+kind+"/"+name) }

// newestKey is written whenever an association is made. A transaction that wants none to be there, which a scan does not make sure
// of, reads it.
func NewestKey(ns, dest string) storage.Key { return Area(ns, "n/"+dest) }

func AssociationKey(ns, dest, id string) storage.Key { return Area(ns, "a/"+dest+"/"+id) }

func LinkKey(ns, dest, association, secret string) storage.Key {
	return Area(ns, "l/"+dest+"/"+association+"/"+secret)
}

// claimKey is where the claim of a name is. name is folded.
func ClaimKey(kind, place, name string) storage.Key {
	return Area(RootNS, "c/"+Hash(kind, place)+"/"+Hash(name))
}

// short is 32 digits that stand for texts.
func Hash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// destinationRecord is a stored destination.
type Destination struct {
	Format int    `json:"format"`
	ID     string `json:"id"` // a new one with every creation
	NS     string `json:"ns"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	// Config is the destination.Config, field by field, sensitive ones in plain text.
	Config map[string]json.RawMessage `json:"config"`
	Settings
	// PrintKey keys the fingerprints of values, so that nobody can guess at them.
	FingerprintKey []byte    `json:"print_key"`
	Paused         bool      `json:"paused,omitempty"`
	CreatedAt      time.Time `json:"created_at"`
	UpdatedAt      time.Time `json:"updated_at"`
	// PurgeAt is when its purge began; zero: it is not being purged.
	PurgeAt    time.Time `json:"purge_at,omitzero"`
	PurgeError string    `json:"purge_error,omitempty"`
}

func (d *Destination) RecordFormat() *int { return &d.Format }

func (d *Destination) Key() storage.Key { return DestinationKey(d.NS, d.Type, d.Name) }

// print is the fingerprint of a value at the destination: who has it cannot tell the value, nor whether another destination
// has the same one.
func (d *Destination) Fingerprint(value []byte) []byte {
	h := hmac.New(sha256.New, d.FingerprintKey)
	h.Write(value)
	return h.Sum(nil)[:16]
}

// marked returns the mark of a name. Everybody who can look at the destination sees marks: that of one name, copied to another, is
// not the other's.
func (d *Destination) OwnerTag(of, name string, r destination.Rules) string {
	return of + "-" + hex.EncodeToString(d.Fingerprint([]byte("mark\x00" + of + "\x00" + Fold(r, name))))[:14]
}

// settings are what all types of destinations have besides their configuration.
type Settings struct {
	Granularity string            `json:"granularity,omitempty"`
	Template    string            `json:"secret_name_template,omitempty"`
	CustomTags  map[string]string `json:"custom_tags,omitempty"`
	Network
}

// Network is where the connections of a destination may go.
type Network struct {
	DisableStrict bool     `json:"disable_strict_networking,omitempty"`
	IPv4          []string `json:"allowed_ipv4_addresses,omitempty"` // CIDR
	IPv6          []string `json:"allowed_ipv6_addresses,omitempty"`
	Ports         []string `json:"allowed_ports,omitempty"`
}

// The deletion policies of associations.
const (
	DeleteOnRemoval = "delete"
	RetainOnRemoval = "retain"
)

// The drift policies.
const (
	DriftReport = "report"
	DriftRepair = "repair"
	DriftIgnore = "ignore"
)

// associationRecord ties a secret, or all secrets below a prefix, to a destination.
type Association struct {
	Format      int    `json:"format"`
	ID          string `json:"id"`          // of destination, mount and secret: setting it again finds it
	Destination string `json:"destination"` // its id
	Type        string `json:"type"`        // of the destination
	Name        string `json:"name"`        // likewise
	NS          string `json:"ns"`
	MountUUID   string `json:"mount_uuid"`
	Accessor    string `json:"accessor"`
	MountPath   string `json:"mount_path"` // when it was set, for people
	// Secret is the name of the secret, or with Selector the prefix of names, "" for the whole mount.
	Secret   string `json:"secret"`
	Selector bool   `json:"selector,omitempty"`
	// What the destination said when the association was set, unless it says so itself.
	OwnGranularity bool     `json:"own_granularity,omitempty"`
	OwnTemplate    bool     `json:"own_template,omitempty"`
	Granularity    string   `json:"granularity"`
	Template       string   `json:"secret_name_template"`
	ValueFormat    string   `json:"value_format,omitempty"`
	Include        []string `json:"include,omitempty"`
	Exclude        []string `json:"exclude,omitempty"`
	Deletion       string   `json:"deletion"`
	Drift          string   `json:"drift"`
	// Owner is who set it, and must be able to read the secret for as long as it is synced.
	Owner     engines.Principal `json:"owner"`
	Paused    bool              `json:"paused,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
	// Removing says that somebody has removed it: what it has at the destination goes, then the record.
	Removing bool `json:"removing,omitempty"`
	// Retain says that what it has at the destination stays, whatever Deletion says: it is being forgotten.
	Retain bool `json:"retain,omitempty"`
	// Gone says that its mount was disabled: there are no secrets any more.
	Gone bool `json:"gone,omitempty"`
}

func (a *Association) RecordFormat() *int { return &a.Format }

func (a *Association) Key() storage.Key { return AssociationKey(a.NS, a.Destination, a.ID) }

// associationID is the same whenever the same is associated.
func AssociationID(dest, mountUUID, secret string, selector bool) string {
	kind := "secret"
	if selector {
		kind = "selector"
	}
	return Hash(dest, mountUUID, kind, secret)
}

// covers reports whether a secret of the association's mount belongs to it.
func (a *Association) Covers(secret string) bool {
	if a.Selector {
		return strings.HasPrefix(secret, a.Secret)
	}
	return secret == a.Secret
}

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

// intent is a write that was about to be made.
type Intent struct {
	At     time.Time `json:"at"`
	Create bool      `json:"create,omitempty"` // there was nothing
}

// claim is who a name at a place belongs to.
type Claim struct {
	Format      int    `json:"format"`
	NS          string `json:"ns"`
	Destination string `json:"destination"`
	Association string `json:"association"`
	Secret      string `json:"secret"`
	Type        string `json:"type"` // of the destination
	Name        string `json:"name"` // likewise
	Bytes       int    `json:"bytes"`
}

func (c *Claim) RecordFormat() *int { return &c.Format }

func (c *Claim) BelongsTo(d *Destination, a *Association, secret string) bool {
	return c.Destination == d.ID && c.Association == a.ID && c.Secret == secret
}

// newest says when an association was made last.
type Newest struct {
	Format int       `json:"format"`
	At     time.Time `json:"at"`
}

func (n *Newest) RecordFormat() *int { return &n.Format }

// scan calls do with every record below a prefix, in the order of keys, until it returns false.
func Scan[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s storage.Reader, prefix storage.Key, do func(key storage.Key, v P) bool) error {
	return ScanReadable(ctx, s, prefix, do, func(_ storage.Key, err error) error { return err })
}

// scanPast is scan that asks pass what to do about records that cannot be read: nil goes on.
func ScanReadable[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s storage.Reader, prefix storage.Key, do func(key storage.Key, v P) bool, pass func(storage.Key, error) error) error {
	const page = 500
	for after := storage.Key(""); ; {
		entries, err := s.Scan(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			v := P(new(T))
			after = e.Key
			if err := engines.DecodeRecord(e, v); err != nil {
				if err := pass(e.Key, err); err != nil {
					return err
				}
				continue
			}
			if !do(e.Key, v) {
				return nil
			}
		}
		if len(entries) < page {
			return nil
		}
	}
}
