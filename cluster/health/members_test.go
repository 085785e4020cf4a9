package health

import "testing"

// TestNeverHeard: a member that a new leader has not heard of does not count as one that was heard when the leadership began.
func TestNeverHeard(t *testing.T) {
	var h Members
	h.Init(0, 0)
	h.Lead()
	h.UpdateHealth([]NodeInfo{{ID: "away", LastContact: -1}})
	if got := h.Info("away").LastContact; got >= 0 {
		t.Errorf("the last contact was %v ago, but there was none", got)
	}
	h.Heard(NodeInfo{ID: "away"}, false, 0)
	if got := h.Info("away").LastContact; got < 0 {
		t.Error("no contact after a sign of life")
	}
}
