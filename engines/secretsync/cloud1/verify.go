package cloud1

import (
	"errors"
	"slices"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Probe makes the checks of destination.Destination.Verify by trying calls on a name that does not exist: a caller who may make a call is
// told that the name is not there.
type Probe struct {
	Name    string // that is tried
	Missing []Code // what the service says of a name that is not there
	Checks  []destination.Check
}

// Tried is how a call on the missing name went: it may be made if Err is nil.
type Tried struct {
	Err      *destination.Error
	Nameless bool // the call is not about a name
}

// Add adds a check.
func (p *Probe) Add(c destination.Check) { p.Checks = append(p.Checks, c) }

// Try makes a call.
func (p *Probe) Try(call func() error) Tried {
	err := call()
	if err == nil || slices.ContainsFunc(p.Missing, func(c Code) bool { return errors.Is(err, c) }) {
		return Tried{}
	}
	e, ok := errors.AsType[*destination.Error](err)
	if !ok {
		e = destination.InternalError("the call failed")
	}
	return Tried{Err: e}
}

// Reach adds what the first call tells, and reports whether the service lets the credentials in.
func (p *Probe) Reach(s *Session, first Tried) bool {
	e := first.Err
	if e != nil && e.Code != destination.Denied {
		p.Add(destination.Check{Name: "reachable", Text: e.Text})
		return false
	}
	p.Add(destination.Check{Name: "reachable", OK: true, Text: s.service.Name + " answers in region " + s.Region})
	p.Add(s.ClockCheck())
	if e != nil && (!errors.Is(e, AccessDenied) || errors.Is(e, ErrCredentials)) {
		p.Add(destination.Check{Name: "credentials", Text: e.Text})
		return false
	}
	p.Add(destination.Check{Name: "credentials", OK: true, Text: "AWS takes them"})
	return true
}

// Report joins calls into a check. If nothing at all is allowed on the name that was tried, which is not certain then, it may be for its
// name, which begins with prefix.
func (p *Probe) Report(name string, certain bool, prefix string, calls ...Tried) {
	c := destination.Check{Name: name, OK: true, Text: "it is allowed"}
	for _, call := range calls {
		if call.Err == nil {
			continue
		}
		c.OK, c.Text = false, call.Err.Text
		if call.Err.Code == destination.Denied && !certain && !call.Nameless {
			c.Unknown = true
			c.Text += "; the name that was tried begins with " + prefix + ": if the policy is for other names, this says nothing"
		}
		break
	}
	p.Add(c)
}
