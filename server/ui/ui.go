// Package ui serves the web UI: static files built from web/ and committed, so that the server needs no
// other toolchain. The UI is a client of the public API like any other and adds no privilege.
package ui

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed dist
var files embed.FS

// contentSecurityPolicy lets the page load its own files and talk to its own server, and nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'"

// Handler serves the UI below /ui/. Paths without a file extension get the one page, which routes itself.
func Handler() http.Handler {
	dist, err := fs.Sub(files, "dist")
	if err != nil {
		panic(err) // the directory is embedded
	}
	server := http.StripPrefix("/ui/", http.FileServerFS(dist))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/ui/assets/") {
			h.Set("Cache-Control", "public, max-age=31536000, immutable") // their names carry a hash
		} else if path.Ext(r.URL.Path) == "" {
			r = r.Clone(r.Context())
			r.URL.Path = "/ui/"
		}
		server.ServeHTTP(w, r)
	})
}
