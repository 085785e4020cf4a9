package api

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// LinkedSecret is a secret with the association that it is synced by.
type LinkedSecret struct {
	*Selection
	Assoc *state.Association
	Link  *state.Link // nil if nothing was begun
}

// LinkID returns the id that the secret has in the queue.
func (l *LinkedSecret) LinkID() state.LinkID {
	return l.Assoc.LinkID(l.Secret)
}

// LinkedSecretOf finds the association that a request is about. For a secret that is not associated by itself it is the one with a prefix
// that covers it, and of several the one that has begun with it, then the one with the longest prefix.
func (s *API) LinkedSecretOf(ctx context.Context, c *Selection) (*LinkedSecret, error) {
	own, err := state.GetAssociation(ctx, s.Host.Store(), c.key())
	if err != nil {
		return nil, err
	}
	if c.selector {
		if own == nil {
			return nil, engines.NotFound("there is no association with this secret_prefix")
		}
		return &LinkedSecret{Selection: c, Assoc: own}, nil
	}
	all := []*state.Association{own}
	if own == nil {
		if all, err = s.SelectorsOf(ctx, c.Dest, c.Mount.UUID, c.Secret); err != nil {
			return nil, err
		}
	}
	var found *LinkedSecret
	for _, a := range all {
		l := new(state.Link)
		ok, err := engines.GetRecord(ctx, s.Host.Store(), state.LinkKey(a.NS, a.Destination, a.ID, c.Secret), l)
		switch {
		case err != nil:
			return nil, err
		case ok:
			return &LinkedSecret{c, a, l}, nil
		case found == nil:
			found = &LinkedSecret{Selection: c, Assoc: a}
		}
	}
	if found == nil {
		return nil, engines.NotFound("the secret is not associated with the destination")
	}
	return found, nil
}

// retry syncs again what has failed: at a destination, or of one association with a prefix. With a secret it syncs that, whatever its
// state, and waits for it.
func (s *API) retry(ctx context.Context, req *engines.Request, in *SecretIn) (*engines.Response, error) {
	only := ""
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.ResolveSelection(ctx, req, in)
		if err != nil {
			return nil, err
		}
		l, err := s.LinkedSecretOf(ctx, c)
		if err != nil {
			return nil, err
		}
		if !c.selector {
			warnings, wait := s.tryCircuit(c.Dest)
			if wait.IsZero() {
				s.SyncAndWait(ctx, l.LinkID())
			} else {
				s.Queue.Push(l.LinkID(), wait, true, nil)
			}
			resp, err := s.RespondSecret(ctx, l.Dest, l.Assoc, l.Mount, l.Secret)
			if err == nil {
				resp.Warnings = append(resp.Warnings, warnings...)
			}
			return resp, err
		}
		only = l.Assoc.ID
	}
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	warnings, wait := s.tryCircuit(d)
	n := 0
	err = s.EachLink(ctx, d, func(a *state.Association, l *state.Link) {
		drifted := l.HasDrifted() && a.Drift != state.DriftIgnore
		if (l.Attempts > 0 || drifted) && (only == "" || a.ID == only) && req.Caller.Sees(a.MountUUID) {
			n++
			s.Queue.Push(a.LinkID(l.Secret), wait, true, nil)
		}
	})
	return &engines.Response{Data: map[string]any{"queued": n}, Warnings: warnings}, err
}

// tryCircuit has an open circuit of a destination tried with the next call, unless the destination itself has asked to wait: then it
// returns until when. The warnings say which.
func (s *API) tryCircuit(d *state.Destination) (warnings []string, wait time.Time) {
	switch c := s.Pool.HalfOpen(d.ID); {
	case !c.Open:
		return nil, time.Time{}
	case c.Asked && c.Until.After(time.Now()):
		text := fmt.Sprintf("the destination has asked to wait (%s): it is tried again at %s, and not before", c.Cause.Text, workqueue.Clock(c.Until))
		return []string{text}, c.Until
	default:
		text := fmt.Sprintf("calls to the destination had failed (%s): it is tried once now, and if that fails, again after a while", c.Cause.Text)
		return []string{text}, time.Time{}
	}
}

func (s *API) setAssociationPaused(pause bool) engines.Handler[SecretIn] {
	return func(ctx context.Context, req *engines.Request, in *SecretIn) (*engines.Response, error) {
		c, err := s.ResolveSelection(ctx, req, in)
		if err != nil {
			return nil, err
		}
		var a *state.Association
		_, err = storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
			switch a, err = state.GetAssociation(ctx, tx, c.key()); {
			case err != nil:
				return err
			case a == nil:
				return engines.NotFound("there is no such association: one that was set with secret_prefix is paused with the same")
			case a.IsEnding():
				return engines.Invalid("the association is being removed")
			}
			a.Paused, a.UpdatedAt = pause, time.Now().UTC()
			return engines.PutRecord(tx, a.Key(), a)
		})
		if err != nil {
			return nil, err
		}
		return s.RespondAssociations(ctx, c.Dest, a)
	}
}

// history answers the last attempts of a secret.
func (s *API) history(ctx context.Context, req *engines.Request, in *SecretIn) (*engines.Response, error) {
	c, err := s.ResolveSelection(ctx, req, in)
	if err != nil {
		return nil, err
	}
	if c.selector {
		return nil, engines.Invalid(`field "secret_name" is required: each secret has a history of its own`)
	}
	l, err := s.LinkedSecretOf(ctx, c)
	if err != nil {
		return nil, err
	}
	events := []map[string]any{}
	if l.Link != nil {
		for _, e := range l.Link.History {
			events = append(events, map[string]any{"at": e.At, "version": e.Version, "done": e.Done, "sync_status": e.Status, "code": e.Code, "cause": e.Cause})
		}
	}
	return &engines.Response{Data: map[string]any{"events": events}}, nil
}

// driftNow scans a destination and answers what differs.
func (s *API) driftNow(ctx context.Context, req *engines.Request, in *AssociationsIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	var found []reconcile.DriftFinding
	var n int
	if req.Caller.Mounts == nil {
		found, n, err = s.CheckDrift(ctx, d)
	} else {
		found, n, err = s.ScanDrift(ctx, d, req.Caller.Sees)
	}
	if err != nil {
		return nil, Upstream(err)
	}
	return &engines.Response{Data: map[string]any{"drifted": found, "names": n}}, nil
}
