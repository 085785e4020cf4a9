package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Config is the configuration of the whole service.
type Config struct {
	Format        int  `json:"format"`
	Disabled      bool `json:"disabled"`
	QueueCapacity int  `json:"queue_capacity"`
	// DriftInterval is how often destinations are checked for drift; 0: DefaultDriftInterval.
	DriftInterval time.Duration `json:"drift_interval,omitempty"`
	Notifications Notifications `json:"notifications,omitzero"`
}

// Notifications is where failures are reported to.
type Notifications struct {
	URL        string  `json:"url,omitempty"`         // "": nowhere
	SigningKey string  `json:"signing_key,omitempty"` // "": requests are not signed
	Network    Network `json:"network,omitzero"`
}

func (c *Config) RecordFormat() *int { return &c.Format }

// DriftIntervalOrDefault is DriftInterval, or its default.
func (c *Config) DriftIntervalOrDefault() time.Duration {
	return cmp.Or(c.DriftInterval, DefaultDriftInterval)
}

const (
	DefaultQueueCapacity = 1_000_000
	DefaultDriftInterval = time.Hour
)

var ConfigKey = Area(RootNS, "config")

// installation names this installation, which all clusters of a replication set are one of.
type installation struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
}

func (i *installation) RecordFormat() *int { return &i.Format }

var installationKey = Area(RootNS, "installation")

// EnsureInstallation names the installation, once.
func EnsureInstallation(ctx context.Context, tx *storage.Txn) error {
	var i installation
	found, err := engines.GetRecord(ctx, tx, installationKey, &i)
	if found || err != nil {
		return err
	}
	i.ID = Hash(rand.Text())
	return engines.PutRecord(tx, installationKey, &i)
}

// OwnerTagPrefix returns what the ownership tags of an association's names begin with.
func OwnerTagPrefix(ctx context.Context, g engines.Getter, a *Association) (string, error) {
	var i installation
	_, err := engines.GetRecord(ctx, g, installationKey, &i)
	return i.ID + "-" + a.ID, err
}
