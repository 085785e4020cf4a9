package ui_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/ui"
)

func get(t *testing.T, method, path string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, "/ui/", nil)
	r.URL.Path = path
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	ui.Handler().ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// asset returns the path of the page's script or style sheet.
func asset(t *testing.T, extension string) string {
	t.Helper()
	page := text(t, get(t, http.MethodGet, "/ui/", nil))
	path := regexp.MustCompile(`/ui/assets/[\w.-]+\.` + extension + `\b`).FindString(page)
	if path == "" {
		t.Fatalf("the page names no .%s file: %s", extension, page)
	}
	return path
}

func TestPaths(t *testing.T) {
	tests := []struct {
		name, method, path string
		status             int
		contentType        string
	}{
		{"page", http.MethodGet, "/ui/", 200, "text/html; charset=utf-8"},
		{"page by name", http.MethodGet, "/ui/index.html", 200, "text/html; charset=utf-8"},
		{"deep link", http.MethodGet, "/ui/vault/secrets", 200, "text/html; charset=utf-8"},
		{"HEAD", http.MethodHead, "/ui/", 200, "text/html; charset=utf-8"},
		{"script", http.MethodGet, asset(t, "js"), 200, "text/javascript; charset=utf-8"},
		{"style", http.MethodGet, asset(t, "css"), 200, "text/css; charset=utf-8"},
		{"icon", http.MethodGet, "/ui/coffer.svg", 200, "image/svg+xml"},
		{"licences", http.MethodGet, "/ui/licenses.md", 200, "text/plain; charset=utf-8"},
		{"missing script", http.MethodGet, "/ui/assets/none.js", 404, ""},
		{"no listing", http.MethodGet, "/ui/assets/", 404, ""},
		{"missing file", http.MethodGet, "/ui/none.svg", 404, ""},
		{"up", http.MethodGet, "/ui/../ui.go", 404, ""},
		{"up twice", http.MethodGet, "/ui/assets/../../ui.go", 404, ""},
		{"absolute", http.MethodGet, "/ui//etc/host.conf", 404, ""},
		{"backslash", http.MethodGet, `/ui/..\ui.go`, 404, ""},
		{"zero byte", http.MethodGet, "/ui/index.html\x00.js", 404, ""},
		{"POST", http.MethodPost, "/ui/", 405, ""},
		{"DELETE", http.MethodDelete, "/ui/coffer.svg", 405, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := get(t, tt.method, tt.path, nil)
			if r.StatusCode != tt.status {
				t.Fatalf("%s %q answered %d, want %d", tt.method, tt.path, r.StatusCode, tt.status)
			}
			if got := r.Header.Get("Content-Type"); tt.contentType != "" && got != tt.contentType {
				t.Errorf("Content-Type = %q, want %q", got, tt.contentType)
			}
			body := text(t, r)
			if tt.method == http.MethodHead && body != "" {
				t.Errorf("HEAD answered a body of %d bytes", len(body))
			}
			if strings.Contains(body, "package ui") {
				t.Error("the answer is a source file")
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	for _, path := range []string{"/ui/", "/ui/deep/link", "/ui/none.js", asset(t, "js")} {
		h := get(t, http.MethodGet, path, nil).Header
		csp := h.Get("Content-Security-Policy")
		for _, directive := range []string{
			"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'",
			"base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'",
		} {
			if !strings.Contains(csp, directive) {
				t.Errorf("%s: the policy lacks %q: %s", path, directive, csp)
			}
		}
		for _, hole := range []string{"unsafe", "data:", "blob:", "http", "*"} {
			if strings.Contains(csp, hole) {
				t.Errorf("%s: the policy has %q: %s", path, hole, csp)
			}
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin-allow-popups", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s = %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestCaching(t *testing.T) {
	if got := get(t, http.MethodGet, "/ui/", nil).Header.Get("Cache-Control"); got != "no-cache" {
		t.Errorf("Cache-Control of the page = %q, want no-cache", got)
	}
	if got := get(t, http.MethodGet, asset(t, "js"), nil).Header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control of the script = %q, want immutable", got)
	}
	if got := get(t, http.MethodGet, "/ui/assets/none.js", nil).Header.Get("Cache-Control"); got != "no-cache" {
		t.Errorf("Cache-Control of a missing script = %q, want no-cache", got)
	}
	first := get(t, http.MethodGet, "/ui/", nil)
	again := get(t, http.MethodGet, "/ui/", http.Header{"If-None-Match": {first.Header.Get("ETag")}})
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("the same page again answered %d, want 304", again.StatusCode)
	}
}

func TestCompression(t *testing.T) {
	path := asset(t, "js")
	plain := get(t, http.MethodGet, path, nil)
	compressed := get(t, http.MethodGet, path, http.Header{"Accept-Encoding": {"br, gzip;q=0.8"}})
	if got := compressed.Header.Get("Content-Encoding"); got != "gzip" {
		t.Fatalf("Content-Encoding = %q, want gzip", got)
	}
	if plain.Header.Get("ETag") == compressed.Header.Get("ETag") {
		t.Error("both forms have the same ETag")
	}
	r, err := gzip.NewReader(compressed.Body)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if string(body) != text(t, plain) {
		t.Error("the two forms differ")
	}
	if got := get(t, http.MethodGet, path, http.Header{"Accept-Encoding": {"gzip;q=0"}}).Header.Get("Content-Encoding"); got != "" {
		t.Errorf("Content-Encoding for a client that refuses gzip = %q", got)
	}
}

// TestNothingInline keeps what the content security policy forbids out of the page.
func TestNothingInline(t *testing.T) {
	page := text(t, get(t, http.MethodGet, "/ui/", nil))
	for _, pattern := range []string{`<script(?:[^>]*)>[^<]`, `<style`, `style=`, `\son\w+=`, `https?://`} {
		if found := regexp.MustCompile(pattern).FindString(page); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
}

// TestSize keeps the first load small: 120 kB, compressed. It is what the page names; the other pages come when they are opened.
func TestSize(t *testing.T) {
	page := text(t, get(t, http.MethodGet, "/ui/", nil))
	compressed := http.Header{"Accept-Encoding": {"gzip"}}
	total := 0
	for _, path := range append(regexp.MustCompile(`/ui/assets/[\w.-]+`).FindAllString(page, -1), "/ui/") {
		total += len(text(t, get(t, http.MethodGet, path, compressed)))
	}
	if total > 120_000 {
		t.Errorf("the first load has %d bytes, compressed, want at most 120000", total)
	}
	all, err := filepath.Glob("dist/assets/*.js")
	if named := strings.Count(page, ".js\""); err != nil || named == 0 || len(all) <= named {
		t.Errorf("the page names %d of %d scripts: want the other pages to be loaded when they are opened; %v", named, len(all), err)
	}
}
