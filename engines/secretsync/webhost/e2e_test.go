//go:build e2e

package webhost_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

// TestVendorSDK has Vercel's own SDK drive the server of the tests, and read what the destination writes there.
// COFFER_NODE_DIR is where @vercel/sdk 1.28.35 is installed.
func TestVendorSDK(t *testing.T) {
	dir := os.Getenv("COFFER_NODE_DIR")
	if dir == "" {
		t.Fatal("COFFER_NODE_DIR is not set")
	}
	script, err := filepath.Abs("testdata/drive.mjs")
	if err != nil {
		t.Fatal(err)
	}
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	cmd := exec.CommandContext(t.Context(), "node", script, s.URL, webhosttest.Token)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if out, err := cmd.Output(); err != nil || string(out) != "ok\n" {
		t.Fatalf("%q, %v", out, err)
	}
	// What the SDK has written is found, and is another client's.
	f := desttest.Read(t, openWith(t, project("production"), desttest.At(s.URL)), "ONE")
	if f.ID == "" || f.OwnerTag != "" || len(webhost.Type.Rules.CheckName(f.Name)) > 0 {
		t.Errorf("found %+v", f)
	}
}
