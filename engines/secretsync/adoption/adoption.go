// Package adoption brings what a destination has already under secret sync: it adopts names that are in conflict (adopt.go), and copies
// values of names into a KV version 2 mount (import.go). Both can be planned first, in pages that a request has time for, and continued
// after an interruption. Start reading at Adopter.Plan.
package adoption

import (
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
)

// Adopter adopts and imports names of destinations. Safe for concurrent use.
type Adopter struct{ *reconcile.Reconciler }

const (
	// maxListed bounds the entries of a response, up to the names of one secret.
	maxListed = 1000
	// pageTime bounds the time that a page takes to read from the destination: the rest comes with the next.
	pageTime = 20 * time.Second
)

// Entry is what is done about one name.
type Entry struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key,omitempty"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

// Report is what is done about names, or would be.
type Report struct {
	Entries []Entry        // about maxListed at most
	Totals  map[string]int // by action, of all names of this page
	Next    string         // the cursor of the next page; "" if this is the last one
	Hidden  int            // secrets that were skipped, because the caller may not read them
}

func (r *Report) add(e Entry) {
	if r.Totals == nil {
		r.Totals = map[string]int{}
	}
	r.Totals[e.Action]++
	r.Entries = append(r.Entries, e)
}
