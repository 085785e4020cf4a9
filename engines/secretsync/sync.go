package secretsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/render"
	"github.com/coffer-project/coffer/storage"
)

// One secret is brought to one destination in four steps, and may be interrupted after each of them:
//
//  1. See what should be there (aim), and what is there and what is to be done about it (plan). Plans that are only shown
//     end here.
//  2. Store what is about to be done, and claim the names (prepare).
//  3. Do it (carryOut).
//  4. Store what came of it (settled).

// target is all that is stored about one link.
type target struct {
	key     jobKey
	dest    destinationRecord
	version storage.Index // of dest
	assoc   associationRecord
	link    link
	kind    destination.Type
	mount   *engines.Mounted
	secret  engines.Secret
	mark    string
}

// errNothing means that there is nothing to sync any more.
var errNothing = errors.New("the association is gone")

// load reads what is stored about a link.
func (s *Service) load(ctx context.Context, key jobKey) (*target, error) {
	store := s.host.Store()
	t := &target{key: key}
	a := associationRecord{NS: key.NS, Destination: key.Destination, ID: key.Association}
	found, err := engines.GetRecord(ctx, store, a.key(), &t.assoc)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errNothing
	}
	t.version, err = getDestination(ctx, store, destinationKey(key.NS, t.assoc.Type, t.assoc.Name), &t.dest)
	if err != nil {
		return nil, err
	}
	if t.dest.ID != key.Destination {
		return nil, errNothing
	}
	if _, err := engines.GetRecord(ctx, store, linkKey(key.NS, key.Destination, key.Association, key.Secret), &t.link); err != nil {
		return nil, err
	}
	t.link.Secret = key.Secret
	kind, ok := s.types[t.dest.Type]
	if !ok {
		return nil, fmt.Errorf("destinations of type %s are unknown to this version", t.dest.Type)
	}
	t.kind = kind
	if t.mark, err = s.markOf(ctx, &t.assoc); err != nil {
		return nil, err
	}
	t.mount, err = s.host.MountOf(ctx, t.assoc.MountUUID)
	return t, err
}

// latest returns the newest version of a secret, if the mount has any.
func latest(ctx context.Context, m *engines.Mounted, secret string) (engines.Secret, error) {
	if m == nil {
		return engines.Secret{}, &destination.Error{
			Class: destination.Client, Code: "no_mount", Text: "the mount of the secret is not there; nothing is changed at the destination",
		}
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return engines.Secret{}, &destination.Error{
			Class: destination.Client, Code: "not_kv2", Text: "the mount is not a KV version 2 engine; nothing is changed at the destination",
		}
	}
	return source.LatestSecret(ctx, m.Mount, secret)
}

// aim returns what should be at the destination. The error says why nothing may be changed there.
func (s *Service) aim(ctx context.Context, t *target) ([]render.Item, error) {
	if t.assoc.Removing || t.assoc.Gone {
		return nil, nil
	}
	var err error
	if t.secret, err = latest(ctx, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if err := s.mayRead(ctx, t.assoc.Owner, t.mount, t.key.Secret); err != nil {
		return nil, err
	}
	if !t.secret.Live {
		return nil, nil
	}
	src := render.NewSource(t.dest.Type, t.dest.Name, s.host.NamespacePath(t.key.NS), t.key.NS, t.mount.Path, t.assoc.Accessor, t.key.Secret)
	items, err := t.assoc.plan(t.kind.Rules).Items(src, t.secret.Data)
	if err != nil {
		return nil, &destination.Error{Class: destination.Client, Code: "template", Text: err.Error()}
	}
	return items, nil
}

func (a *associationRecord) plan(r destination.Rules) *render.Plan {
	return &render.Plan{Rules: r, Granularity: a.Granularity, Template: a.Template, Format: a.ValueFormat, Include: a.Include, Exclude: a.Exclude}
}

// mayRead reports whether the owner of an association can still read its secret.
func (s *Service) mayRead(ctx context.Context, who engines.Principal, m *engines.Mounted, secret string) error {
	source := m.Engine.(engines.SecretSource)
	ok, err := s.host.MayRead(ctx, who, m.NamespaceID, m.Path+source.ReadPath(secret))
	if err != nil {
		return err
	}
	if !ok {
		return &destination.Error{
			Class: destination.Client, Code: "owner_lost_access",
			Text: "whoever associated the secret cannot read it any more; nothing is changed at the destination until somebody who can associates it again",
		}
	}
	return nil
}

// step is one name with what is to be done about it.
type step struct {
	action
	item   // what the ledger says, or will say
	wanted *wanted
	found  destination.Found
	tags   map[string]string
}

// plan looks at the destination and decides. It changes nothing.
func (s *Service) plan(ctx context.Context, t *target, dest destination.Destination, want []render.Item, refresh bool) ([]step, error) {
	rules := t.kind.Rules
	var steps []step
	named := map[string]bool{}
	for _, w := range want {
		st := step{item: item{Name: w.Name, Key: w.Key}}
		if had := t.link.item(w.Name, rules); had != nil {
			st.item = *had
			st.item.Key = w.Key
		}
		if w.Name != "" {
			named[fold(rules, w.Name)] = true
		}
		if w.Problem != "" {
			st.action = action{Do: actRefuse, Reason: w.Problem}
			steps = append(steps, st)
			continue
		}
		st.wanted = &wanted{Value: w.Value, Print: t.dest.print(w.Value), Force: refresh}
		st.tags = t.dest.CustomTags
		steps = append(steps, st)
	}
	for _, had := range t.link.Items {
		if !named[fold(rules, had.Name)] {
			steps = append(steps, step{item: had})
		}
	}
	for i := range steps {
		st := &steps[i]
		if st.Do == actRefuse {
			continue
		}
		if err := s.decideStep(ctx, t, dest, st); err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// decideStep looks at one name and decides.
func (s *Service) decideStep(ctx context.Context, t *target, dest destination.Destination, st *step) error {
	v := view{
		Want: st.wanted, Mark: t.mark, Marks: t.kind.Rules.Marks,
		Adopt:  slices.Contains(t.link.Adopt, fold(t.kind.Rules, st.Name)),
		Retain: t.assoc.Retain || t.assoc.Deletion == retainThere,
	}
	if had := t.link.item(st.Name, t.kind.Rules); had != nil {
		v.Had = had
	}
	if v.Want == nil && v.Had != nil && !v.Had.Owned && v.Had.Intent == nil {
		st.action = action{Do: actForget, Reason: "was never written"}
		return nil
	}
	var err error
	if st.found, err = dest.Read(ctx, st.Name); err != nil {
		return err
	}
	st.action = v.decide()
	if st.Do == actNone && v.Want != nil && !sameTags(st.item.Tags, st.tags) {
		st.action = action{Do: actUpdate, Reason: "has other tags", Ours: true}
	}
	return nil
}

func sameTags(had []string, want map[string]string) bool {
	return slices.Equal(slices.Sorted(slices.Values(had)), slices.Sorted(maps.Keys(want)))
}

// item returns what a link says of a name, or nil.
func (l *link) item(name string, r destination.Rules) *item {
	for i := range l.Items {
		if fold(r, l.Items[i].Name) == fold(r, name) {
			return &l.Items[i]
		}
	}
	return nil
}

func fold(r destination.Rules, name string) string {
	if r.Fold == nil {
		return name
	}
	return r.Fold(name)
}

// unchanged reports whether nothing has to be asked of the destination: all that should be there was written, by what we
// know.
func (t *target) unchanged(want []render.Item) bool {
	l := &t.link
	if l.Status != Synced || len(l.Items) != len(want) || l.unfinished() || l.Rules != t.assoc.rules() {
		return false
	}
	for _, w := range want {
		had := l.item(w.Name, t.kind.Rules)
		if had == nil || !had.Owned || had.Status != Synced || w.Problem != "" || !slices.Equal(had.Print, t.dest.print(w.Value)) || !sameTags(had.Tags, t.dest.CustomTags) {
			return false
		}
	}
	return true
}

// syncJob is the queue's do: it syncs a link, and queues it again if that is to be.
func (s *Service) syncJob(ctx context.Context, key jobKey, refresh bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	at, err := s.syncLink(ctx, key, refresh)
	switch {
	case errors.Is(err, errNothing) || ctx.Err() != nil:
	case err != nil:
		s.log.Warn("a secret could not be synced", "association", key.Association, "err", err)
		s.queue.push(key, time.Now().Add(10*time.Second), refresh, nil)
	case !at.IsZero():
		s.queue.push(key, at, false, nil)
	}
}

// syncLink brings one secret to its destination, and returns when it has to be looked at again. What the destination or its
// configuration is to blame for is in the link afterwards; an error is of our own storage.
func (s *Service) syncLink(ctx context.Context, key jobKey, refresh bool) (again time.Time, err error) {
	t, err := s.load(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	if held, err := s.held(ctx, t); held || err != nil {
		return time.Time{}, err // what releases it looks for what is due
	}
	want, err := s.aim(ctx, t)
	if err != nil {
		return s.stopped(ctx, t, err)
	}
	if !refresh && t.unchanged(want) {
		return s.noted(ctx, t)
	}
	dest, err := s.open(t)
	if err != nil {
		return s.stopped(ctx, t, err)
	}
	steps, err := s.plan(ctx, t, dest, want, refresh)
	if err != nil {
		return s.stopped(ctx, t, err)
	}
	if err := s.prepare(ctx, t, steps); err != nil {
		return time.Time{}, err
	}
	s.carryOut(ctx, t, dest, steps)
	return s.settled(ctx, t, steps)
}

// held reports whether somebody has stopped the work.
func (s *Service) held(ctx context.Context, t *target) (bool, error) {
	if t.dest.Paused || t.assoc.Paused {
		return true, nil
	}
	c, err := s.config(ctx)
	return c.Disabled, err
}

// prepare claims names and stores what is about to be done. Steps whose name belongs to another association become conflicts.
func (s *Service) prepare(ctx context.Context, t *target, steps []step) error {
	place, err := s.place(&t.dest)
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		if err := t.stillThere(ctx, tx); err != nil {
			return err
		}
		l := t.link
		l.Items = nil
		for i := range steps {
			st := &steps[i]
			if st.wanted != nil && st.Do != actConflict {
				if err := s.claim(ctx, tx, t, place, st); err != nil {
					return err
				}
			}
			it := st.item
			if st.writes() {
				it.Intent = &intent{At: time.Now(), Create: st.found.State == destination.Absent, Print: st.wanted.Print, Was: st.found.Version}
				st.item = it
			}
			if it.Owned || it.Intent != nil || st.wanted != nil {
				l.Items = append(l.Items, it)
			}
		}
		if !anyWrites(steps) {
			return nil // nothing is at risk: what comes of it is stored afterwards
		}
		return engines.PutRecord(tx, t.linkKey(), &l)
	})
	if err != nil {
		return err
	}
	if !anyWrites(steps) {
		return nil
	}
	return s.host.Record(ctx, t.event(steps))
}

func anyWrites(steps []step) bool {
	return slices.ContainsFunc(steps, func(st step) bool { return st.writes() || st.Do == actDelete })
}

func (t *target) linkKey() storage.Key {
	return linkKey(t.key.NS, t.key.Destination, t.key.Association, t.key.Secret)
}

// stillThere makes a transaction fail if the association, or its destination, has changed since it was loaded.
func (t *target) stillThere(ctx context.Context, tx *storage.Txn) error {
	var a associationRecord
	found, err := engines.GetRecord(ctx, tx, t.assoc.key(), &a)
	if err != nil {
		return err
	}
	e, err := tx.Get(ctx, t.dest.key())
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	if !found || !a.UpdatedAt.Equal(t.assoc.UpdatedAt) || a.Removing != t.assoc.Removing || a.Gone != t.assoc.Gone || e.Version != t.version {
		return errChanged
	}
	return nil
}

// errChanged has a link synced anew.
var errChanged = errors.New("the association or its destination has changed meanwhile")

// claim takes a name for the link, or makes the step a conflict.
func (s *Service) claim(ctx context.Context, tx *storage.Txn, t *target, place string, st *step) error {
	key := claimKey(t.dest.Type, place, fold(t.kind.Rules, st.Name))
	var c claim
	found, err := engines.GetRecord(ctx, tx, key, &c)
	if err != nil {
		return err
	}
	if found && !c.of(&t.dest, &t.assoc, t.key.Secret) {
		st.action = action{Do: actConflict, Reason: fmt.Sprintf("the name belongs to the secret %q, which is synced by the destination %s: choose another secret_name_template", c.Secret, c.Shown)}
		return nil
	}
	c = claim{NS: t.key.NS, Destination: t.dest.ID, Association: t.assoc.ID, Secret: t.key.Secret, Shown: t.dest.Type + "/" + t.dest.Name}
	return engines.PutRecord(tx, key, &c)
}

// writes reports whether the step writes a value.
func (st *step) writes() bool {
	switch st.Do {
	case actCreate, actUpdate, actRecover, actAdopt:
		return true
	}
	return false
}

// carryOut does what was decided: first what is to be there, then, if all of that is, what is not.
func (s *Service) carryOut(ctx context.Context, t *target, dest destination.Destination, steps []step) {
	whole := true
	for i := range steps {
		st := &steps[i]
		if st.wanted == nil && st.Do != actRefuse {
			continue
		}
		s.writeStep(ctx, t, dest, st)
		whole = whole && st.Status == Synced
	}
	for i := range steps {
		st := &steps[i]
		if st.Do != actDelete {
			continue
		}
		if !whole {
			st.outcome = outcome{Status: Unsyncing, Code: "waits", Cause: "is deleted when the secret's other names are right"}
			continue
		}
		if err := dest.Delete(ctx, st.found); err != nil {
			st.outcome = failure(err)
			continue
		}
		s.counts.deleted.Add(1)
		st.Do, st.Owned, st.Intent = actForget, false, nil
	}
}

// writeStep writes one name if it has to be.
func (s *Service) writeStep(ctx context.Context, t *target, dest destination.Destination, st *step) {
	switch st.Do {
	case actRefuse:
		st.outcome = outcome{Status: ClientError, Code: "limit", Cause: st.Reason}
	case actConflict:
		st.outcome = outcome{Status: Conflict, Code: "conflict", Cause: st.Reason}
	case actNone:
		st.done(destination.Held{ID: st.found.ID, Version: st.found.Version}, st.wanted.Print)
	default:
		it := destination.Item{
			Name: st.Name, Value: st.wanted.Value, Mark: t.mark, Tags: st.tags,
			Token: short(t.mark, st.Name, fmt.Sprint(t.secret.Version, t.secret.CreatedAt.UnixNano()), string(st.wanted.Print), st.found.Version),
		}
		for _, tag := range st.item.Tags {
			if _, still := st.tags[tag]; !still {
				it.OldTags = append(it.OldTags, tag)
			}
		}
		held, err := dest.Write(ctx, it, st.found)
		if err != nil {
			st.failed(err)
			return
		}
		s.counts.written.Add(1)
		st.item.Tags = slices.Sorted(maps.Keys(st.tags))
		st.done(held, st.wanted.Print)
	}
}

// done notes that a name is right.
func (st *step) done(h destination.Held, print []byte) {
	st.Owned, st.ID, st.Version, st.Print, st.Intent, st.Drift = true, h.ID, h.Version, print, nil, ""
	st.outcome = outcome{Status: Synced}
}

// failed notes a write that failed. The intent stays if it may have been done.
func (st *step) failed(err error) {
	st.outcome = failure(err)
	var e *destination.Error
	if errors.As(err, &e) && !e.Unknown {
		st.Intent = nil
	}
}

// noted stores that a new version of the secret changes nothing at the destination.
func (s *Service) noted(ctx context.Context, t *target) (time.Time, error) {
	if t.link.Version == t.secret.Version && t.link.VersionAt.Equal(t.secret.CreatedAt) {
		return t.ends(), nil
	}
	t.link.Version, t.link.VersionAt = t.secret.Version, t.secret.CreatedAt
	t.link.NextRetry = time.Time{}
	_, err := storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		if err := t.stillThere(ctx, tx); err != nil {
			return err
		}
		return engines.PutRecord(tx, t.linkKey(), &t.link)
	})
	return t.ends(), err
}

// ends is when the secret will count as deleted by itself; zero: never.
func (t *target) ends() time.Time {
	if t.secret.Live && t.secret.DeletedAt.After(time.Now()) {
		return t.secret.DeletedAt
	}
	return time.Time{}
}

// stopped stores why a secret could not be synced at all.
func (s *Service) stopped(ctx context.Context, t *target, why error) (time.Time, error) {
	var e *destination.Error
	if !errors.As(why, &e) {
		s.log.Warn("a secret could not be synced", "association", t.assoc.ID, "err", why)
	}
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	return s.store(ctx, t, failure(why), t.link.Items, "", retryAfter(why))
}

// settled stores what came of the steps, and gives back names that are not needed any more.
func (s *Service) settled(ctx context.Context, t *target, steps []step) (time.Time, error) {
	var items []item
	var left []string // names that are free again
	var after time.Duration
	now := time.Now()
	did := map[string]int{}
	for i := range steps {
		st := &steps[i]
		if st.Do == actForget {
			if st.writesNothing() {
				left = append(left, st.Name)
			}
			did["removed"]++
			continue
		}
		if st.Status == Synced && st.writes() {
			did[st.Do+"d"]++
		}
		st.item.UpdatedAt = now
		items = append(items, st.item)
	}
	total := summary(items, t.secret.Live)
	if total.Status == Synced || total.Status == Unsynced {
		t.link.Adopt = nil
	}
	return s.storeFreeing(ctx, t, total, items, said(did), after, left)
}

// writesNothing reports whether nothing of the name is left with us.
func (st *step) writesNothing() bool { return st.wanted == nil }

func said(did map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(did)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, did[what]))
	}
	return strings.Join(parts, ", ")
}

// worse orders statuses, the worst last.
var worse = []string{Synced, Unsynced, Unsyncing, Pending, ExternalError, Conflict, ClientError, InternalError}

// summary is the status of a secret, from those of its names.
func summary(items []item, live bool) outcome {
	if len(items) == 0 {
		if live {
			return outcome{Status: Synced, Code: "empty", Cause: "the secret has no keys that are chosen"}
		}
		return outcome{Status: Unsynced, Code: "no_version", Cause: "the secret has no live version"}
	}
	total := items[0].outcome
	for _, it := range items[1:] {
		if slices.Index(worse, it.Status) > slices.Index(worse, total.Status) {
			total = it.outcome
		}
	}
	return total
}

func retryAfter(err error) time.Duration {
	var e *destination.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

func (s *Service) store(ctx context.Context, t *target, o outcome, items []item, did string, after time.Duration) (time.Time, error) {
	return s.storeFreeing(ctx, t, o, items, did, after, nil)
}

// storeFreeing stores how an attempt ended, and gives up the claims of names. A link of an association that is being removed,
// with nothing left of it, goes, and with the last one the association.
func (s *Service) storeFreeing(ctx context.Context, t *target, o outcome, items []item, did string, after time.Duration, left []string) (time.Time, error) {
	place, err := s.place(&t.dest)
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	l := t.link
	if l.outcome != o || did != "" {
		l.UpdatedAt = now
		l.History = append(l.History, event{At: now, Version: t.secret.Version, Done: did, outcome: o})
		l.History = l.History[max(0, len(l.History)-maxHistory):]
	}
	l.outcome, l.Items, l.LastAttempt, l.Rules = o, items, now, t.assoc.rules()
	l.Version, l.VersionAt = t.secret.Version, t.secret.CreatedAt
	switch o.Status {
	case Synced, Unsynced:
		l.Attempts, l.NextRetry, l.LastSuccess = 0, time.Time{}, now
	default:
		l.Attempts++
		l.NextRetry = now.Add(max(after, backoff(o.Status, l.Attempts)))
		s.counts.failed.Add(1)
	}
	removed := (t.assoc.Removing || t.assoc.Gone) && len(items) == 0
	_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		if err := t.stillThere(ctx, tx); err != nil {
			return err
		}
		for _, name := range left {
			key := claimKey(t.dest.Type, place, fold(t.kind.Rules, name))
			var c claim
			found, err := engines.GetRecord(ctx, tx, key, &c)
			if err != nil {
				return err
			}
			if found && c.of(&t.dest, &t.assoc, t.key.Secret) {
				tx.Delete(key)
			}
		}
		if !removed {
			return engines.PutRecord(tx, t.linkKey(), &l)
		}
		tx.Delete(t.linkKey())
		return s.dropIfLast(ctx, tx, t)
	})
	if err != nil {
		return time.Time{}, err
	}
	switch {
	case removed && t.assoc.Selector && t.key.Secret != "": // whoever of several was the last may not have known it
		s.queue.push(jobKey{t.key.NS, t.key.Destination, t.key.Association, ""}, now.Add(settle), false, nil)
		return time.Time{}, nil
	case !removed && !l.NextRetry.IsZero():
		return l.NextRetry, nil
	}
	return t.ends(), nil
}

// dropIfLast deletes an association that is being removed with its last link.
func (s *Service) dropIfLast(ctx context.Context, tx *storage.Txn, t *target) error {
	links, err := s.host.Store().Scan(ctx, linkKey(t.key.NS, t.key.Destination, t.key.Association, ""), "", 2)
	if err != nil {
		return err
	}
	for _, e := range links {
		if e.Key != t.linkKey() {
			return nil
		}
	}
	tx.Delete(t.assoc.key())
	return nil
}

// backoff is how long to wait before the next attempt: soon where it may pass, longer where somebody has to do something.
func backoff(status string, attempts int) time.Duration {
	first, longest := 5*time.Second, 5*time.Minute
	if status == ClientError || status == Conflict {
		first, longest = time.Minute, time.Hour
	}
	d := min(first<<min(attempts-1, 16), longest)
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter, not a secret
}
