package secretsync

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Reporter reports the sync state of secrets.
type Reporter struct{ *Reconciler }

// report gathers what clients are told of secrets at a destination.
type report struct {
	s           *Reporter
	d           *Destination
	pauseReason *Outcome // why nothing is done; nil: it is
	entries     map[string]reportEntry
	names       map[string][]string // of entries, by accessor and secret
}

// reported is an entry. What a secret has of its own takes the place of what it has by a prefix, unless that waits for somebody, or
// is a key that is looked after by that association alone.
type reportEntry struct {
	entryData
	needsAction, ownName bool
}

func (s *Reporter) newReport(ctx context.Context, d *Destination) (*report, error) {
	r := &report{s: s, d: d, entries: map[string]reportEntry{}, names: map[string][]string{}}
	c, err := s.config(ctx)
	switch {
	case d.Paused:
		r.pauseReason = &Outcome{Status: Pending, Code: "paused", Cause: "syncing to the destination is paused"}
	case c.Disabled:
		r.pauseReason = &Outcome{Status: Pending, Code: "disabled", Cause: disabledCause}
	}
	return r, err
}

func (r *report) response() *engines.Response {
	entries := map[string]any{}
	for name, e := range r.entries {
		entries[name] = map[string]any(e.entryData)
	}
	return &engines.Response{Data: map[string]any{"associated_secrets": entries, "store_name": r.d.Name, "store_type": r.d.Type}}
}

// answerAssociations answers associations of a destination.
func (s *Reporter) respondAssociations(ctx context.Context, d *Destination, all ...*Association) (*engines.Response, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	// What a secret has of its own comes last.
	slices.SortStableFunc(all, func(a, b *Association) int { return boolInt(b.Selector) - boolInt(a.Selector) })
	for _, a := range all {
		if err == nil {
			err = r.addAssociation(ctx, a)
		}
	}
	if err != nil {
		return nil, err
	}
	return r.response(), nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *report) addAssociation(ctx context.Context, a *Association) error {
	m, err := r.s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	return r.s.eachSecret(ctx, a, m, func(secret string, l *Link) error {
		if secret != "" {
			r.add(ctx, a, m, secret, l)
		}
		return nil
	})
}

// answerSecret answers one secret.
func (s *Reporter) respondSecret(ctx context.Context, d *Destination, a *Association, m *engines.Mounted, secret string) (*engines.Response, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	now := new(Link)
	found, err := engines.GetRecord(ctx, s.host.Store(), LinkKey(d.NS, d.ID, a.ID, secret), now)
	if err != nil {
		return nil, err
	}
	if !found {
		now = nil
	}
	r.add(ctx, a, m, secret, now)
	return r.response(), nil
}

// add adds what clients are told of a secret: one entry, or one for each key. m is nil if the mount is gone, and l if nothing was
// begun.
func (r *report) add(ctx context.Context, a *Association, m *engines.Mounted, secret string, l *Link) {
	if l == nil { // it is queued, or will be
		l = &Link{Secret: secret, Outcome: Outcome{Status: Pending}, UpdatedAt: a.UpdatedAt}
	}
	now := r.currentOutcome(ctx, a, m, l)
	held := r.pausedBy(a)
	key := a.Accessor + "/" + l.Secret
	if l.IsShared() && len(r.names[key]) > 0 {
		return
	}
	for _, name := range r.names[key] { // another association's
		if e := r.entries[name]; !e.needsAction && !e.ownName {
			delete(r.entries, name)
		}
	}
	put := func(name string, e entryData, o Outcome, alone bool) {
		if held != nil && !a.IsEnding() {
			e.setPaused(*held)
		}
		waits := o.Status == Conflict || o.Status == ClientError
		if r.entries[name].needsAction && !waits {
			return
		}
		r.names[key] = append(r.names[key], name)
		r.entries[name] = reportEntry{e, waits, alone}
	}
	byKey, items := a.Plan(r.s.pool.Types[r.d.Type].Rules).Keys(), l.Active()
	if !byKey || len(items) == 0 {
		e := entry(a, m, l, now)
		if len(items) > 0 {
			e.addItem(&items[0])
		}
		put(key, e, now, false)
		return
	}
	for i := range items {
		it := &items[i]
		o := it.Outcome
		if now.Status != l.Outcome.Status || o.Status == "" {
			o = now
		}
		e := entry(a, m, l, o)
		e.addItem(it)
		e["sub_key"] = it.Key
		name := it.Key
		if name == "" {
			name = it.Name
		}
		put(key+"/"+name, e, o, it.Owned)
	}
}

// held returns why nothing is done about an association; nil: it is.
func (r *report) pausedBy(a *Association) *Outcome {
	if a.Paused && r.pauseReason == nil {
		return &Outcome{Status: Pending, Code: "paused", Cause: "syncing of the association is paused"}
	}
	return r.pauseReason
}

// hold says in an entry that it is not tried again for now.
func (e entryData) setPaused(why Outcome) {
	delete(e, "next_retry")
	if cause, ok := e["cause"].(string); ok && cause != why.Cause {
		e["cause"] = cause + "; it is not tried again, because " + why.Cause
	}
}

// standing is the status of a link as it is: what was stored, unless something has changed since.
func (r *report) currentOutcome(ctx context.Context, a *Association, m *engines.Mounted, l *Link) Outcome {
	switch {
	case l.Unreadable:
		return l.Outcome
	case a.Selector && !a.IsEnding() && r.s.capacity.IsFull(LinkID{a.NS, a.Destination, a.ID, l.Secret}):
		return Outcome{Status: ClientError, Code: CodeQueueCapacity, Cause: r.s.capacity.Cause()}
	}
	halted := r.pausedBy(a)
	queued, running := r.s.queue.State(LinkID{a.NS, a.Destination, a.ID, l.Secret})
	right := l.Status == Synced || l.Status == Unsynced
	switch {
	case a.IsEnding():
		o := l.Outcome
		if right || l.Status == Pending {
			o = Outcome{}
		}
		o.Status = Unsyncing
		return o
	case right && !r.due(ctx, a, m, l), !right && l.Status != Pending && !secretChanged(ctx, a, m, l): // even if it is being looked at again
		return l.Outcome
	case running && halted == nil:
		return Outcome{Status: "SYNCING"}
	case queued && halted == nil:
		return Outcome{Status: Pending}
	case !right && l.Status != Pending:
		return l.Outcome
	case halted != nil:
		return *halted
	}
	return Outcome{Status: Pending}
}

// changed reports whether the secret, or how it is associated, is another than when the link was synced.
func secretChanged(ctx context.Context, a *Association, m *engines.Mounted, l *Link) bool {
	now, err := latestSecret(ctx, m, l.Secret)
	return l.Rules != a.RulesHash() || err == nil && !l.IsOf(now)
}

// due reports whether something is to be done for a link that was right.
func (r *report) due(ctx context.Context, a *Association, m *engines.Mounted, l *Link) bool {
	at, due, err := r.s.due(ctx, a, m, l.Secret, l)
	return err == nil && due && !at.After(time.Now())
}

// entryData is what clients read of a secret.
type entryData map[string]any

// of adds what there is of a name.
func (e entryData) addItem(it *Item) {
	e["external_name"], e["external_version"], e["version"] = it.Name, it.Version, it.SecretVersion
	if it.Drift != "" {
		e["drift"] = it.Drift
	}
}

func entry(a *Association, m *engines.Mounted, l *Link, o Outcome) entryData {
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
		e["secret_prefix"] = prefixText(a)
	}
	return e
}

// mountPath is where the mount of an association is, or was.
func mountPath(a *Association, m *engines.Mounted) string {
	if m == nil {
		return a.MountPath
	}
	return m.Path
}

// SecretEntries returns what readers are shown of a secret at a destination, of all its associations, by the path of the entry.
func (s *Reporter) secretEntries(ctx context.Context, d *Destination, m *engines.Mounted, secret string) (map[string]map[string]any, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	all, err := s.selectorsOf(ctx, d, m.UUID, secret)
	if err != nil {
		return nil, err
	}
	slices.Reverse(all) // the longest prefix last, but before the secret's own association
	own, err := GetAssociation(ctx, s.host.Store(), AssociationKey(d.NS, d.ID, AssociationID(d.ID, m.UUID, secret, false)))
	if err != nil {
		return nil, err
	}
	if own != nil {
		all = append(all, own)
	}
	for _, a := range all {
		l := new(Link)
		found, err := engines.GetRecord(ctx, s.host.Store(), LinkKey(a.NS, a.Destination, a.ID, secret), l)
		switch {
		case s.unreadable(err):
			l = unreadableLink(secret)
		case err != nil:
			return nil, err
		case !found && own == nil && s.isReadable(ctx, a, m, secret):
			l = nil
		case !found:
			continue
		}
		r.add(ctx, a, m, secret, l)
	}
	entries := map[string]map[string]any{}
	for name, e := range r.entries {
		entries[name] = e.entryData
	}
	return entries, nil
}

// isReadable reports whether a secret exists, and the owner of an association can read it.
func (s *Reporter) isReadable(ctx context.Context, a *Association, m *engines.Mounted, secret string) bool {
	if now, err := latestSecret(ctx, m, secret); err != nil || now.Version == 0 {
		return false
	}
	ok, err := s.ownerReads(ctx, a, m, secret)
	return ok && err == nil
}

func prefixText(a *Association) string { return cmp.Or(a.Secret, "*") }
