package metrics

import (
	"strings"
	"testing"
)

// TestNamesMayHaveLabels: what comes with labels is one family, with a line for each set of them.
func TestNamesMayHaveLabels(t *testing.T) {
	m := New(func() map[string]float64 {
		return map[string]float64{
			`sync_links{destination="cloud1-sm/a",status="SYNCED"}`: 2, `sync_links{destination="a\"b,c=\\",status="CONFLICT"}`: 1, "sync_running": 3,
		}
	})
	_, text, err := m.Render(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`coffer_sync_links{destination="cloud1-sm/a",status="SYNCED"} 2`, `coffer_sync_links{destination="a\"b,c=\\",status="CONFLICT"} 1`,
		"# TYPE coffer_sync_links gauge", "coffer_sync_running 3",
	} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
}
