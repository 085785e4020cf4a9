// Package status reports the sync state of secrets: the stored result of each link, unless the secret, its association or its destination
// has changed since. Start reading at report.add.
package status

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/index"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/source"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// Reporter reports the sync state of secrets.
type Reporter struct{ *reconcile.Reconciler }

// report collects the entries of secrets at a destination.
type report struct {
	s           *Reporter
	d           *state.Destination
	pauseReason *state.Outcome // why nothing is done; nil: it is
	circuit     workqueue.Circuit
	entries     map[string]reportEntry
	names       map[string][]string // of entries, by accessor and secret
}

// reportEntry is an entry. The entry of a secret's own association replaces that of a prefix, unless the latter needs action, or is a key
// that only the association with the prefix owns.
type reportEntry struct {
	entryData
	needsAction, ownName bool
}

func (s *Reporter) newReport(ctx context.Context, d *state.Destination) (*report, error) {
	r := &report{s: s, d: d, circuit: s.Pool.Circuit(d.ID), entries: map[string]reportEntry{}, names: map[string][]string{}}
	c, err := s.Config(ctx)
	switch {
	case d.Paused:
		r.pauseReason = &state.Outcome{Status: state.Pending, Code: "paused", Cause: "syncing to the destination is paused"}
	case c.Disabled:
		r.pauseReason = &state.Outcome{Status: state.Pending, Code: "disabled", Cause: reconcile.DisabledCause}
	}
	return r, err
}

func (r *report) response() *engines.Response {
	entries := map[string]any{}
	for name, e := range r.entries {
		entries[name] = map[string]any(e.entryData)
	}
	return &engines.Response{Data: map[string]any{"associated_secrets": entries, "store_name": r.d.Name, "store_type": r.d.TypeName()}}
}

// RespondAssociations answers associations of a destination.
func (s *Reporter) RespondAssociations(ctx context.Context, d *state.Destination, all ...*state.Association) (*engines.Response, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	// What a secret has of its own comes last.
	slices.SortStableFunc(all, func(a, b *state.Association) int { return boolInt(b.Selector) - boolInt(a.Selector) })
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

func (r *report) addAssociation(ctx context.Context, a *state.Association) error {
	m, err := r.s.Host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	return r.s.EachSecret(ctx, a, m, func(secret string, l *state.Link) error {
		if secret != "" {
			r.add(ctx, a, m, secret, l)
		}
		return nil
	})
}

// RespondSecret answers one secret.
func (s *Reporter) RespondSecret(ctx context.Context, d *state.Destination, a *state.Association, m *engines.Mounted, secret string) (*engines.Response, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	now := new(state.Link)
	found, err := engines.GetRecord(ctx, s.Host.Store(), state.LinkKey(d.NS, d.ID, a.ID, secret), now)
	if err != nil {
		return nil, err
	}
	if !found {
		now = nil
	}
	r.add(ctx, a, m, secret, now)
	return r.response(), nil
}

// add adds the entries of a secret: one, or one for each key. m is nil if the mount is gone, and l if nothing was
// begun.
func (r *report) add(ctx context.Context, a *state.Association, m *engines.Mounted, secret string, l *state.Link) {
	if l == nil { // it is queued, or will be
		l = &state.Link{Secret: secret, Outcome: state.Outcome{Status: state.Pending}, UpdatedAt: a.UpdatedAt}
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
	put := func(name string, e entryData, o state.Outcome, alone bool) {
		if held != nil && !a.IsEnding() {
			e.setPaused(*held)
		} else {
			r.setBackingOff(e, o)
		}
		waits := o.Status == state.Conflict || o.Status == state.ClientError
		if r.entries[name].needsAction && !waits {
			return
		}
		r.names[key] = append(r.names[key], name)
		r.entries[name] = reportEntry{e, waits, alone}
	}
	byKey, items := a.Plan(r.s.Pool.Types[r.d.Type].Rules).Keys(), l.Active()
	if !byKey || len(items) == 0 {
		e := entry(a, m, l, now)
		if len(items) > 0 {
			e.addItem(&items[0])
			r.addAdopting(e, l, &items[0])
		}
		put(key, e, now, false)
		return
	}
	for i := range items {
		it := &items[i]
		o := it.Outcome
		switch {
		case now.Status != l.Status && now.Cause == l.Cause && o.Status != "": // it is tried again
			o.Status = now.Status
			if it.Status == state.Synced {
				o.Code, o.Cause = "", ""
			}
		case now.Status != l.Status || o.Status == "":
			o = now
		}
		e := entry(a, m, l, o)
		e.addItem(it)
		r.addAdopting(e, l, it)
		e["sub_key"] = it.Key
		name := it.Key
		if name == "" {
			name = it.Name
		}
		put(key+"/"+name, e, o, it.Owned)
	}
}

// addAdopting says in an entry that the adoption of its name was requested and is still to come.
func (r *report) addAdopting(e entryData, l *state.Link, it *state.Item) {
	if l.IsAdopting(state.Fold(r.s.Pool.Types[r.d.Type].Rules, it.Name)) {
		e["adopting"] = true
	}
}

// pausedBy returns why nothing is done about an association; nil: it is.
func (r *report) pausedBy(a *state.Association) *state.Outcome {
	if a.Paused && r.pauseReason == nil {
		return &state.Outcome{Status: state.Pending, Code: "paused", Cause: "syncing of the association is paused"}
	}
	return r.pauseReason
}

// setBackingOff says in an entry that the destination is not called for a while, and why.
func (r *report) setBackingOff(e entryData, o state.Outcome) {
	switch o.Status {
	case state.Pending, state.ExternalError, state.Unsyncing, syncing:
	default:
		return
	}
	if !r.circuit.Open {
		return
	}
	if o.Cause == "" {
		o.Code, o.Cause = r.circuit.Cause.Code, r.circuit.Cause.Text
	}
	if r.circuit.Until.After(time.Now()) {
		if next, ok := e["next_retry"].(time.Time); ok && next.Before(r.circuit.Until) {
			e["next_retry"] = r.circuit.Until
		}
		o.Cause = r.circuit.BackingOff(o.Cause)
	}
	e["cause"], e["code"] = o.Cause, o.Code
}

// syncing is the status of a link that is being synced. It is not stored.
const syncing = "SYNCING"

// setPaused says in an entry that it is not tried again for now.
func (e entryData) setPaused(why state.Outcome) {
	delete(e, "next_retry")
	if cause, ok := e["cause"].(string); ok && cause != why.Cause {
		e["cause"] = cause + "; it is not tried again, because " + why.Cause
	}
}

// currentOutcome is the status of a link as it is: what was stored, unless something has changed since.
func (r *report) currentOutcome(ctx context.Context, a *state.Association, m *engines.Mounted, l *state.Link) state.Outcome {
	switch {
	case l.Unreadable:
		return l.Outcome
	case a.Selector && !a.IsEnding() && r.s.Capacity.IsFull(a.LinkID(l.Secret)):
		return state.Outcome{Status: state.ClientError, Code: index.CodeQueueCapacity, Cause: r.s.Capacity.Cause()}
	}
	halted := r.pausedBy(a)
	queued, running := r.s.Queue.State(a.LinkID(l.Secret))
	right := l.IsInSync()
	last := l.Outcome // what it failed with
	if right {
		last = state.Outcome{}
	}
	switch {
	case a.IsEnding():
		last.Status = state.Unsyncing
		return last
	case right && !r.due(ctx, a, m, l), !right && l.Status != state.Pending && !secretChanged(ctx, a, m, l): // also while it is checked again
		return l.Outcome
	case running && halted == nil:
		last.Status = syncing
		return last
	case l.Code == state.CodeRateLimited && l.NextRetry.After(time.Now()) && halted == nil: // also for the versions since
		return l.Outcome
	case queued && halted == nil:
		last.Status = state.Pending
		return last
	case !right && l.Status != state.Pending:
		return l.Outcome
	case halted != nil:
		return *halted
	}
	return state.Outcome{Status: state.Pending}
}

// secretChanged reports whether the secret, or how it is associated, is another than when the link was synced.
func secretChanged(ctx context.Context, a *state.Association, m *engines.Mounted, l *state.Link) bool {
	now, err := source.Latest(ctx, m, l.Secret)
	return l.Rules != a.RulesHash() || err == nil && !l.IsOf(now)
}

// due reports whether something is to be done for a link that was right.
func (r *report) due(ctx context.Context, a *state.Association, m *engines.Mounted, l *state.Link) bool {
	at, due, err := r.s.Due(ctx, a, m, l.Secret, l)
	return err == nil && due && !at.After(time.Now())
}

// entryData is what clients read of a secret.
type entryData map[string]any

// addItem adds what there is of a name.
func (e entryData) addItem(it *state.Item) {
	e["external_name"], e["external_version"], e["version"] = it.Name, it.Version, it.SecretVersion
	if it.Drift != "" {
		e["drift"] = it.Drift
	}
}

func entry(a *state.Association, m *engines.Mounted, l *state.Link, o state.Outcome) entryData {
	e := entryData{
		"accessor": a.Accessor, "mount": MountPath(a, m), "secret_name": l.Secret, "sub_key": "", "sync_status": o.Status, "updated_at": l.UpdatedAt,
		"version": 0, "attempts": l.Attempts,
	}
	if l.Status == state.Synced || l.Status == state.Unsynced { // otherwise it is the version of a failed attempt, or one that was removed
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
		e["secret_prefix"] = PrefixText(a)
	}
	if a.ValueFormat != "" {
		e["format"] = a.ValueFormat
	}
	if a.ValueTemplate != "" {
		e["value_template"] = a.ValueTemplate
	}
	if len(a.Rename) > 0 {
		e["rename"] = a.Rename
	}
	return e
}

// MountPath is where the mount of an association is, or was.
func MountPath(a *state.Association, m *engines.Mounted) string {
	if m == nil {
		return a.MountPath
	}
	return m.Path
}

// SecretEntries returns what readers are shown of a secret at a destination, of all its associations, by the path of the entry.
func (s *Reporter) SecretEntries(ctx context.Context, d *state.Destination, m *engines.Mounted, secret string) (map[string]map[string]any, error) {
	r, err := s.newReport(ctx, d)
	if err != nil {
		return nil, err
	}
	all, err := s.SelectorsOf(ctx, d, m.UUID, secret)
	if err != nil {
		return nil, err
	}
	slices.Reverse(all) // the longest prefix last, but before the secret's own association
	own, err := state.GetAssociation(ctx, s.Host.Store(), state.AssociationKey(d.NS, d.ID, state.AssociationID(d.ID, m.UUID, secret, false)))
	if err != nil {
		return nil, err
	}
	if own != nil {
		all = append(all, own)
	}
	for _, a := range all {
		l := new(state.Link)
		found, err := engines.GetRecord(ctx, s.Host.Store(), state.LinkKey(a.NS, a.Destination, a.ID, secret), l)
		switch {
		case s.Unreadable(err):
			l = state.UnreadableLink(secret)
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
func (s *Reporter) isReadable(ctx context.Context, a *state.Association, m *engines.Mounted, secret string) bool {
	if now, err := source.Latest(ctx, m, secret); err != nil || now.Version == 0 {
		return false
	}
	ok, err := s.OwnerReads(ctx, a, m, secret)
	return ok && err == nil
}

func PrefixText(a *state.Association) string { return cmp.Or(a.Secret, "*") }
