package state

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Orphans are the names that secret sync has let go at a destination: they could not be removed in as many attempts as the destination
// allows, or another client has changed them and the association has ended. They are kept until the destination is deleted.
type Orphans struct {
	Format int      `json:"format"`
	Total  int      `json:"total"`
	Names  []Orphan `json:"names"` // the newest MaxOrphans, newest last
}

// Orphan is a name that was let go.
type Orphan struct {
	Name   string    `json:"external_name"`
	Mount  string    `json:"mount"`
	Secret string    `json:"secret_name"`
	At     time.Time `json:"at"`
	// Changed says that another client has changed the name since secret sync wrote it.
	Changed bool `json:"changed,omitempty"`
}

// MaxOrphans bounds lists of names that stay at a destination.
const MaxOrphans = 1000

func (o *Orphans) RecordFormat() *int { return &o.Format }

// OrphansKey is where the orphans of a destination are.
func OrphansKey(ns, kind, name string) storage.Key { return Area(ns, "o/"+kind+"/"+name) }

// Add appends names. The list stays bounded.
func (o *Orphans) Add(names ...Orphan) {
	o.Total += len(names)
	o.Names = append(o.Names, names...)
	o.Names = o.Names[max(0, len(o.Names)-MaxOrphans):]
}

// Orphans returns the names of a link that are at the destination, or may be.
func (l *Link) Orphans(mount string, at time.Time) (left []Orphan) {
	for i := range l.Items {
		if it := &l.Items[i]; it.Owned || it.Intent != nil {
			left = append(left, Orphan{Name: it.Name, Mount: mount, Secret: l.Secret, At: at})
		}
	}
	return left
}

// Describe returns the orphans as clients read them.
func (o *Orphans) Describe() map[string]any {
	return map[string]any{"total": o.Total, "names": o.Names}
}

// AddOrphans adds names to the orphans of a destination.
func AddOrphans(ctx context.Context, tx *storage.Txn, d *Destination, left []Orphan) error {
	if len(left) == 0 {
		return nil
	}
	key := OrphansKey(d.NS, d.Type, d.Name)
	var o Orphans
	if _, err := engines.GetRecord(ctx, tx, key, &o); err != nil {
		return err
	}
	o.Add(left...)
	return engines.PutRecord(tx, key, &o)
}
