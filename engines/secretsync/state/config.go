package state

import (
	"context"
	"crypto/rand"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Config is the configuration of the whole service.
type Config struct {
	Format        int  `json:"format"`
	Disabled      bool `json:"disabled"`
	QueueCapacity int  `json:"queue_capacity"`
}

func (c *Config) RecordFormat() *int { return &c.Format }

const DefaultQueueCapacity = 1_000_000

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
