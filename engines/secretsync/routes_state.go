package secretsync

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

func (s *Service) stateRoutes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}"
	on(r, engines.Update, of+"/plan", "What syncing would do now, name by name; with a secret, also what associating it would do. Nothing is changed.", flags, s.planDestination)
	on(r, engines.Update, of+"/associations/adopt", "Take over names at the destination that belong to somebody else.", flags, s.adopt)
	on(r, engines.Update, of+"/associations/retry", "Sync again now what has failed, or one secret whatever its state.", flags, s.retry)
	on(r, engines.Update, of+"/associations/pause", "Stop syncing an association.", flags, s.associationPauser(true))
	on(r, engines.Update, of+"/associations/resume", "Go on syncing an association.", flags, s.associationPauser(false))
	on(r, engines.Update, of+"/associations/history", "What came of the last attempts to sync a secret.", flags, s.history)
	on(r, engines.Update, of+"/drift", "Look for what somebody else has changed at the destination, now.", flags, s.driftNow)
}

// readAssociations answers all associations of a destination.
func (s *Service) readAssociations(ctx context.Context, req *engines.Request, in *ofIn) (*engines.Response, error) {
	d, err := s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all, left, err := s.associationsFor(ctx, req, d)
	if err != nil {
		return nil, err
	}
	resp, err := s.answerAssociations(ctx, d, all...)
	if err == nil {
		resp.Warnings = leftOut(left)
	}
	return resp, err
}

// associationsFor returns the associations of a destination that are there for who asks. left is how many cannot be read.
func (s *Service) associationsFor(ctx context.Context, req *engines.Request, d *destinationRecord) (all []*associationRecord, left int, err error) {
	left, err = survey(ctx, s, area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		if req.Caller.Sees(a.MountUUID) {
			all = append(all, a)
		}
		return true
	})
	return all, left, err
}

const disabledCause = "secret sync is disabled in sync/config"

// report gathers what clients are told of secrets at a destination.
type report struct {
	s       *Service
	d       *destinationRecord
	halted  *outcome // why nothing is done; nil: it is
	entries map[string]reported
	names   map[string][]string // of entries, by accessor and secret
}

// reported is an entry. What a secret has of its own takes the place of what it has by a prefix, unless that waits for somebody, or
// is a key that is looked after by that association alone.
type reported struct {
	entryData
	waits, alone bool
}

func (s *Service) newReport(ctx context.Context, d *destinationRecord) (*report, error) {
	r := &report{s: s, d: d, entries: map[string]reported{}, names: map[string][]string{}}
	c, err := s.config(ctx)
	switch {
	case d.Paused:
		r.halted = &outcome{Status: Pending, Code: "paused", Cause: "syncing to the destination is paused"}
	case c.Disabled:
		r.halted = &outcome{Status: Pending, Code: "disabled", Cause: disabledCause}
	}
	return r, err
}

func (r *report) answer() *engines.Response {
	entries := map[string]any{}
	for name, e := range r.entries {
		entries[name] = map[string]any(e.entryData)
	}
	return &engines.Response{Data: map[string]any{"associated_secrets": entries, "store_name": r.d.Name, "store_type": r.d.Type}}
}

// answerAssociations answers associations of a destination.
func (s *Service) answerAssociations(ctx context.Context, d *destinationRecord, all ...*associationRecord) (*engines.Response, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	// What a secret has of its own comes last.
	slices.SortStableFunc(all, func(a, b *associationRecord) int { return bit(b.Selector) - bit(a.Selector) })
	for _, a := range all {
		if err == nil {
			err = r.addAssociation(ctx, a)
		}
	}
	if err != nil {
		return nil, err
	}
	return r.answer(), nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *report) addAssociation(ctx context.Context, a *associationRecord) error {
	m, err := r.s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	return r.s.eachSecret(ctx, a, m, func(secret string, l *link) error {
		if secret != "" {
			r.add(ctx, a, m, secret, l)
		}
		return nil
	})
}

// answerSecret answers one secret.
func (s *Service) answerSecret(ctx context.Context, l *linked) (*engines.Response, error) {
	r, err := s.newReport(ctx, l.dest)
	if err != nil {
		return nil, err
	}
	now := new(link)
	found, err := engines.GetRecord(ctx, s.host.Store(), linkKey(l.dest.NS, l.dest.ID, l.assoc.ID, l.secret), now)
	if err != nil {
		return nil, err
	}
	if !found {
		now = nil
	}
	r.add(ctx, l.assoc, l.mount, l.secret, now)
	return r.answer(), nil
}

// add adds what clients are told of a secret: one entry, or one for each key. m is nil if the mount is gone, and l if nothing was
// begun.
func (r *report) add(ctx context.Context, a *associationRecord, m *engines.Mounted, secret string, l *link) {
	if l == nil { // it is queued, or will be
		l = &link{Secret: secret, outcome: outcome{Status: Pending}, UpdatedAt: a.UpdatedAt}
	}
	now := r.standing(ctx, a, m, l)
	held := r.held(a)
	key := a.Accessor + "/" + l.Secret
	if l.shared() && len(r.names[key]) > 0 {
		return
	}
	for _, name := range r.names[key] { // another association's
		if e := r.entries[name]; !e.waits && !e.alone {
			delete(r.entries, name)
		}
	}
	put := func(name string, e entryData, o outcome, alone bool) {
		if held != nil && !a.ending() {
			e.hold(*held)
		}
		waits := o.Status == Conflict || o.Status == ClientError
		if r.entries[name].waits && !waits {
			return
		}
		r.names[key] = append(r.names[key], name)
		r.entries[name] = reported{e, waits, alone}
	}
	byKey, items := a.plan(r.s.types[r.d.Type].Rules).Keys(), l.active()
	if !byKey || len(items) == 0 {
		e := entry(a, m, l, now)
		if len(items) > 0 {
			e.of(&items[0])
		}
		put(key, e, now, false)
		return
	}
	for i := range items {
		it := &items[i]
		o := it.outcome
		if now.Status != l.outcome.Status || o.Status == "" {
			o = now
		}
		e := entry(a, m, l, o)
		e.of(it)
		e["sub_key"] = it.Key
		name := it.Key
		if name == "" {
			name = it.Name
		}
		put(key+"/"+name, e, o, it.Owned)
	}
}

// held returns why nothing is done about an association; nil: it is.
func (r *report) held(a *associationRecord) *outcome {
	if a.Paused && r.halted == nil {
		return &outcome{Status: Pending, Code: "paused", Cause: "syncing of the association is paused"}
	}
	return r.halted
}

// hold says in an entry that it is not tried again for now.
func (e entryData) hold(why outcome) {
	delete(e, "next_retry")
	if cause, ok := e["cause"].(string); ok && cause != why.Cause {
		e["cause"] = cause + "; it is not tried again, because " + why.Cause
	}
}

// standing is the status of a link as it is: what was stored, unless something has changed since.
func (r *report) standing(ctx context.Context, a *associationRecord, m *engines.Mounted, l *link) outcome {
	switch {
	case l.lost:
		return l.outcome
	case a.Selector && !a.ending() && r.s.capacity.full(jobKey{a.NS, a.Destination, a.ID, l.Secret}):
		return outcome{Status: ClientError, Code: codeCapacity, Cause: r.s.capacity.cause()}
	}
	halted := r.held(a)
	queued, running := r.s.queue.State(jobKey{a.NS, a.Destination, a.ID, l.Secret})
	right := l.Status == Synced || l.Status == Unsynced
	switch {
	case a.ending():
		o := l.outcome
		if right || l.Status == Pending {
			o = outcome{}
		}
		o.Status = Unsyncing
		return o
	case right && !r.due(ctx, a, m, l), !right && l.Status != Pending && !changed(ctx, a, m, l): // even if it is being looked at again
		return l.outcome
	case running && halted == nil:
		return outcome{Status: "SYNCING"}
	case queued && halted == nil:
		return outcome{Status: Pending}
	case !right && l.Status != Pending:
		return l.outcome
	case halted != nil:
		return *halted
	}
	return outcome{Status: Pending}
}

// changed reports whether the secret, or how it is associated, is another than when the link was synced.
func changed(ctx context.Context, a *associationRecord, m *engines.Mounted, l *link) bool {
	now, err := latest(ctx, m, l.Secret)
	return l.Rules != a.rules() || err == nil && !l.of(now)
}

// due reports whether something is to be done for a link that was right.
func (r *report) due(ctx context.Context, a *associationRecord, m *engines.Mounted, l *link) bool {
	at, due, err := r.s.due(ctx, a, m, l.Secret, l)
	return err == nil && due && !at.After(time.Now())
}

// entryData is what clients read of a secret.
type entryData map[string]any

// of adds what there is of a name.
func (e entryData) of(it *item) {
	e["external_name"], e["external_version"], e["version"] = it.Name, it.Version, it.Source
	if it.Drift != "" {
		e["drift"] = it.Drift
	}
}

func entry(a *associationRecord, m *engines.Mounted, l *link, o outcome) entryData {
	e := entryData{
		"accessor": a.Accessor, "mount": mountPath(a, m), "secret_name": l.Secret, "sub_key": "", "sync_status": o.Status, "updated_at": l.UpdatedAt,
		"version": 0, "attempts": l.Attempts,
	}
	if l.Status == Synced || l.Status == Unsynced { // otherwise it is what was tried, and not what is there, or is gone from there
		e["version"] = l.Version
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
		e["secret_prefix"] = prefixShown(a)
	}
	return e
}

// mountPath is where the mount of an association is, or was.
func mountPath(a *associationRecord, m *engines.Mounted) string {
	if m == nil {
		return a.MountPath
	}
	return m.Path
}

// listAssociations answers the secrets of all destinations of the namespace.
func (s *Service) listAssociations(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	info := map[string][]map[string]string{}
	paths := map[string]string{} // of mounts, by uuid
	links := map[secretAt]bool{}
	_, err := s.eachDestinationOf(ctx, req.Mount.NamespaceID, func(d *destinationRecord) error {
		return s.eachLink(ctx, d, func(a *associationRecord, l *link) {
			if !req.Caller.Sees(a.MountUUID) {
				return
			}
			links[secretAt{d.ID, a.MountUUID, l.Secret}] = true
			path, ok := paths[a.MountUUID]
			if !ok {
				m, err := s.host.MountOf(ctx, a.MountUUID)
				if err != nil {
					m = nil
				}
				path = strings.TrimSuffix(mountPath(a, m), "/")
				paths[a.MountUUID] = path
			}
			info[path+"/"+l.Secret] = []map[string]string{{"mount": path, "secret_path": l.Secret}}
		})
	})
	if err != nil {
		return nil, err
	}
	if len(links) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{
		"keys": slices.Sorted(maps.Keys(info)), "key_info": info, "total_associations": len(links), "total_secrets": len(info),
	}}, nil
}

// eachLink goes through the links of a destination.
func (s *Service) eachLink(ctx context.Context, d *destinationRecord, do func(*associationRecord, *link)) error {
	byID := map[string]*associationRecord{}
	_, err := survey(ctx, s, area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		byID[a.ID] = a
		return true
	})
	if err != nil {
		return err
	}
	prefix := area(d.NS, "l/"+d.ID+"/")
	_, err = survey(ctx, s, prefix, func(key storage.Key, l *link) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), "/")
		if a := byID[id]; a != nil {
			do(a, l)
		}
		return true
	})
	return err
}

type mountSecretIn struct {
	Mount      string `json:"mount" form:"path" max:"512" query:"true" required:"true" help:"Mount that holds the secret: its path, or its accessor."`
	SecretName string `json:"secret_name" max:"512" query:"true" required:"true" help:"Name of the secret."`
}

// destinationsOf answers where a secret is synced to.
func (s *Service) destinationsOf(ctx context.Context, req *engines.Request, in *mountSecretIn) (*engines.Response, error) {
	m, secret, err := s.sourceOf(ctx, req, in)
	if err != nil {
		return nil, err
	}
	to := map[string]any{}
	_, err = s.eachDestinationOf(ctx, req.Mount.NamespaceID, func(d *destinationRecord) error {
		c := &chosen{dest: d, mount: m, secret: secret}
		r, err := s.reportSecret(ctx, c)
		if err != nil {
			return err
		}
		for key, e := range r.entries {
			e.entryData["type"], e.entryData["name"] = d.Type, d.Name
			to[d.Type+"/"+d.Name+strings.TrimPrefix(key, m.Accessor+"/"+secret)] = map[string]any(e.entryData)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(to) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"associated_destinations": to}}, nil
}

// reportSecret gathers what is told of a secret at a destination, by all its associations.
func (s *Service) reportSecret(ctx context.Context, c *chosen) (*report, error) {
	r, err := s.newReport(ctx, c.dest)
	if err != nil {
		return nil, err
	}
	all, err := s.selecting(ctx, c)
	if err != nil {
		return nil, err
	}
	slices.Reverse(all) // the longest prefix last, but for what it has of its own
	own, err := associationAt(ctx, s.host.Store(), c.key())
	if err != nil {
		return nil, err
	}
	if own != nil {
		all = append(all, own)
	}
	for _, a := range all {
		l := new(link)
		found, err := engines.GetRecord(ctx, s.host.Store(), linkKey(a.NS, a.Destination, a.ID, c.secret), l)
		switch {
		case s.unreadable(err):
			l = lostLink(c.secret)
		case err != nil:
			return nil, err
		case !found && own == nil && s.readableNow(ctx, a, c):
			l = nil
		case !found:
			continue
		}
		r.add(ctx, a, c.mount, c.secret, l)
	}
	return r, nil
}

// readableNow reports whether a secret is there, and is one that the owner of an association can read.
func (s *Service) readableNow(ctx context.Context, a *associationRecord, c *chosen) bool {
	if now, err := latest(ctx, c.mount, c.secret); err != nil || now.Version == 0 {
		return false
	}
	ok, err := s.ownerReads(ctx, a, c.mount, c.secret)
	return ok && err == nil
}

// sourceOf finds the mount and the secret that a path names. Where the two are one path, the mount's may have several segments.
func (s *Service) sourceOf(ctx context.Context, req *engines.Request, in *mountSecretIn) (*engines.Mounted, string, error) {
	path, secret := in.Mount, in.SecretName
	for req.Param("mount") != "" {
		m, err := s.host.MountAt(ctx, req.Mount.NamespaceID, path)
		if err != nil {
			return nil, "", err
		}
		segment, rest, more := strings.Cut(secret, "/")
		if m != nil || !more {
			break
		}
		path, secret = path+"/"+segment, rest
	}
	m, _, err := s.sourceAt(ctx, req, path)
	return m, secret, err
}
