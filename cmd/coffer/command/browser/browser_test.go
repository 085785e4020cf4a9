package browser

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNoBrowser(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want string // a part of why not; "" if one is opened
	}{
		{"none of it", nil, "no display"},
		{"X", map[string]string{"DISPLAY": ":0"}, ""},
		{"Wayland", map[string]string{"WAYLAND_DISPLAY": "wayland-0"}, ""},
		{"WSL", map[string]string{"WSL_DISTRO_NAME": "Debian"}, ""},
		{"SSH", map[string]string{"DISPLAY": ":10", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "SSH session"},
		{"named", map[string]string{"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "BROWSER": "opener"}, ""},
		{"ours", map[string]string{"COFFER_BROWSER": "opener", "BROWSER": "none"}, ""},
		{"named none", map[string]string{"DISPLAY": ":0", "BROWSER": "none"}, "BROWSER is none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{
				"DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "SSH_CONNECTION", "BROWSER", "COFFER_BROWSER", "VAULT_BROWSER", "BAO_BROWSER",
			} {
				t.Setenv(name, tt.env[name])
			}
			if got := Unusable(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("noBrowser() = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestOpenNamed tries one command after the other, hands the URL over as one word and runs no shell.
func TestOpenNamed(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "opener")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s|' \"$@\" >"+dir+"/seen\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	page := "https://idp.test/sso?a=1&b=$(touch " + dir + "/evil);c"
	for _, tt := range []struct{ named, want string }{
		{script, page + "|"},
		{"/does/not/exist:" + script + " --new-window", "--new-window|" + page + "|"},
		{script + " --url=%s -x", "--url=" + page + "|-x|"},
	} {
		if err := openNamed(tt.named, page); err != nil {
			t.Fatal(err)
		}
		if seen, err := os.ReadFile(filepath.Join(dir, "seen")); err != nil || string(seen) != tt.want {
			t.Errorf("%q got %q, want %q", tt.named, seen, tt.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "evil")); err == nil {
		t.Error("a shell saw the URL")
	}
	for _, named := range []string{"/does/not/exist", "/bin/false", ":", " "} {
		if err := openNamed(named, page); err == nil {
			t.Errorf("openNamed(%q) went well", named)
		}
	}
}
