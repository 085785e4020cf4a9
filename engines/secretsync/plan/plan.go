// Package plan decides what to do about one name at a destination. A decision is a pure function of a View: the desired value, the last
// applied state, and what the destination has. Previews and syncs use the same decisions. Start reading at View.Decide.
package plan

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// Actions on a name. Previews show the words.
const (
	None     = "none"     // in sync
	Create   = "create"   // absent
	Update   = "update"   // owned, with another value
	Recover  = "recover"  // owned and soft-deleted; the name is not free
	Adopt    = "adopt"    // of another client, and its adoption was requested
	Delete   = "delete"   // owned, and not desired any more
	Retain   = "retain"   // owned, not desired now, and to be retained
	Forget   = "forget"   // not desired any more, and absent or not owned
	Conflict = "conflict" // of another client
	Reject   = "refuse"   // cannot be written, whatever the destination has
	Wait     = "wait"     // the destination may not show the last write yet
)

// Action is a decision with its reason.
type Action struct {
	Do     string
	Reason string
	// OwnedThere says that secret sync owns what the destination has.
	OwnedThere bool
	// Overwrites says that the action ends a change that another client has made to an owned name.
	Overwrites bool
	// LeavesChange says that secret sync lets go of the name because another client has changed it since it was last written.
	LeavesChange bool
}

// Desired is the desired value of a name; nil: none.
type Desired struct {
	Value       []byte
	Fingerprint []byte
}

// View is the input of a decision.
type View struct {
	Now          time.Time
	Desired      *Desired
	LastApplied  *state.Item // nil: none
	Found        destination.Found
	OwnerTag     string // that the destination should have
	HasOwnerTags bool   // the destination stores ownership tags
	// PropagationDelay is how long after a write reads may return an older state.
	PropagationDelay time.Duration
	// Adopt takes a name of another client over, AdoptEqual only if it has the desired value already.
	Adopt, AdoptEqual bool
	// Repair overwrites what other clients have written to owned names. It deletes nothing.
	Repair bool
	// KeepChanges makes a change of another client to an owned name a conflict.
	KeepChanges bool
	// FoundFingerprint is that of Found.Value, if Found.Known.
	FoundFingerprint []byte
	// Retain keeps names that are not desired any more. With Ending none will be desired again.
	Retain, Ending bool
}

// Without ownership tags, a write with unknown outcome is recognised by its time: the destination's clock may be maxClockLag behind, and
// the write may have been made maxWriteDelay after its intent was stored.
const (
	maxClockLag   = 2 * time.Minute
	maxWriteDelay = 10 * time.Minute
)

// unknownOutcomeWindow is how long after its intent a write with unknown outcome may still take effect.
const unknownOutcomeWindow = time.Minute

// isOwned reports whether secret sync owns what the destination has: the sync state must say so, and the destination must not contradict
// it. Otherwise it returns the reason.
func (v *View) isOwned() (bool, string) {
	f, had := v.Found, v.LastApplied
	switch {
	case v.HasOwnerTags && f.OwnerTag == v.OwnerTag:
		return true, "" // even without sync state: the ownership tag cannot be forged, and is of this association and name only
	case had == nil || !had.Owned && had.Intent == nil:
		return false, "exists and was not made by this association"
	case v.HasOwnerTags && f.OwnerTag == "":
		return false, "has no ownership tag any more: another client has taken it over"
	case v.HasOwnerTags:
		return false, "has another ownership tag: another client has taken it over"
	case had.Owned && f.ID == had.ID && (f.Version == had.Version || v.Repair && v.Desired != nil):
		return true, ""
	case v.mayBeIntent():
		return true, ""
	case had.Owned && f.ID != had.ID:
		return false, "was removed and created again by another client"
	}
	return false, "was changed by another client"
}

// mayBeIntent reports whether the write of the intent may have made what the destination has: it was changed at that time, and has the
// same identity.
func (v *View) mayBeIntent() bool {
	in, at := v.LastApplied.Intent, v.Found.ChangedAt
	if in == nil || at.IsZero() || v.LastApplied.Owned && !in.Create && v.Found.ID != v.LastApplied.ID {
		return false
	}
	return at.After(in.At.Add(-maxClockLag)) && at.Before(in.At.Add(maxWriteDelay))
}

// Decide returns the action on a name.
func (v *View) Decide() Action {
	if v.Desired == nil {
		return v.DecideRemoval()
	}
	f := v.Found
	if f.State == destination.Absent {
		if v.LastApplied != nil && v.LastApplied.Owned {
			return Action{Do: Create, Reason: "was removed at the destination"}
		}
		return Action{Do: Create, Reason: "is not there yet"}
	}
	ours, why := v.isOwned()
	switch {
	case !ours && f.State == destination.Deleted && v.isOfThisInstallation():
		return Action{Do: Recover, Reason: "was deleted by another association, which has given it up", OwnedThere: true}
	case !ours && v.Adopt:
		return Action{Do: Adopt, Reason: "is adopted, as requested"}
	case !ours && v.AdoptEqual && f.State == destination.Present && f.Known && SameValue(f.Value, v.Desired.Value):
		return Action{Do: Adopt, Reason: "has the same value already, and is adopted, as requested"}
	case !ours && v.AdoptEqual && f.Known:
		return Action{Do: Conflict, Reason: why + ", with another value"}
	case !ours:
		return Action{Do: Conflict, Reason: why}
	case f.State == destination.Deleted:
		return Action{Do: Recover, Reason: "was deleted at the destination and is ours", OwnedThere: true}
	case v.isInSync():
		return Action{Do: None, Reason: "is as it should be", OwnedThere: true}
	case !v.isChanged():
		return Action{Do: Update, Reason: "has another value", OwnedThere: true}
	case v.Adopt:
		return Action{Do: Adopt, Reason: "is adopted, as requested"}
	case v.KeepChanges:
		return Action{Do: Conflict, Reason: "was changed by another client since it was last written: adopt it to overwrite the change, or set another drift_policy"}
	}
	return Action{Do: Update, Reason: "has another value, of another client, which is overwritten", OwnedThere: true, Overwrites: true}
}

// isChanged reports whether another client has changed the value of an owned name since secret sync has written it, as far as that can be
// known. A value that secret sync did write, or may have written, is no change; one that is not in the sync state is.
func (v *View) isChanged() bool {
	f, had := v.Found, v.LastApplied
	switch {
	case f.State != destination.Present:
		return false
	case had == nil:
		return true
	case had.Owned && f.ID == had.ID && f.Version == had.Version:
		return false
	case f.Known && (bytes.Equal(v.FoundFingerprint, had.Fingerprint) || had.Intent != nil && had.Intent.MayHaveWritten(v.FoundFingerprint)):
		return false
	case !f.Known && v.mayBeIntent():
		return false
	}
	// Within the propagation delay, an older state is one from before the last write. Destinations give times in milliseconds.
	return !had.Owned || !v.Now.Before(had.WrittenAt.Add(v.PropagationDelay)) || !f.ChangedAt.Before(had.WrittenAt.Truncate(time.Millisecond))
}

// SameValue reports whether two values are the same, or the same JSON object in another form.
func SameValue(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	first, ok := object(a)
	second, also := object(b)
	return ok && also && reflect.DeepEqual(first, second)
}

// IsObject reports whether a value is a JSON object.
func IsObject(value []byte) bool {
	_, ok := object(value)
	return ok
}

// object decodes a JSON object; numbers stay as they are written.
func object(value []byte) (map[string]any, bool) {
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if d.Decode(&v) != nil || v == nil {
		return nil, false
	}
	_, err := d.Token()
	return v, err == io.EOF
}

// isOfThisInstallation reports whether an association of this installation has written what the destination has. The claim of the name
// says whether it still owns it.
func (v *View) isOfThisInstallation() bool {
	ours, _, _ := strings.Cut(v.OwnerTag, "-")
	theirs, _, _ := strings.Cut(v.Found.OwnerTag, "-")
	return v.HasOwnerTags && ours == theirs
}

// isInSync reports whether the destination has the desired value. A value that cannot be read is compared by the version and the
// fingerprint of the last write.
func (v *View) isInSync() bool {
	if v.Found.Known {
		return bytes.Equal(v.Found.Value, v.Desired.Value)
	}
	had := v.LastApplied
	return had != nil && had.Owned && had.Intent == nil && had.ID == v.Found.ID && had.Version == v.Found.Version && bytes.Equal(had.Fingerprint, v.Desired.Fingerprint)
}

const RetainReason = "stays at the destination, as its deletion policy says"

// DecideRemoval returns the action on a name that is not desired any more.
func (v *View) DecideRemoval() Action {
	switch {
	case v.Retain && !v.Ending:
		return Action{Do: Retain, Reason: RetainReason}
	case v.Retain:
		return Action{Do: Forget, Reason: RetainReason}
	case v.Found.State != destination.Present && v.Now.Before(v.VisibleAt()):
		return Action{Do: Wait, Reason: "may have been written just now, and the destination does not show it yet"}
	case v.Found.State != destination.Present:
		return Action{Do: Forget, Reason: "is not there any more"}
	}
	if ours, why := v.isOwned(); !ours {
		// Without an ownership tag, another client need not own what it has changed.
		return Action{Do: Forget, Reason: "stays at the destination: it " + why, LeavesChange: !v.HasOwnerTags && v.LastApplied.Owned}
	}
	changed := v.isChanged()
	switch {
	case changed && v.KeepChanges && v.Ending:
		return Action{Do: Forget, Reason: "stays at the destination: it was changed by another client", LeavesChange: true}
	case changed && v.KeepChanges:
		return Action{Do: Retain, Reason: "stays at the destination: it was changed by another client"}
	}
	return Action{Do: Delete, Reason: "is not wanted any more", OwnedThere: true, Overwrites: changed}
}

// VisibleAt returns when an absent name is certainly absent. A time far ahead is of a clock that was wrong, and counts as past.
func (v *View) VisibleAt() (at time.Time) {
	switch had := v.LastApplied; {
	case had == nil:
	case had.Intent != nil:
		at = had.Intent.At.Add(max(unknownOutcomeWindow, v.PropagationDelay))
	case had.Owned:
		at = had.WrittenAt.Add(v.PropagationDelay)
	}
	if at.After(v.Now.Add(maxClockLag)) {
		return time.Time{}
	}
	return at
}
