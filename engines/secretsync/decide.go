package secretsync

import (
	"bytes"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// What is to be done about a name. Plans show the words.
const (
	actNone     = "none"     // it is as it should be
	actCreate   = "create"   // it is not there
	actUpdate   = "update"   // ours, with another value
	actRecover  = "recover"  // ours, deleted, and not free
	actAdopt    = "adopt"    // somebody else's, and we were told to take it over
	actDelete   = "delete"   // ours, and not wanted any more
	actRetain   = "retain"   // not wanted now, and to be left; it is ours still, in case it is wanted again
	actForget   = "forget"   // not wanted any more, and not there, or to be left
	actConflict = "conflict" // somebody else's
	actRefuse   = "refuse"   // it cannot be written, whatever is there
	actWait     = "wait"     // what was found may not be what is there
)

// action is a decision, with its reason for people.
type action struct {
	Do     string
	Reason string
	// Ours says that what was found is ours.
	Ours bool
}

// wanted is what should be under a name; nil: nothing.
type wanted struct {
	Value []byte
	Print []byte
}

// view is what a decision is made from. A decision is a pure function of it, for plans and for what is done.
type view struct {
	Now   time.Time
	Want  *wanted
	Had   *item // what the ledger says; nil: nothing
	Found destination.Found
	Mark  string // ours
	Marks bool   // the destination keeps marks
	// Settles is for how long after a write what is found may be older.
	Settles time.Duration
	Adopt   bool
	// Repair has what somebody else has written over what is ours written again. It has nothing deleted.
	Repair bool
	// Retain has what is not wanted any more left where it is. With Ending nothing will be wanted again.
	Retain, Ending bool
}

// A write whose answer was lost is recognised by its time, where there are no marks: the destination's clock may be this much
// behind ours, and the write may have been made this much after it was noted.
const (
	behind = 2 * time.Minute
	late   = 10 * time.Minute
)

// uncertain is how long after it was sent a write may still be made whose answer was lost.
const uncertain = time.Minute

// ours reports whether what was found is ours: the ledger must say that it is, and the destination must not contradict it.
func (v *view) ours() (bool, string) {
	f, had := v.Found, v.Had
	switch {
	case v.Marks && f.Mark == v.Mark:
		return true, "" // even if the ledger has lost it: nobody else can make the mark, and it is of this association and name only
	case had == nil || !had.Owned && had.Intent == nil:
		return false, "exists and was not made by this association"
	case v.Marks && f.Mark == "":
		return false, "does not bear our mark any more: somebody else has taken it over"
	case v.Marks:
		return false, "has another mark: somebody else has taken it over"
	case had.Owned && f.ID == had.ID && (f.Version == had.Version || v.Repair && v.Want != nil):
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
func (v *view) mayBeIntent() bool {
	in, at := v.Had.Intent, v.Found.ChangedAt
	if in == nil || at.IsZero() || v.Had.Owned && !in.Create && v.Found.ID != v.Had.ID {
		return false
	}
	return at.After(in.At.Add(-behind)) && at.Before(in.At.Add(late))
}

// decide says what is to be done about a name.
func (v *view) decide() action {
	if v.Want == nil {
		return v.decideGone()
	}
	f := v.Found
	if f.State == destination.Absent {
		if v.Had != nil && v.Had.Owned {
			return action{Do: actCreate, Reason: "was removed at the destination"}
		}
		return action{Do: actCreate, Reason: "is not there yet"}
	}
	ours, why := v.ours()
	switch {
	case !ours && f.State == destination.Deleted && v.ownLeftover():
		return action{Do: actRecover, Reason: "was deleted by another association, which has given it up", Ours: true}
	case !ours && v.Adopt:
		return action{Do: actAdopt, Reason: "is taken over, as somebody has asked"}
	case !ours:
		return action{Do: actConflict, Reason: why}
	case f.State == destination.Deleted:
		return action{Do: actRecover, Reason: "was deleted at the destination and is ours", Ours: true}
	case v.same():
		return action{Do: actNone, Reason: "is as it should be", Ours: true}
	}
	return action{Do: actUpdate, Reason: "has another value", Ours: true}
}

// ownLeftover reports whether what was found is of this installation. Whether its association has given it up, the claim of the
// name says.
func (v *view) ownLeftover() bool {
	ours, _, _ := strings.Cut(v.Mark, "-")
	theirs, _, _ := strings.Cut(v.Found.Mark, "-")
	return v.Marks && ours == theirs
}

// same reports whether what is there is what should be there. What cannot be read back is that if it is our own last write, and
// wrote the same.
func (v *view) same() bool {
	if v.Found.Known {
		return bytes.Equal(v.Found.Value, v.Want.Value)
	}
	had := v.Had
	return had != nil && had.Owned && had.Intent == nil && had.ID == v.Found.ID && had.Version == v.Found.Version && bytes.Equal(had.Print, v.Want.Print)
}

const retainReason = "stays at the destination, as its deletion policy says"

// decideGone says what is to be done about a name that is not wanted any more.
func (v *view) decideGone() action {
	switch {
	case v.Retain && !v.Ending:
		return action{Do: actRetain, Reason: retainReason}
	case v.Retain:
		return action{Do: actForget, Reason: retainReason}
	case v.Found.State != destination.Present && v.Now.Before(v.shows()):
		return action{Do: actWait, Reason: "may have been written just now, and the destination does not show it yet"}
	case v.Found.State != destination.Present:
		return action{Do: actForget, Reason: "is not there any more"}
	}
	if ours, why := v.ours(); !ours {
		return action{Do: actForget, Reason: "stays at the destination: it " + why}
	}
	return action{Do: actDelete, Reason: "is not wanted any more", Ours: true}
}

// shows is from when on it can be believed that nothing is there. A time to come is of a clock that was ahead, and long past.
func (v *view) shows() (at time.Time) {
	switch had := v.Had; {
	case had == nil:
	case had.Intent != nil:
		at = had.Intent.At.Add(max(uncertain, v.Settles))
	case had.Owned:
		at = had.WrittenAt.Add(v.Settles)
	}
	if at.After(v.Now.Add(behind)) {
		return time.Time{}
	}
	return at
}
