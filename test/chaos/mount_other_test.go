//go:build !linux

package chaos_test

import "testing"

func mount(t *testing.T, _, _ string) { t.Skip("NOT TESTED: a full disk. It needs Linux.") }

func remount(*testing.T, string, string) {}

func mountFreezable(t *testing.T, _ string) (freeze, thaw func()) {
	t.Skip("NOT TESTED: a stalled disk. It takes Linux")
	return nil, nil
}
