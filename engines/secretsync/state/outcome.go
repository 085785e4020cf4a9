package state

import (
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// severity orders statuses, the worst last.
var severity = []string{Synced, Unsynced, Unsyncing, Pending, ExternalError, Conflict, ClientError, InternalError}

// WorstOutcome returns the status of a secret: the worst of its names.
func WorstOutcome(items []Item, live bool) Outcome {
	items = slices.DeleteFunc(slices.Clone(items), func(it Item) bool { return it.Retained })
	if len(items) == 0 {
		if live {
			return Outcome{Status: Synced, Code: "empty", Cause: "the secret has no keys that are chosen"}
		}
		return Outcome{Status: Unsynced, Code: "no_version", Cause: "the secret has no live version"}
	}
	total := items[0].Outcome
	for _, it := range items[1:] {
		if slices.Index(severity, it.Status) > slices.Index(severity, total.Status) {
			total = it.Outcome
		}
	}
	return total
}

// CodeInternal is the code of a failure of the server.
const CodeInternal = "internal"

// OutcomeOf turns an error into an outcome.
func OutcomeOf(err error) Outcome {
	var e *destination.Error
	if !errors.As(err, &e) {
		return Outcome{Status: InternalError, Code: CodeInternal, Cause: "the server could not do its part; its log says why"}
	}
	o := Outcome{Status: ExternalError, Code: e.Code, Cause: TruncateCause(e.Text)}
	switch {
	case e.Code == destination.Exists || e.Code == destination.Changed: // the next attempt reads it again
	case e.Class == destination.Client:
		o.Status = ClientError
	case e.Class == destination.Internal:
		o.Status = InternalError
	}
	return o
}

// TruncateCause bounds the length of a cause, which is stored once for each name.
func TruncateCause(text string) string {
	const most = 400
	if len(text) > most {
		return Truncate(text, most) + "…"
	}
	return text
}

// Truncate shortens a text to so many bytes.
func Truncate(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
