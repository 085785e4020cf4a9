package status

import (
	"maps"
)

// DescribeHealth returns how a destination is doing: with associations what is said of secrets, with causes the texts of failures.
func DescribeHealth(h *Health, associations, causes bool) map[string]any {
	out := map[string]any{"circuit": "closed"}
	if h.Circuit.Open {
		out["circuit"], out["circuit_open_until"], out["circuit_code"] = "open", h.Circuit.Until.UTC(), h.Circuit.Cause.Code
	}
	if !h.Check.At.IsZero() {
		out["drift_checked_at"] = h.Check.At
	}
	if h.Check.Cause != "" {
		out["drift_check_failed_at"], out["drift_check_code"] = h.Check.FailedAt, h.Check.Code
	}
	if associations {
		links := map[string]int{}
		maps.Copy(links, h.Links)
		maps.DeleteFunc(links, func(_ string, n int) bool { return n == 0 })
		out["links"], out["drifted"] = links, h.Drifted
		if !h.OldestChange.IsZero() {
			out["oldest_unsynced_change"] = h.OldestChange.UTC()
		}
	}
	if causes && h.Circuit.Open {
		out["circuit_cause"] = h.Circuit.Cause.Text
	}
	if causes && h.Check.Cause != "" {
		out["drift_check_cause"] = h.Check.Cause
	}
	return out
}
