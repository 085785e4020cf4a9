// Package plan decides what to do about one name at a destination. A decision is a pure function of a View: the desired value, the last
// applied state, and what the destination has. Previews and syncs use the same decisions. Start reading at View.Decide.
package plan

import (
	"bytes"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// What is to be done about a name. Plans show the words.
const (
	None     = "none"     // it is as it should be
	Create   = "create"   // it is not there
	Update   = "update"   // ours, with another value
	Recover  = "recover"  // ours, deleted, and not free
	Adopt    = "adopt"    // somebody else's, and we were told to take it over
	Delete   = "delete"   // ours, and not wanted any more
	Retain   = "retain"   // not wanted now, and to be left; it is ours still, in case it is wanted again
	Forget   = "forget"   // not wanted any more, and not there, or to be left
	Conflict = "conflict" // somebody else's
	Reject   = "refuse"   // it cannot be written, whatever is there
	Wait     = "wait"     // what was found may not be what is there
)

// action is a decision, with its reason for people.
type Action struct {
	Do     string
	Reason string
	// Ours says that what was found is ours.
	OwnedThere bool
}

// wanted is what should be under a name; nil: nothing.
type Desired struct {
	Value       []byte
	Fingerprint []byte
}

// view is what a decision is made from. A decision is a pure function of it, for plans and for what is done.
type View struct {
	Now          time.Time
	Desired      *Desired
	LastApplied  *state.Item // what the ledger says; nil: nothing
	Found        destination.Found
	OwnerTag     string // ours
	HasOwnerTags bool   // the destination keeps marks
	// Settles is for how long after a write what is found may be older.
	PropagationDelay time.Duration
	Adopt            bool
	// Repair has what somebody else has written over what is ours written again. It has nothing deleted.
	Repair bool
	// Retain has what is not wanted any more left where it is. With Ending nothing will be wanted again.
	Retain, Ending bool
}

// A write whose answer was lost is recognised by its time, where there are no marks: the destination's clock may be this much
// behind ours, and the write may have been made this much after it was noted.
const (
	maxClockLag   = 2 * time.Minute
	maxWriteDelay = 10 * time.Minute
)

// uncertain is how long after it was sent a write may still be made whose answer was lost.
const unknownOutcomeWindow = time.Minute

// ours reports whether what was found is ours: the ledger must say that it is, and the destination must not contradict it.
func (v *View) isOwned() (bool, string) {
	f, had := v.Found, v.LastApplied
	switch {
	case v.HasOwnerTags && f.Mark == v.OwnerTag:
		return true, "" // even if the ledger has lost it: nobody else can make the mark, and it is of this association and name only
	case had == nil || !had.Owned && had.Intent == nil:
		return false, "exists and was not made by this association"
	case v.HasOwnerTags && f.Mark == "":
		return false, "does not bear our mark any more: somebody else has taken it over"
	case v.HasOwnerTags:
		return false, "has another mark: somebody else has taken it over"
	case had.Owned && f.ID == had.ID && (f.Version == had.Version || v.Repair && v.Desired != nil):
		return true, ""
	case v.mayBeIntent():
		return true, ""
	case had.Owned && f.ID != had.ID:
		return false, "was removed and made again by somebody else"
	}
	return false, "was changed by somebody else"
}

// mayBeIntent reports whether what was found may be what the intent was about to write: it came about when that was
// attempted, and is the thing that was to be written.
func (v *View) mayBeIntent() bool {
	in, at := v.LastApplied.Intent, v.Found.ChangedAt
	if in == nil || at.IsZero() || v.LastApplied.Owned && !in.Create && v.Found.ID != v.LastApplied.ID {
		return false
	}
	return at.After(in.At.Add(-maxClockLag)) && at.Before(in.At.Add(maxWriteDelay))
}

// decide says what is to be done about a name.
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
		return Action{Do: Adopt, Reason: "is taken over, as somebody has asked"}
	case !ours:
		return Action{Do: Conflict, Reason: why}
	case f.State == destination.Deleted:
		return Action{Do: Recover, Reason: "was deleted at the destination and is ours", OwnedThere: true}
	case v.isInSync():
		return Action{Do: None, Reason: "is as it should be", OwnedThere: true}
	}
	return Action{Do: Update, Reason: "has another value", OwnedThere: true}
}

// ownLeftover reports whether what was found is of this installation. Whether its association has given it up, the claim of the
// name says.
func (v *View) isOfThisInstallation() bool {
	ours, _, _ := strings.Cut(v.OwnerTag, "-")
	theirs, _, _ := strings.Cut(v.Found.Mark, "-")
	return v.HasOwnerTags && ours == theirs
}

// same reports whether what is there is what should be there. What cannot be read back is that if it is our own last write, and
// wrote the same.
func (v *View) isInSync() bool {
	if v.Found.Known {
		return bytes.Equal(v.Found.Value, v.Desired.Value)
	}
	had := v.LastApplied
	return had != nil && had.Owned && had.Intent == nil && had.ID == v.Found.ID && had.Version == v.Found.Version && bytes.Equal(had.Fingerprint, v.Desired.Fingerprint)
}

const RetainReason = "stays at the destination, as its deletion policy says"

// decideGone says what is to be done about a name that is not wanted any more.
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
		return Action{Do: Forget, Reason: "stays at the destination: it " + why}
	}
	return Action{Do: Delete, Reason: "is not wanted any more", OwnedThere: true}
}

// shows is from when on it can be believed that nothing is there. A time to come is of a clock that was ahead, and long past.
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
