package connection

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Known is the stored record of a destination, with what follows from it. Do not modify.
type Known struct {
	state.Destination
	Version  storage.Index // of the record
	Config   destination.Config
	Location string
	Rules    destination.Rules // of its type
	// AppliedFingerprint is Pool.AppliedFingerprint.
	AppliedFingerprint string
}

// Known reads a destination; nil: there is none. A record is decoded once, as each of its many links needs it.
func (p *Pool) Known(ctx context.Context, g engines.Getter, key storage.Key) (*Known, error) {
	e, err := g.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	k := p.known[key]
	p.mu.Unlock()
	if k != nil && k.Version == e.Version {
		return k, nil
	}
	k = &Known{Version: e.Version}
	if err := engines.DecodeRecord(e, &k.Destination); err != nil {
		return nil, err
	}
	if k.Config, err = p.ConfigOf(&k.Destination); err != nil {
		return nil, err
	}
	k.Location, k.Rules, k.AppliedFingerprint = k.Config.Location(), p.Types[k.Type].Rules, p.AppliedFingerprint(&k.Destination)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known, p.links = map[storage.Key]*Known{}, map[string]int{}
	}
	if old := p.known[key]; old != nil {
		delete(p.links, old.ID)
	}
	p.known[key], p.links[k.ID] = k, workqueue.LinksAtOnce(p.RateOf(&k.Destination))
	return k, nil
}

// LinksAtOnce returns how many links of a destination, by its id, to sync at once; 0 if it is not known yet.
func (p *Pool) LinksAtOnce(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links[id]
}
