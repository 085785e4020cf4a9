// Package cert is the auth method of TLS client certificates: a role trusts the certificates of its CAs, or one certificate, and says
// what such a certificate has to say of its owner.
//
// The TLS handshake has proved that the client has the key; engines.CertificatesOf is what it has shown. Everything else is decided here:
// the chain to a CA of a role, validity, revocation, and the constraints of the role. Certificates that roles and revocation lists hold
// are parsed once on each node, into a view that the next change of the mount makes stale. What is stored, below the mount:
//
//	config       config
//	role/<name>  role
//	crl/<name>   list: a revocation list
//
// Start reading at New, then login.go, view.go, constraints.go.
package cert

import (
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// engine is one mount on one node.
type engine struct {
	router *engines.Router
	// version counts what made the view stale. It is fresh while it has the version it was built from.
	version atomic.Uint64
	view    atomic.Pointer[view]
	loading sync.Mutex
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// Changed implements engines.Invalidator.
func (e *engine) Changed(storage.Class, []storage.Key, bool) { e.version.Add(1) }

// StoredPath returns a path with the name in it as it is stored: in lower case. Policies are asked about it, too.
func (e *engine) StoredPath(path string) string { return engines.FoldPath(path, "certs", "crls") }

// New is the engines.Factory. The engine is an engines.Renewer and an engines.RoleNamer.
func New(engines.Mount) (engines.Engine, error) {
	e := &engine{router: engines.NewRouter()}
	r := e.router
	engines.On(r, engines.Read, "config", "Read the configuration.", 0, readConfig).
		Returns(`disable_binding: boolean, enable_identity_alias_metadata: boolean, enable_metadata_on_failures: boolean, ocsp_cache_size:
			integer, role_cache_size: integer`)
	engines.On(r, engines.Update, "config", "Change the configuration as far as it is given.", 0, writeConfig)
	engines.On(r, engines.List, "certs", "List the roles.", 0, listRoles).Returns("keys: [string]")
	engines.On(r, engines.Read, "certs/{name}", "Read a role.", 0, readRole).
		Returns(engines.ShapeOf(constraints{}, engines.TokenFields{}, ocspIn{}) + `, certificate, display_name,
			policies: [string], ttl: integer, max_ttl: integer, period: integer, bound_cidrs: [string]`)
	engines.On(r, engines.Delete, "certs/{name}", "Delete a role. Its tokens live on until they expire.", 0, deleteRole)
	engines.On(r, engines.Update, "certs/{name}", "Create a role, or change what is given.", 0, writeRole).Exists = roleExists
	engines.On(r, engines.List, "crls", "List the revocation lists.", 0, listCRLs).Returns("keys: [string]")
	engines.On(r, engines.Read, "crls/{name}", "Read a revocation list.", 0, readCRL).
		Returns("cdp: {url}?, issuer, next_update, serials: {*: {}}, this_update")
	engines.On(r, engines.Delete, "crls/{name}", "Delete a revocation list. What it revoked is valid again.", 0, deleteCRL)
	engines.On(r, engines.Update, "crls/{name}", "Store a revocation list, or replace it.", 0, e.writeCRL).Exists = crlExists
	engines.On(r, engines.Update, "login", "Log in with the certificate of the connection.", engines.Unauthenticated|engines.Active, e.login).
		Returns("auth;")
	return e, nil
}

// counts are what the mounts of this node have done since it started.
var counts struct{ accepted, refused atomic.Int64 }

// Numbers returns the counts by name, for the metrics.
func Numbers() map[string]float64 {
	return map[string]float64{
		"cert_logins_accepted_total": float64(counts.accepted.Load()), "cert_logins_refused_total": float64(counts.refused.Load()),
	}
}

type nameIn struct {
	Name string `json:"name" help:"The name, in any case."`
}

type listIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

// normalName returns the form of a name that is stored and compared.
func normalName(name string) (string, error) { return engines.FoldName("name", name, "_-.@") }

var (
	_ engines.Renewer     = (*engine)(nil)
	_ engines.RoleNamer   = (*engine)(nil)
	_ engines.Invalidator = (*engine)(nil)
)
