package api

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// linkedSecret is a secret with the association that it is synced by.
type linkedSecret struct {
	*selection
	assoc *state.Association
	link  *state.Link // nil if nothing was begun
}

func (l *linkedSecret) linkID() state.LinkID {
	return l.assoc.LinkID(l.secret)
}

// linkedSecretOf finds the association that a request is about. For a secret that is not associated by itself it is the one with a prefix
// that covers it, and of several the one that has begun with it, then the one with the longest prefix.
func (s *API) linkedSecretOf(ctx context.Context, c *selection) (*linkedSecret, error) {
	own, err := state.GetAssociation(ctx, s.Host.Store(), c.key())
	if err != nil {
		return nil, err
	}
	if c.selector {
		if own == nil {
			return nil, engines.NotFound("there is no association with this secret_prefix")
		}
		return &linkedSecret{selection: c, assoc: own}, nil
	}
	all := []*state.Association{own}
	if own == nil {
		if all, err = s.SelectorsOf(ctx, c.dest, c.mount.UUID, c.secret); err != nil {
			return nil, err
		}
	}
	var found *linkedSecret
	for _, a := range all {
		l := new(state.Link)
		ok, err := engines.GetRecord(ctx, s.Host.Store(), state.LinkKey(a.NS, a.Destination, a.ID, c.secret), l)
		switch {
		case err != nil:
			return nil, err
		case ok:
			return &linkedSecret{c, a, l}, nil
		case found == nil:
			found = &linkedSecret{selection: c, assoc: a}
		}
	}
	if found == nil {
		return nil, engines.NotFound("the secret is not associated with the destination")
	}
	return found, nil
}

// retry syncs again what has failed: at a destination, or of one association with a prefix. With a secret it syncs that, whatever its
// state, and waits for it.
func (s *API) retry(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
	only := ""
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.resolveSelection(ctx, req, in)
		if err != nil {
			return nil, err
		}
		l, err := s.linkedSecretOf(ctx, c)
		if err != nil {
			return nil, err
		}
		if !c.selector {
			s.SyncAndWait(ctx, l.linkID())
			return s.RespondSecret(ctx, l.dest, l.assoc, l.mount, l.secret)
		}
		only = l.assoc.ID
	}
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	n := 0
	err = s.EachLink(ctx, d, func(a *state.Association, l *state.Link) {
		if l.Attempts > 0 && (only == "" || a.ID == only) && req.Caller.Sees(a.MountUUID) {
			n++
			s.Queue.Push(a.LinkID(l.Secret), time.Time{}, true, nil)
		}
	})
	return &engines.Response{Data: map[string]any{"queued": n}}, err
}

func (s *API) setAssociationPaused(pause bool) engines.Handler[secretIn] {
	return func(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
		c, err := s.resolveSelection(ctx, req, in)
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
		return s.RespondAssociations(ctx, c.dest, a)
	}
}

// history answers the last attempts of a secret.
func (s *API) history(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
	c, err := s.resolveSelection(ctx, req, in)
	if err != nil {
		return nil, err
	}
	if c.selector {
		return nil, engines.Invalid(`field "secret_name" is required: each secret has a history of its own`)
	}
	l, err := s.linkedSecretOf(ctx, c)
	if err != nil {
		return nil, err
	}
	events := []map[string]any{}
	if l.link != nil {
		for _, e := range l.link.History {
			events = append(events, map[string]any{"at": e.At, "version": e.Version, "done": e.Done, "sync_status": e.Status, "code": e.Code, "cause": e.Cause})
		}
	}
	return &engines.Response{Data: map[string]any{"events": events}}, nil
}

// driftNow scans a destination and answers what differs.
func (s *API) driftNow(ctx context.Context, req *engines.Request, in *associationsIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	found, n, err := s.ScanDrift(ctx, d, req.Caller.Sees)
	if err != nil {
		return nil, invalid(err)
	}
	return &engines.Response{Data: map[string]any{"drifted": found, "names": n}}, nil
}
