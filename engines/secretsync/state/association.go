package state

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/template"
	"github.com/coffer-project/coffer/storage"
)

// The deletion policies of associations.
const (
	DeleteOnRemoval = "delete"
	RetainOnRemoval = "retain"
)

// The drift policies.
const (
	DriftReport   = "report"
	DriftRepair   = "repair"
	DriftConflict = "conflict"
	DriftIgnore   = "ignore"
)

// Association ties a secret, or all secrets below a prefix, to a destination.
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
	// See template.Plan.
	Rename        map[string]string `json:"rename,omitempty"`
	ValueTemplate string            `json:"value_template,omitempty"`
	Deletion      string            `json:"deletion"`
	Drift         string            `json:"drift"`
	// Owner is the principal that created it, which must be able to read the secret for as long as it is synced.
	Owner     engines.Principal `json:"owner"`
	Paused    bool              `json:"paused,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
	// Removing says that it is being removed: its names at the destination are deleted, then the record.
	Removing bool `json:"removing,omitempty"`
	// Retain says that what it has at the destination stays, whatever Deletion says: it is being forgotten.
	Retain bool `json:"retain,omitempty"`
	// Gone says that its mount was disabled: there are no secrets any more.
	Gone bool `json:"gone,omitempty"`
}

func (a *Association) RecordFormat() *int { return &a.Format }

func (a *Association) Key() storage.Key { return AssociationKey(a.NS, a.Destination, a.ID) }

// AssociationID is the same whenever the same is associated.
func AssociationID(dest, mountUUID, secret string, selector bool) string {
	kind := "secret"
	if selector {
		kind = "selector"
	}
	return Hash(dest, mountUUID, kind, secret)
}

// Covers reports whether a secret of the association's mount belongs to it.
func (a *Association) Covers(secret string) bool {
	if a.Selector {
		return strings.HasPrefix(secret, a.Secret)
	}
	return secret == a.Secret
}

// IsEnding reports whether the association is to go.
func (a *Association) IsEnding() bool { return a.Removing || a.Gone }

// RulesHash is a hash of the settings that the names and values of an association depend on.
func (a *Association) RulesHash() string {
	rules := slices.Concat([]string{a.Granularity, a.Template, a.ValueFormat, "include"}, a.Include, []string{"exclude"}, a.Exclude)
	if a.ValueTemplate != "" || len(a.Rename) > 0 {
		values := []string{a.ValueTemplate}
		for _, key := range slices.Sorted(maps.Keys(a.Rename)) {
			values = append(values, key, a.Rename[key])
		}
		rules = append(rules, "values", Hash(values...))
	}
	return Hash(rules...)
}

func (a *Association) Plan(r destination.Rules) *template.Plan {
	return &template.Plan{
		Rules: r, Granularity: a.Granularity, Template: a.Template, Format: a.ValueFormat, Include: a.Include, Exclude: a.Exclude, Rename: a.Rename, ValueTemplate: a.ValueTemplate,
	}
}

// NewerShape names the setting of values that versions before the first generation of stored formats ignore; "": there is none.
func (a *Association) NewerShape() string {
	switch {
	case a.ValueTemplate != "":
		return `field "value_template"`
	case len(a.Rename) > 0:
		return `field "rename"`
	case a.ValueFormat == template.Dotenv:
		return `field "format": "dotenv"`
	}
	return ""
}

// KeepUnset copies the settings of the stored association that a request has not given.
func (a *Association) KeepUnset(had *Association, given func(field string) bool) {
	if !given("granularity") && had.OwnGranularity {
		a.Granularity, a.OwnGranularity = had.Granularity, true
	}
	if !given("secret_name_template") && had.OwnTemplate {
		a.Template, a.OwnTemplate = had.Template, true
	}
	if !given("format") {
		a.ValueFormat = had.ValueFormat
	}
	if !given("include") {
		a.Include = had.Include
	}
	if !given("exclude") {
		a.Exclude = had.Exclude
	}
	if !given("rename") {
		a.Rename = had.Rename
	}
	if !given("value_template") {
		a.ValueTemplate = had.ValueTemplate
	}
	if !given("deletion_policy") {
		a.Deletion = had.Deletion
	}
	if !given("drift_policy") {
		a.Drift = had.Drift
	}
}

// GetAssociation returns a stored association, nil if there is none.
func GetAssociation(ctx context.Context, g engines.Getter, key storage.Key) (*Association, error) {
	a := new(Association)
	if found, err := engines.GetRecord(ctx, g, key, a); !found || err != nil {
		return nil, err
	}
	return a, nil
}

// Newest says when an association was made last.
type Newest struct {
	Format int       `json:"format"`
	At     time.Time `json:"at"`
}

func (n *Newest) RecordFormat() *int { return &n.Format }
