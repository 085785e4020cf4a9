//go:build e2e

package repohost_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/nacl/box"

	"github.com/coffer-project/coffer/engines/secretsync/repohost"
)

// TestLibsodium has the library that GitHub names in its documentation open what is sealed here. COFFER_NODE_DIR is where
// libsodium-wrappers 0.8.4 is installed.
func TestLibsodium(t *testing.T) {
	dir := os.Getenv("COFFER_NODE_DIR")
	if dir == "" {
		t.Fatal("COFFER_NODE_DIR is not set")
	}
	script, err := filepath.Abs("testdata/open.mjs")
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := box.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	id, key := "1", b64(public[:])
	seal, err := repohost.DecodeKey(id, key)
	if err != nil {
		t.Fatal(err)
	}
	values := []string{"", "a", "ünïcödé \U0001F512", "line\nline\r\n", strings.Repeat("v", 48<<10)}
	var sealed []string
	for _, v := range values {
		s, err := seal([]byte(v))
		if err != nil {
			t.Fatal(err)
		}
		sealed = append(sealed, s)
	}
	in, err := json.Marshal(map[string]any{"public": key, "private": b64(private[:]), "sealed": sealed})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", script)
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var opened []string
	if err := json.Unmarshal(out, &opened); err != nil || len(opened) != len(values) {
		t.Fatalf("%d opened, %v", len(opened), err)
	}
	for i, v := range values {
		if opened[i] != b64([]byte(v)) {
			t.Errorf("value %d is another one when it is opened", i)
		}
	}
}
