package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// takenReason begins the reasons of conflicts with another association.
const takenReason = "the name belongs to "

// sharedReason is the cause of a name that another association of the same secret owns. It is no conflict.
const sharedReason = "is synced by another association of the secret with this destination"

// claimName claims a name for the link, or turns the step into a conflict. For a step that is a conflict already it only adds the owner.
func (s *Syncer) claimName(ctx context.Context, tx *storage.Txn, t *target, place string, st *step) error {
	key := state.ClaimKey(t.dest.Type, place, state.Fold(t.dest.Rules, st.Name))
	var c state.Claim
	found, err := engines.GetRecord(ctx, tx, key, &c)
	if err != nil {
		return err
	}
	size := 0
	if st.desired != nil {
		size = len(st.desired.Value)
	}
	ours := found && c.BelongsTo(&t.dest.Destination, &t.assoc, t.key.Secret)
	if found && !ours {
		by, err := c.Owner(ctx, tx)
		if err != nil {
			return err
		}
		if by != nil {
			if st.sharedName = t.sharesSecret(&c, by) && !st.Owned && st.Intent == nil; st.sharedName {
				st.Action = plan.Action{Do: plan.None, Reason: sharedReason}
			} else {
				st.Action = plan.Action{Do: plan.Conflict, Reason: t.ownerReason(by, c.Secret)}
			}
			s.waiting.Add(key, t.key)
			return nil
		}
	}
	if ours && c.Bytes == size || st.Do == plan.Conflict {
		return nil
	}
	st.claimedNow = st.claimedNow || !ours
	c = state.Claim{NS: t.key.NS, Destination: t.dest.ID, Association: t.assoc.ID, Secret: t.key.Secret, Type: t.dest.Type, Name: t.dest.Name, Bytes: size}
	return engines.PutRecord(tx, key, &c)
}

// ownerElsewhere returns why a name belongs to another association, by its ownership tag and that association's links; "" if it does
// not. Claims alone do not detect this if two destinations name one location differently, such as an account and the environment's.
func (s *Syncer) ownerElsewhere(ctx context.Context, t *target, f destination.Found) (whose string, err error) {
	parts := strings.Split(f.OwnerTag, "-")
	if len(parts) != 3 || !strings.HasPrefix(t.ownerTag, parts[0]+"-") || parts[1] == t.assoc.ID {
		return "", nil
	}
	a := s.Associations.Get(parts[1])
	if a == nil {
		return "", nil
	}
	err = state.Scan(ctx, s.Host.Store(), state.LinkKey(a.NS, a.Destination, a.ID, ""), func(_ storage.Key, l *state.Link) bool {
		if it := l.Item(f.Name, t.dest.Rules); it != nil && it.Owned && !it.Retained {
			whose = t.ownerReason(a, l.Secret)
		}
		return whose == ""
	})
	return whose, err
}

// ownerReason is the reason of a conflict with another association. It does not disclose destinations of other namespaces, nor secrets
// of other mounts.
func (t *target) ownerReason(a *state.Association, secret string) string {
	who := fmt.Sprintf("the secret %q, which is synced by the destination %s/%s", secret, a.Type, a.Name)
	switch {
	case a.NS != t.key.NS:
		who = "a secret of another namespace"
	case a.MountUUID != t.assoc.MountUUID:
		who = fmt.Sprintf("a secret of another mount, which is synced by the destination %s/%s", a.Type, a.Name)
	}
	return takenReason + who + ": choose another secret_name_template"
}

// sharesSecret reports whether a claim is of another association of the same secret with the same destination, which needs no action:
// one of the two has a prefix.
func (t *target) sharesSecret(c *state.Claim, by *state.Association) bool {
	return c.Destination == t.dest.ID && c.Secret == t.key.Secret && by.MountUUID == t.assoc.MountUUID
}

// retainIfClaimed turns the deletion of a name into Forget if another association has claimed it: without ownership tags only the claim
// detects that. If the claim cannot be read, the name is retained, too.
func (t *target) retainIfClaimed(ctx context.Context, tx *storage.Txn, place string, st *step) error {
	var c state.Claim
	found, err := engines.GetRecord(ctx, tx, state.ClaimKey(t.dest.Type, place, state.Fold(t.dest.Rules, st.Name)), &c)
	if err != nil || !found || c.BelongsTo(&t.dest.Destination, &t.assoc, t.key.Secret) {
		return err
	}
	by, err := c.Owner(ctx, tx)
	if by != nil {
		st.Action = plan.Action{Do: plan.Forget, Reason: "stays at the destination: another association has it by now"}
	}
	return err
}

// WakeWaiters queues the links that wait for names.
func (s *Syncer) WakeWaiters(names ...storage.Key) {
	for _, key := range s.waiting.Take(names...) {
		s.Queue.Push(key, time.Now(), false, nil)
	}
}

// checkCapacity rejects names and values that exceed the limits of the location, counting what secret sync has claimed there.
func (s *Syncer) checkCapacity(ctx context.Context, t *target, steps []step) error {
	rules := t.dest.Rules
	if rules.MaxNames == 0 && rules.MaxTotal == 0 {
		return nil
	}
	if own, ok := t.dest.Config.(interface{ MaxNames() int }); ok { // the limit depends on the configuration
		rules.MaxNames = own.MaxNames()
	}
	place := t.dest.Location
	names, bytes := 0, 0
	own := map[storage.Key]int{} // bytes
	_, err := Survey(ctx, s, state.Area(state.RootNS, "c/"+state.Hash(t.dest.Type, place)+"/"), func(key storage.Key, c *state.Claim) bool {
		if c.BelongsTo(&t.dest.Destination, &t.assoc, t.key.Secret) {
			own[key] = c.Bytes
			return true
		}
		names++
		bytes += c.Bytes
		return true
	})
	if err != nil {
		return err
	}
	old := func(st, by *step) bool { // deleted only after its replacement is written, so it counts until then
		return st.desired == nil && st.Do != plan.Reject && st.Owned && !t.retainsNames() && !st.Retained && by.replaces(st)
	}
	for i := range steps {
		st := &steps[i]
		if st.desired == nil && slices.ContainsFunc(steps, func(by step) bool { return by.desired != nil && old(st, &by) }) {
			names++
			bytes += own[state.ClaimKey(t.dest.Type, place, state.Fold(rules, st.Name))]
		}
	}
	for i := range steps {
		st := &steps[i]
		if st.desired == nil {
			continue
		}
		names++
		bytes += len(st.desired.Value)
		full := ""
		switch {
		case rules.MaxNames > 0 && names > rules.MaxNames && !st.Owned:
			full = fmt.Sprintf("the destination has room for %d names, and all are in use by secret sync", rules.MaxNames)
		case rules.MaxTotal > 0 && bytes > rules.MaxTotal:
			full = fmt.Sprintf("all values together would be %d bytes, the destination takes %d at most", bytes, rules.MaxTotal)
		default:
			continue
		}
		if i := slices.IndexFunc(steps, func(was step) bool { return old(&was, st) }); i >= 0 {
			full += fmt.Sprintf("; the old name %q goes only when the new one is there: make room for both, or dissociate the secret and associate it again", steps[i].Name)
		} else {
			full += ": choose less with include or exclude, or dissociate something else"
		}
		st.Action, st.desired = plan.Action{Do: plan.Reject, Reason: full}, nil
	}
	return nil
}

// AnyNameFree reports whether a name that the link waits for is free. The link is queued when one of the others is released.
func (s *Syncer) AnyNameFree(ctx context.Context, d *connection.Known, l *state.Link, who state.LinkID) (bool, error) {
	for i := range l.Items {
		if l.Items[i].Code != state.CodeNameTaken {
			continue
		}
		var c state.Claim
		key := state.ClaimKey(d.Type, d.Location, state.Fold(d.Rules, l.Items[i].Name))
		s.waiting.Add(key, who)
		found, err := engines.GetRecord(ctx, s.Host.Store(), key, &c)
		var by *state.Association
		if found && err == nil {
			by, err = c.Owner(ctx, s.Host.Store())
		}
		switch {
		case s.Unreadable(err): // the owner is unknown
		case err != nil || by == nil:
			return err == nil, err
		}
	}
	return false, nil
}
