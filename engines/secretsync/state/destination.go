package state

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
)

// Destination is a stored destination.
type Destination struct {
	Format int    `json:"format"`
	ID     string `json:"id"` // a new one with every creation
	NS     string `json:"ns"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	// Config is the destination.Config, field by field, sensitive ones in plain text.
	Config map[string]json.RawMessage `json:"config"`
	Settings
	// FingerprintKey keys the fingerprints of values, so that values cannot be guessed from them.
	FingerprintKey []byte `json:"print_key"`
	// CreatedAs is the alias of the type that it was created by; "": its name.
	CreatedAs string    `json:"created_as,omitempty"`
	Paused    bool      `json:"paused,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// PurgeAt is when its purge began; zero: it is not being purged.
	PurgeAt    time.Time `json:"purge_at,omitzero"`
	PurgeError string    `json:"purge_error,omitempty"`

	// NamedType is the name of its type that the request used; "": its own.
	NamedType string `json:"-"`
}

// TypeName returns the name of its type that the response to a request about it has.
func (d *Destination) TypeName() string { return cmp.Or(d.NamedType, d.Type) }

func (d *Destination) RecordFormat() *int { return &d.Format }

func (d *Destination) Key() storage.Key { return DestinationKey(d.NS, d.Type, d.Name) }

// Keys are those of the records that are deleted with a destination, its own first.
func (d *Destination) Keys() []storage.Key {
	return []storage.Key{d.Key(), NewestKey(d.NS, d.ID), DriftCheckKey(d.NS, d.ID), OrphansKey(d.NS, d.Type, d.Name), d.RedeployKey()}
}

// Fingerprint returns the fingerprint of a value at the destination. It discloses neither the value, nor whether another destination has
// the same one.
func (d *Destination) Fingerprint(value []byte) []byte {
	h := hmac.New(sha256.New, d.FingerprintKey)
	h.Write(value)
	return h.Sum(nil)[:16]
}

// OwnerTag returns the ownership tag of a name. Readers of the destination see ownership tags: one that is copied to another name is
// not valid there.
func (d *Destination) OwnerTag(of, name string, r destination.Rules) string {
	return of + "-" + hex.EncodeToString(d.Fingerprint([]byte("mark\x00" + of + "\x00" + Fold(r, name))))[:14]
}

// IsPaused reports whether nothing is to be done at a destination. Purging it goes on although it is paused.
func (d *Destination) IsPaused() bool { return d.Paused && d.PurgeAt.IsZero() }

// Settings are what all types of destinations have besides their configuration.
type Settings struct {
	Granularity string            `json:"granularity,omitempty"`
	Template    string            `json:"secret_name_template,omitempty"`
	CustomTags  map[string]string `json:"custom_tags,omitempty"`
	// RemovalAttempts is after how many failed attempts to remove a secret's names they are let go; 0: never.
	RemovalAttempts int `json:"removal_attempts,omitempty"`
	Network
}

// Network is where the connections of a destination may go.
type Network struct {
	DisableStrict bool     `json:"disable_strict_networking,omitempty"`
	IPv4          []string `json:"allowed_ipv4_addresses,omitempty"` // CIDR
	IPv6          []string `json:"allowed_ipv6_addresses,omitempty"`
	Ports         []string `json:"allowed_ports,omitempty"`
}

// GetDestination reads a destination and the index it was written at; a record with no ID is none.
func GetDestination(ctx context.Context, s engines.Getter, key storage.Key, d *Destination) (storage.Index, error) {
	return Get(ctx, s, key, d)
}

// DriftCheck is the last drift check of a destination.
type DriftCheck struct {
	Format int       `json:"format"`
	At     time.Time `json:"at,omitzero"` // when one was completed; zero: none
	// FailedAt, Code and Cause are of the last one, if that failed.
	FailedAt time.Time `json:"failed_at,omitzero"`
	Code     string    `json:"code,omitempty"`
	Cause    string    `json:"cause,omitempty"`
}

func (c *DriftCheck) RecordFormat() *int { return &c.Format }

// TagsFingerprint returns a hash of tags with their values.
func TagsFingerprint(tags map[string]string) string {
	if len(tags) == 0 {
		return ""
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, key, tags[key])
	}
	return Hash(all...)
}
