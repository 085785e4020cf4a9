package secretsync

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

func (s *Service) stateRoutes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}"
	engines.On(r, engines.Update, of+"/plan", "What syncing would do now, name by name; with a secret, also what associating it would do. Nothing is changed.", flags, s.planDestination)
	engines.On(r, engines.Update, of+"/associations/adopt", "Take over names at the destination that belong to somebody else.", flags, s.adopt)
	engines.On(r, engines.Update, of+"/associations/retry", "Sync again now what has failed, or one secret whatever its state.", flags, s.retry)
	engines.On(r, engines.Update, of+"/associations/pause", "Stop syncing an association.", flags, s.associationPauser(true))
	engines.On(r, engines.Update, of+"/associations/resume", "Go on syncing an association.", flags, s.associationPauser(false))
	engines.On(r, engines.Update, of+"/associations/history", "What came of the last attempts to sync a secret.", flags, s.history)
	engines.On(r, engines.Update, of+"/drift", "Look for what somebody else has changed at the destination, now.", flags, s.driftNow)
}

// readAssociations answers all associations of a destination.
func (s *Service) readAssociations(ctx context.Context, req *engines.Request, in *ofIn) (*engines.Response, error) {
	d, err := s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	return s.answerAssociations(ctx, d, nil)
}

// answerAssociations answers one association, or with nil all of a destination.
func (s *Service) answerAssociations(ctx context.Context, d *destinationRecord, only *associationRecord) (*engines.Response, error) {
	entries := map[string]any{}
	var all []*associationRecord
	err := scan(ctx, s.host.Store(), area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		if only == nil || a.ID == only.ID {
			all = append(all, a)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		m, err := s.host.MountOf(ctx, a.MountUUID)
		if err != nil {
			return nil, err
		}
		err = s.eachSecret(ctx, a, m, func(secret string, l *link) error {
			if l == nil { // it is queued
				l = &link{Secret: secret, outcome: outcome{Status: Pending}, UpdatedAt: a.UpdatedAt}
			}
			if secret != "" {
				s.entries(ctx, d, a, l, entries)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return &engines.Response{Data: map[string]any{"associated_secrets": entries, "store_name": d.Name, "store_type": d.Type}}, nil
}

// entries adds what clients are told of a link: one entry, or one for each key.
func (s *Service) entries(ctx context.Context, d *destinationRecord, a *associationRecord, l *link, into map[string]any) {
	now := s.standing(ctx, d, a, l)
	key := a.Accessor + "/" + l.Secret
	byKey := a.plan(s.types[d.Type].Rules).Keys()
	if !byKey || len(l.Items) == 0 {
		e := s.entry(a, l, now)
		if len(l.Items) > 0 {
			e["external_name"], e["external_version"] = l.Items[0].Name, l.Items[0].Version
		}
		into[key] = e
		return
	}
	for i := range l.Items {
		it := &l.Items[i]
		o := it.outcome
		if now.Status != l.outcome.Status || o.Status == "" {
			o = now
		}
		e := s.entry(a, l, o)
		e["sub_key"], e["external_name"], e["external_version"] = it.Key, it.Name, it.Version
		if it.Drift != "" {
			e["drift"] = it.Drift
		}
		name := it.Key
		if name == "" {
			name = it.Name
		}
		into[key+"/"+name] = e
	}
}

// standing is the status of a link as it is: what was stored, unless something has changed since.
func (s *Service) standing(ctx context.Context, d *destinationRecord, a *associationRecord, l *link) outcome {
	queued, running := s.queue.state(jobKey{a.NS, a.Destination, a.ID, l.Secret})
	switch {
	case a.Removing || a.Gone:
		o := l.outcome
		o.Status = Unsyncing
		return o
	case running:
		return outcome{Status: "SYNCING"}
	case d.Paused || a.Paused:
		return outcome{Status: Pending, Code: "paused", Cause: "syncing is paused"}
	case queued:
		return outcome{Status: Pending}
	case l.Status != Synced && l.Status != Unsynced:
		return l.outcome
	}
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return l.outcome
	}
	if _, due, err := s.due(ctx, a, m, l.Secret, l); err == nil && due && l.NextRetry.IsZero() {
		if secret, err := latest(ctx, m, l.Secret); err == nil && (secret.Version != l.Version || !secret.CreatedAt.Equal(l.VersionAt)) {
			return outcome{Status: Pending}
		}
	}
	return l.outcome
}

// entry is what clients read of a secret.
func (s *Service) entry(a *associationRecord, l *link, o outcome) map[string]any {
	e := map[string]any{
		"accessor": a.Accessor, "mount": a.MountPath, "secret_name": l.Secret, "sub_key": "", "sync_status": o.Status, "updated_at": l.UpdatedAt,
		"version": l.Version, "attempts": l.Attempts,
	}
	if o.Cause != "" {
		e["cause"], e["code"] = o.Cause, o.Code
	}
	for name, at := range map[string]time.Time{"last_success": l.LastSuccess, "last_attempt": l.LastAttempt, "next_retry": l.NextRetry} {
		if !at.IsZero() {
			e[name] = at
		}
	}
	if a.Selector {
		e["secret_prefix"] = a.Secret
	}
	return e
}

// listAssociations answers the secrets of all destinations of the namespace.
func (s *Service) listAssociations(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	info := map[string][]map[string]string{}
	links := 0
	err := s.eachDestinationOf(ctx, req.Mount.NamespaceID, func(d *destinationRecord) error {
		return s.eachLink(ctx, d, func(a *associationRecord, l *link) {
			links++
			key := strings.TrimSuffix(a.MountPath, "/") + "/" + l.Secret
			if info[key] == nil {
				info[key] = []map[string]string{{"mount": strings.TrimSuffix(a.MountPath, "/"), "secret_path": l.Secret}}
			}
		})
	})
	if err != nil {
		return nil, err
	}
	if links == 0 {
		return nil, engines.NotFound("")
	}
	keys := make([]string, 0, len(info))
	for key := range info {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return &engines.Response{Data: map[string]any{"keys": keys, "key_info": info, "total_associations": links, "total_secrets": len(info)}}, nil
}

// eachLink goes through the links of a destination.
func (s *Service) eachLink(ctx context.Context, d *destinationRecord, do func(*associationRecord, *link)) error {
	byID := map[string]*associationRecord{}
	err := scan(ctx, s.host.Store(), area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		byID[a.ID] = a
		return true
	})
	if err != nil {
		return err
	}
	prefix := area(d.NS, "l/"+d.ID+"/")
	return scan(ctx, s.host.Store(), prefix, func(key storage.Key, l *link) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), "/")
		if a := byID[id]; a != nil {
			do(a, l)
		}
		return true
	})
}

type mountSecretIn struct {
	Mount      string `json:"mount" max:"512" query:"true" required:"true" help:"Mount that holds the secret: its path, or its accessor."`
	SecretName string `json:"secret_name" max:"512" query:"true" required:"true" help:"Name of the secret."`
}

// destinationsOf answers where a secret is synced to.
func (s *Service) destinationsOf(ctx context.Context, req *engines.Request, in *mountSecretIn) (*engines.Response, error) {
	m, _, err := s.sourceAt(ctx, req.Mount.NamespaceID, in.Mount)
	if err != nil {
		return nil, err
	}
	to := map[string]any{}
	err = s.eachDestinationOf(ctx, req.Mount.NamespaceID, func(d *destinationRecord) error {
		var links []func()
		err := s.eachLink(ctx, d, func(a *associationRecord, l *link) {
			if a.MountUUID != m.UUID || l.Secret != in.SecretName {
				return
			}
			links = append(links, func() {
				all := map[string]any{}
				s.entries(ctx, d, a, l, all)
				for key, e := range all {
					entry := e.(map[string]any)
					entry["type"], entry["name"] = d.Type, d.Name
					name := d.Type + "/" + d.Name
					if sub := strings.TrimPrefix(key, a.Accessor+"/"+l.Secret); sub != "" {
						name += sub
					}
					to[name] = entry
				}
			})
		})
		for _, add := range links {
			add()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(to) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"associated_destinations": to}}, nil
}

// planned is one name of a plan.
type planned struct {
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

// planDestination says what syncing would do: of everything that is associated, or of one association, which need not be there
// yet.
func (s *Service) planDestination(ctx context.Context, req *engines.Request, in *setIn) (*engines.Response, error) {
	d, err := s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all := []planned{}
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.choose(ctx, req, &in.secretIn)
		if err != nil {
			return nil, err
		}
		if err := s.checkReadable(ctx, req, c); err != nil {
			return nil, err
		}
		a, err := s.build(req, c, in)
		if err != nil {
			return nil, err
		}
		all, err = s.planAssociation(ctx, d, a, all)
		if err != nil {
			return nil, invalid(err)
		}
		return plannedAnswer(all), nil
	}
	var associations []*associationRecord
	err = scan(ctx, s.host.Store(), area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		associations = append(associations, a)
		return true
	})
	for _, a := range associations {
		if err == nil {
			all, err = s.planAssociation(ctx, d, a, all)
		}
	}
	if err != nil {
		return nil, invalid(err)
	}
	return plannedAnswer(all), nil
}

func plannedAnswer(all []planned) *engines.Response {
	totals := map[string]int{}
	for _, p := range all {
		totals[p.Action]++
	}
	return &engines.Response{Data: map[string]any{"actions": all, "totals": totals}}
}

// planAssociation adds what would be done for an association.
func (s *Service) planAssociation(ctx context.Context, d *destinationRecord, a *associationRecord, all []planned) ([]planned, error) {
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return nil, err
	}
	err = s.eachSecret(ctx, a, m, func(secret string, l *link) error {
		more, err := s.planSecret(ctx, d, a, m, secret, l)
		all = append(all, more...)
		return err
	})
	return all, err
}

func (s *Service) planSecret(ctx context.Context, d *destinationRecord, a *associationRecord, m *engines.Mounted, secret string, l *link) ([]planned, error) {
	t := &target{key: jobKey{a.NS, a.Destination, a.ID, secret}, dest: *d, assoc: *a, kind: s.types[d.Type], mount: m}
	if l != nil {
		t.link = *l
	}
	version, err := getDestination(ctx, s.host.Store(), d.key(), new(destinationRecord))
	if err != nil {
		return nil, err
	}
	t.version = version
	if t.mark, err = s.markOf(ctx, a); err != nil {
		return nil, err
	}
	want, err := s.aim(ctx, t)
	if err != nil {
		return []planned{{Secret: secret, Action: actRefuse, Reason: failure(err).Cause}}, nil //nolint:nilerr // it is the plan
	}
	dest, err := s.open(t)
	if err != nil {
		return nil, err
	}
	steps, err := s.plan(ctx, t, dest, want, false)
	if err != nil {
		return []planned{{Secret: secret, Action: actRefuse, Reason: failure(err).Cause}}, nil //nolint:nilerr // likewise
	}
	var out []planned
	for i := range steps {
		st := &steps[i]
		if st.wanted != nil {
			if other, err := s.claimedBy(ctx, t, st.Name); err != nil {
				return nil, err
			} else if other != "" {
				st.action = action{Do: actConflict, Reason: other}
			}
		}
		out = append(out, planned{Secret: secret, Key: st.Key, Name: st.Name, Action: st.Do, Reason: st.Reason})
	}
	return out, nil
}

// claimedBy says who else has claimed a name, "" if nobody has.
func (s *Service) claimedBy(ctx context.Context, t *target, name string) (string, error) {
	place, err := s.place(&t.dest)
	if err != nil {
		return "", err
	}
	tx := storage.Begin(s.host.Store()) // never committed
	st := step{item: item{Name: name}}
	if err := s.claim(ctx, tx, t, place, &st); err != nil || st.Do != actConflict {
		return "", err
	}
	return st.Reason, nil
}

type adoptIn struct {
	secretIn
	Names engines.StringList `json:"external_names" max:"1000" help:"Names at the destination to take over; without any, all that the secret is in conflict with."`
}

// adopt takes names over that belong to somebody else.
func (s *Service) adopt(ctx context.Context, req *engines.Request, in *adoptIn) (*engines.Response, error) {
	c, err := s.choose(ctx, req, &in.secretIn)
	if err != nil {
		return nil, err
	}
	if c.selector {
		return nil, engines.Invalid(`field "secret_name" is required: names are taken over secret by secret`)
	}
	if err := s.checkReadable(ctx, req, c); err != nil {
		return nil, err
	}
	rules := s.types[c.dest.Type].Rules
	key := linkKey(c.dest.NS, c.dest.ID, c.id(), c.secret)
	var a associationRecord
	_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		found, err := engines.GetRecord(ctx, tx, c.key(), &a)
		if err != nil {
			return err
		}
		var l link
		linked, err := engines.GetRecord(ctx, tx, key, &l)
		if err != nil {
			return err
		}
		if !found || !linked {
			return engines.NotFound("")
		}
		l.Adopt = nil
		for _, name := range in.Names {
			l.Adopt = append(l.Adopt, fold(rules, name))
		}
		for i := range l.Items {
			if len(in.Names) == 0 && l.Items[i].Status == Conflict {
				l.Adopt = append(l.Adopt, fold(rules, l.Items[i].Name))
			}
		}
		if len(l.Adopt) == 0 {
			return engines.Invalid("no name of the secret is in conflict: there is nothing to take over")
		}
		return engines.PutRecord(tx, key, &l)
	})
	if err != nil {
		return nil, err
	}
	s.syncNow(ctx, jobKey{a.NS, a.Destination, a.ID, c.secret})
	return s.answerAssociations(ctx, c.dest, &a)
}

// retry syncs again what has failed, or one secret.
func (s *Service) retry(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
	if in.Mount != "" {
		c, err := s.choose(ctx, req, in)
		if err != nil {
			return nil, err
		}
		var a associationRecord
		found, err := engines.GetRecord(ctx, s.host.Store(), c.key(), &a)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, engines.NotFound("")
		}
		if !c.selector {
			s.syncNow(ctx, jobKey{a.NS, a.Destination, a.ID, c.secret})
			return s.answerAssociations(ctx, c.dest, &a)
		}
	}
	d, err := s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	n := 0
	err = s.eachLink(ctx, d, func(a *associationRecord, l *link) {
		if l.Attempts > 0 {
			n++
			s.queue.push(jobKey{a.NS, a.Destination, a.ID, l.Secret}, time.Time{}, true, nil)
		}
	})
	return &engines.Response{Data: map[string]any{"queued": n}}, err
}

func (s *Service) associationPauser(pause bool) engines.Handler[secretIn] {
	return func(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
		c, err := s.choose(ctx, req, in)
		if err != nil {
			return nil, err
		}
		var a associationRecord
		_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
			found, err := engines.GetRecord(ctx, tx, c.key(), &a)
			if err != nil {
				return err
			}
			if !found {
				return engines.NotFound("")
			}
			a.Paused, a.UpdatedAt = pause, time.Now().UTC()
			return engines.PutRecord(tx, a.key(), &a)
		})
		if err != nil {
			return nil, err
		}
		return s.answerAssociations(ctx, c.dest, &a)
	}
}

// history answers the last attempts of a secret.
func (s *Service) history(ctx context.Context, req *engines.Request, in *secretIn) (*engines.Response, error) {
	c, err := s.choose(ctx, req, in)
	if err != nil {
		return nil, err
	}
	var l link
	found, err := engines.GetRecord(ctx, s.host.Store(), linkKey(c.dest.NS, c.dest.ID, c.id(), c.secret), &l)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, engines.NotFound("")
	}
	var events []map[string]any
	for _, e := range l.History {
		events = append(events, map[string]any{"at": e.At, "version": e.Version, "done": e.Done, "sync_status": e.Status, "code": e.Code, "cause": e.Cause})
	}
	return &engines.Response{Data: map[string]any{"events": events}}, nil
}
