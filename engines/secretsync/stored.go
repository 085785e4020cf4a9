package secretsync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// getDestination reads a destination and the index it was written at; a record with no ID is none.
func getDestination(ctx context.Context, s engines.Getter, key storage.Key, d *destinationRecord) (storage.Index, error) {
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
type configRecord struct {
	Format        int  `json:"format"`
	Disabled      bool `json:"disabled"`
	QueueCapacity int  `json:"queue_capacity"`
}

func (c *configRecord) RecordFormat() *int { return &c.Format }

const defaultQueueCapacity = 1_000_000

var configKey = area(rootNS, "config")

func (s *Service) config(ctx context.Context) (configRecord, error) {
	c := configRecord{QueueCapacity: defaultQueueCapacity}
	_, err := engines.GetRecord(ctx, s.host.Store(), configKey, &c)
	return c, err
}

// installationRecord names this installation, which all clusters of a replication set are one of.
type installationRecord struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
}

func (i *installationRecord) RecordFormat() *int { return &i.Format }

var installationKey = area(rootNS, "installation")

// ensureInstallation names the installation, once.
func ensureInstallation(ctx context.Context, tx *storage.Txn) error {
	var i installationRecord
	found, err := engines.GetRecord(ctx, tx, installationKey, &i)
	if found || err != nil {
		return err
	}
	i.ID = short(rand.Text())
	return engines.PutRecord(tx, installationKey, &i)
}

// markOf is what the marks of everything that an association owns begin with.
func (s *Service) markOf(ctx context.Context, a *associationRecord) (string, error) {
	var i installationRecord
	_, err := engines.GetRecord(ctx, s.host.Store(), installationKey, &i)
	return i.ID + "-" + a.ID, err
}

// errAlien says that a destination is of a later version: of a type, or with fields, that this one does not know. It is left alone, and
// tried again when everything is looked through.
var errAlien = errors.New("this version does not know such destinations")

// configOf returns the configuration of a destination.
func (s *Service) configOf(d *destinationRecord) (destination.Config, error) {
	kind, ok := s.types[d.Type]
	if !ok {
		return nil, fmt.Errorf("%w: the type is %s", errAlien, d.Type)
	}
	c := kind.New()
	if err := decodeConfig(d.Config, c); err != nil {
		return nil, fmt.Errorf("%w: %w", errAlien, err)
	}
	return c, nil
}

// place is where the names of a destination live, as its vendor knows it. How the operator has the vendor reached is no part of it: all
// destinations of a type are reached in the same way, so that it tells no two places apart, and claims outlive a new address. If the
// address is one of another installation with places of the same names, claims keep names from one secret for the other's sake, and
// nothing is written over: what is there decides whose it is, as ever.
func (s *Service) place(d *destinationRecord) (string, error) {
	c, err := s.configOf(d)
	if err != nil {
		return "", err
	}
	return c.Place(), nil
}

// open returns the destination of a target, within its budget.
func (s *Service) open(t *target) (*workqueue.RateLimited, error) {
	return s.clients.get(&t.dest, t.version, func() (destination.Destination, destination.Rate, error) {
		d, err := s.openNew(&t.dest)
		return d, s.budget(t.kind), err
	})
}

// budget is how much may be asked of a destination: what its type says, unless the operator has another agreement with the
// vendor. A second's worth may always come at once.
func (s *Service) budget(kind destination.Type) destination.Rate {
	r, end := kind.Rules.Rate, s.opts.Operator.Endpoints[kind.Name]
	if w := end.WritesPerSecond; w > 0 {
		r.Writes, r.WriteBurst = w, max(r.WriteBurst, int(w))
	}
	if n := end.ReadsPerSecond; n > 0 {
		r.Reads, r.ReadBurst = n, max(r.ReadBurst, int(n))
	}
	return r
}

// keptFromEnvironment returns why a destination may not be without credentials of its own, "" if it may, or is not.
func (s *Service) keptFromEnvironment(ns string, c destination.Config) string {
	use := s.opts.Operator.EnvironmentCredentials
	if len(standingOf(c).credentials) > 0 || use == "" || use == EnvironmentAll || use == EnvironmentRoot && ns == rootNS {
		return ""
	}
	return fmt.Sprintf("the destination has no credentials: give it some of its own, since those of the server's environment are not for it (environment_credentials is %q in the server's configuration)", use)
}

// openNew opens the destination of a record.
func (s *Service) openNew(d *destinationRecord) (destination.Destination, error) {
	c, err := s.configOf(d)
	if err != nil {
		return nil, err
	}
	if problem := s.keptFromEnvironment(d.NS, c); problem != "" {
		return nil, &destination.Error{Class: destination.Client, Code: destination.Denied, Text: problem}
	}
	env, err := s.env(d)
	if err != nil {
		return nil, err
	}
	return s.types[d.Type].Open(c, env)
}

// counts are what metrics tell.
type counts struct {
	written, deleted, failed, conflicts, drifted atomic.Int64
}

// event is the record of the trail for what is about to be done.
func (t *target) event(steps []step) engines.Event {
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
