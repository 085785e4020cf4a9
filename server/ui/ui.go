// Package ui serves the web UI: static files built from web/ and committed, so that the server needs no
// other toolchain. The UI is a client of the public API like any other and adds no privilege.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed dist
var files embed.FS

// contentSecurityPolicy lets the page load its own files and talk to its own server, and nothing else. The
// one Trusted Types policy is that of the framework, which makes elements from its compiled templates.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'; " +
	"require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".md":   "text/plain; charset=utf-8",
}

// file is one of the embedded files, ready to be sent.
type file struct {
	body        []byte
	compressed  func() []byte // when it is first asked for: a server whose UI is not opened starts sooner
	etag        string
	contentType string
}

// load reads the embedded files by their path below /ui/.
func load() (map[string]file, error) {
	dist, err := fs.Sub(files, "dist")
	if err != nil {
		return nil, err
	}
	all := map[string]file{}
	err = fs.WalkDir(dist, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(dist, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		all[name] = file{
			body: body, compressed: sync.OnceValue(func() []byte { return compress(body) }), contentType: contentTypes[path.Ext(name)],
			etag: base64.RawURLEncoding.EncodeToString(sum[:12]),
		}
		return nil
	})
	return all, err
}

func compress(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(body) // a buffer takes everything
	w.Close()
	return b.Bytes()
}

// Handler serves the UI below /ui/. Paths that look like no file get the one page, which finds its way by
// the fragment of the address.
func Handler() http.Handler {
	all, err := load()
	if err != nil {
		panic(err) // the files are embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups") // the window of a SAML login
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-cache")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/ui/")
		f, ok := all[name]
		switch {
		case ok && strings.HasPrefix(name, "assets/"):
			h.Set("Cache-Control", "public, max-age=31536000, immutable") // their names carry a hash
		case !ok && path.Ext(name) == "" && !strings.HasPrefix(name, "assets/"):
			f = all["index.html"]
		case !ok:
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Vary", "Accept-Encoding")
	body, etag := f.body, f.etag
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body, etag = f.compressed(), f.etag+"-gzip"
	}
	h.Set("ETag", `"`+etag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// acceptsGzip reports whether the client takes gzip, as every browser does.
func acceptsGzip(r *http.Request) bool {
	for _, part := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if name, weight, _ := strings.Cut(strings.TrimSpace(part), ";"); name == "gzip" {
			return strings.TrimSpace(weight) != "q=0"
		}
	}
	return false
}
