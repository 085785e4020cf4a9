package secretsync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
)

// getDestination reads a destination and the index it was written at; a record with no ID is none.
func GetDestination(ctx context.Context, s engines.Getter, key storage.Key, d *Destination) (storage.Index, error) {
	e, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return e.Version, engines.DecodeRecord(e, d)
}

// configRecord is the configuration of the whole service.
type Config struct {
	Format        int  `json:"format"`
	Disabled      bool `json:"disabled"`
	QueueCapacity int  `json:"queue_capacity"`
}

func (c *Config) RecordFormat() *int { return &c.Format }

const DefaultQueueCapacity = 1_000_000

var ConfigKey = Area(RootNS, "config")

func (s *Syncer) config(ctx context.Context) (Config, error) {
	c := Config{QueueCapacity: DefaultQueueCapacity}
	_, err := engines.GetRecord(ctx, s.host.Store(), ConfigKey, &c)
	return c, err
}

// installationRecord names this installation, which all clusters of a replication set are one of.
type installation struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
}

func (i *installation) RecordFormat() *int { return &i.Format }

var installationKey = Area(RootNS, "installation")

// ensureInstallation names the installation, once.
func EnsureInstallation(ctx context.Context, tx *storage.Txn) error {
	var i installation
	found, err := engines.GetRecord(ctx, tx, installationKey, &i)
	if found || err != nil {
		return err
	}
	i.ID = Hash(rand.Text())
	return engines.PutRecord(tx, installationKey, &i)
}

// markOf is what the marks of everything that an association owns begin with.
func (s *Syncer) ownerTagOf(ctx context.Context, a *Association) (string, error) {
	var i installation
	_, err := engines.GetRecord(ctx, s.host.Store(), installationKey, &i)
	return i.ID + "-" + a.ID, err
}

// errAlien says that a destination is of a later version: of a type, or with fields, that this one does not know. It is left alone, and
// tried again when everything is looked through.
var ErrUnknownType = errors.New("this version does not know such destinations")

// configOf returns the configuration of a destination.
func (p *Pool) ConfigOf(d *Destination) (destination.Config, error) {
	kind, ok := p.Types[d.Type]
	if !ok {
		return nil, fmt.Errorf("%w: the type is %s", ErrUnknownType, d.Type)
	}
	c := kind.New()
	if err := decodeConfig(d.Config, c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownType, err)
	}
	return c, nil
}

// place is where the names of a destination live, as its vendor knows it. How the operator has the vendor reached is no part of it: all
// destinations of a type are reached in the same way, so that it tells no two places apart, and claims outlive a new address. If the
// address is one of another installation with places of the same names, claims keep names from one secret for the other's sake, and
// nothing is written over: what is there decides whose it is, as ever.
func (p *Pool) Location(d *Destination) (string, error) {
	c, err := p.ConfigOf(d)
	if err != nil {
		return "", err
	}
	return c.Place(), nil
}

// budget is how much may be asked of a destination: what its type says, unless the operator has another agreement with the
// vendor. A second's worth may always come at once.
func (p *Pool) rateOf(kind destination.Type) destination.Rate {
	r, end := kind.Rules.Rate, p.opts.Operator.Endpoints[kind.Name]
	if w := end.WritesPerSecond; w > 0 {
		r.Writes, r.WriteBurst = w, max(r.WriteBurst, int(w))
	}
	if n := end.ReadsPerSecond; n > 0 {
		r.Reads, r.ReadBurst = n, max(r.ReadBurst, int(n))
	}
	return r
}

// keptFromEnvironment returns why a destination may not be without credentials of its own, "" if it may, or is not.
func (p *Pool) RejectEnvironment(ns string, c destination.Config) string {
	use := p.opts.Operator.EnvironmentCredentials
	if len(identityOf(c).credentials) > 0 || use == "" || use == EnvironmentAll || use == EnvironmentRoot && ns == RootNS {
		return ""
	}
	return fmt.Sprintf("the destination has no credentials: give it some of its own, since those of the server's environment are not for it (environment_credentials is %q in the server's configuration)", use)
}

// openNew opens the destination of a record.
func (p *Pool) Open(d *Destination) (destination.Destination, error) {
	c, err := p.ConfigOf(d)
	if err != nil {
		return nil, err
	}
	if problem := p.RejectEnvironment(d.NS, c); problem != "" {
		return nil, &destination.Error{Class: destination.Client, Code: destination.Denied, Text: problem}
	}
	env, err := p.environmentOf(d)
	if err != nil {
		return nil, err
	}
	return p.Types[d.Type].Open(c, env)
}

// counts are what metrics tell.
type counts struct {
	written, deleted, failed, conflicts, drifted atomic.Int64
}

// event is the record of the trail for what is about to be done.
func (t *target) auditEvent(steps []step) engines.Event {
	var done []string
	for i := range steps {
		if st := &steps[i]; st.writes() || st.Do == actDelete {
			done = append(done, st.Do+" "+st.Name)
		}
	}
	return engines.Event{
		NamespaceID: t.key.NS, Operation: engines.Update, Who: t.assoc.Owner,
		Path: "sys/sync/destinations/" + t.dest.Type + "/" + t.dest.Name + "/associations/sync",
		Data: map[string]any{"mount": t.assoc.MountPath, "secret_name": t.key.Secret, "version": t.secret.Version, "external": done},
	}
}
