package process

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

func TestInFlight(t *testing.T) {
	f := &InFlight{}
	r := systemtest.Router(f.Routes)
	one := &Flight{ID: "id-1", Op: engines.Read, Path: "secret/data/x", Remote: netip.MustParseAddrPort("10.0.0.1:99")}
	two := &Flight{ID: "id-2", Op: engines.Update, Path: "secret/data/y", Remote: netip.MustParseAddrPort("10.0.0.2:99")}
	f.Begin(one)
	f.Begin(two)
	f.Identify(one, "entity-1")
	data := systemtest.Must(t, r, engines.Read, "in-flight-req", "")
	seen, _ := data["id-1"].(map[string]any)
	if f.Count() != 2 || len(data) != 2 || seen["request_path"] != "secret/data/x" || seen["client_id"] != "entity-1" || seen["client_remote_address"] != "10.0.0.1:99" {
		t.Errorf("in flight: %v", data)
	}
	drained := make(chan error, 1)
	go func() { drained <- f.Drain(t.Context()) }()
	for waiting := 0; waiting == 0; runtime.Gosched() {
		f.mu.Lock()
		waiting = len(f.waiting)
		f.mu.Unlock()
	}
	later := &Flight{ID: "id-3"}
	f.Begin(later) // no caller waits for this one
	f.End(one)
	select {
	case err := <-drained:
		t.Fatalf("Drain did not wait for the second request: %v", err)
	default:
	}
	f.End(two)
	if err := <-drained; err != nil {
		t.Errorf("Drain = %v", err)
	}
	f.End(later)
	if data := systemtest.Must(t, r, engines.Read, "in-flight-req", ""); f.Count() != 0 || len(data) != 0 {
		t.Errorf("after the end: %v", data)
	}
	if err := f.Drain(t.Context()); err != nil {
		t.Errorf("Drain of nothing = %v", err)
	}
}
