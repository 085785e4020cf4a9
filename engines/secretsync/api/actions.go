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

type adoptIn struct {
	secretIn
	Names engines.StringList `json:"external_names" max:"1000" help:"Names at the destination to adopt; without any, all that the secret is in conflict with."`
}

// adopt requests the adoption of names that belong to other clients.
func (s *API) adopt(ctx context.Context, req *engines.Request, in *adoptIn) (*engines.Response, error) {
	c, err := s.resolveSelection(ctx, req, &in.secretIn)
	if err != nil {
		return nil, err
	}
	if c.selector {
		return nil, engines.Invalid(`field "secret_name" is required: names are adopted secret by secret`)
	}
	if err := s.checkReadable(ctx, req, c); err != nil {
		return nil, err
	}
	l, err := s.linkedSecretOf(ctx, c)
	if err != nil {
		return nil, err
	}
	rules := s.Pool.Types[c.dest.Type].Rules
	_, err = storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		key := state.LinkKey(c.dest.NS, c.dest.ID, l.assoc.ID, c.secret)
		var now state.Link
		found, err := engines.GetRecord(ctx, tx, key, &now)
		switch {
		case err != nil:
			return err
		case !found:
			return engines.NotFound("nothing was done for the secret yet")
		}
		if now.Adopt = conflicts(&now, in.Names, func(name string) string { return state.Fold(rules, name) }); len(now.Adopt) == 0 {
			return engines.Invalid("no such name of the secret is in conflict with a name of another client at the destination: there is nothing to adopt")
		}
		return engines.PutRecord(tx, key, &now)
	})
	if err != nil {
		return nil, err
	}
	s.SyncAndWait(ctx, l.linkID())
	return s.RespondSecret(ctx, l.dest, l.assoc, l.mount, l.secret)
}

// conflicts returns the names of a link, folded, that are in conflict with names of other clients: of those that are given, or all.
// Names of other associations cannot be adopted.
func conflicts(l *state.Link, given []string, fold func(string) string) (names []string) {
	wanted := map[string]bool{}
	for _, name := range given {
		wanted[fold(name)] = true
	}
	for i := range l.Items {
		it := &l.Items[i]
		if name := fold(it.Name); it.Status == state.Conflict && it.Code != state.CodeNameTaken && (len(given) == 0 || wanted[name]) {
			names = append(names, name)
		}
	}
	return names
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
			warnings, wait := s.tryCircuit(c.dest)
			if wait.IsZero() {
				s.SyncAndWait(ctx, l.linkID())
			} else {
				s.Queue.Push(l.linkID(), wait, true, nil)
			}
			resp, err := s.RespondSecret(ctx, l.dest, l.assoc, l.mount, l.secret)
			if err == nil {
				resp.Warnings = append(resp.Warnings, warnings...)
			}
			return resp, err
		}
		only = l.assoc.ID
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
	var found []reconcile.DriftFinding
	var n int
	if req.Caller.Mounts == nil {
		found, n, err = s.CheckDrift(ctx, d)
	} else {
		found, n, err = s.ScanDrift(ctx, d, req.Caller.Sees)
	}
	if err != nil {
		return nil, invalid(err)
	}
	return &engines.Response{Data: map[string]any{"drifted": found, "names": n}}, nil
}
