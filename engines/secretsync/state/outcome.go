package state

import "slices"

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
