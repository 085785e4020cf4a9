package leaktest

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	before := Running()
	if err := Check(before); err != nil {
		t.Errorf("nothing was started: %v", err)
	}
	stop := make(chan struct{})
	go func() { <-stop }()
	if err := check(before, 0); err == nil || !strings.Contains(err.Error(), "leaktest.TestCheck") {
		t.Errorf("a goroutine that waits is not found: %v", err)
	}
	close(stop)
	if err := Check(before); err != nil {
		t.Errorf("it has ended: %v", err)
	}
}
