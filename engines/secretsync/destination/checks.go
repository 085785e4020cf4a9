package destination

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// FailedCheck is the check that an error has made fail.
func FailedCheck(name string, err error) Check { return Check{Name: name, Text: err.Error()} }

// FailedChecks are the checks of a destination whose first call has failed: an error that the vendor has sent shows that it can be
// reached.
func FailedChecks(vendor string, err error) []Check {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return []Check{FailedCheck("reachable", err)}
	}
	reachable := Check{Name: "reachable", OK: true, Text: vendor + " answers"}
	switch e.Code {
	case Denied:
		return []Check{reachable, FailedCheck("credentials", err)}
	case NoLocation, BadRequest:
		return []Check{reachable, FailedCheck("read", err)}
	}
	return []Check{FailedCheck("reachable", err)}
}

// NameLength returns what is wrong with the length of a name, "" if nothing.
func NameLength(name string, most int) string {
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > most:
		return fmt.Sprintf("the name has %d characters, at most %d are allowed", len(name), most)
	}
	return ""
}

// ReplaceIllegal puts a character for each that is not legal.
func ReplaceIllegal(name string, legal func(rune) bool, with rune) string {
	return strings.Map(func(r rune) rune {
		if legal(r) {
			return r
		}
		return with
	}, name)
}

// maxSkew is how far the clocks may be apart.
const maxSkew = 5 * time.Minute

// ClockCheck compares the Date header of a vendor's response with this server's clock.
func ClockCheck(vendor, date string, now time.Time) Check {
	at, err := http.ParseTime(date)
	if err != nil {
		return Check{Name: "clock", Unknown: true, Text: vendor + " did not say what time it is"}
	}
	if skew := now.Sub(at).Abs().Round(time.Second); skew > maxSkew {
		return Check{Name: "clock", Text: fmt.Sprintf("the clocks are %v apart: set that of this server", skew)}
	}
	return Check{Name: "clock", OK: true, Text: "the clocks agree"}
}
