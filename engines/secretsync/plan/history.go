package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PastTense has the words of histories. What is in sync after a write with unknown outcome was updated by that.
var PastTense = map[string]string{Create: "created", Update: "updated", Recover: "recovered", Adopt: "adopted", None: "updated"}

// Summarize says what was done, over so many changes of other clients.
func Summarize(did map[string]int, over int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(did)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, did[what]))
	}
	switch {
	case over == 1:
		parts = append(parts, "over a change by another client")
	case over > 1:
		parts = append(parts, fmt.Sprintf("over %d changes by other clients", over))
	}
	return strings.Join(parts, ", ")
}
