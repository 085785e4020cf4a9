package process

import (
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

func TestConfigState(t *testing.T) {
	state := ConfigState{Sanitized: func() map[string]any { return map[string]any{"log_level": "info"} }}
	data := systemtest.Must(t, systemtest.Router(state.Routes), engines.Read, "config/state/sanitized", "")
	if data["log_level"] != "info" {
		t.Errorf("state = %v", data)
	}
}
