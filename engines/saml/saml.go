// Package saml is the auth method for human users of a SAML 2.0 identity provider.
//
// A client starts a login (sso_service_url) with the digest of a secret that it keeps, and gets a URL for the user's
// browser and a poll id. The identity provider posts its signed response through the browser to the callback. The client
// then redeems the poll id and its secret for a token, once. Poll id, RelayState and request id are independent random
// values, so that none of those who see one of them can finish another's login.
//
// What a response must fulfil is in the package assertion, which trusts nothing of it before its signature; what a mount knows
// of its identity provider in the package provider, above idp, which reads metadata; whom a role admits in the package role; and
// what browsers show in the package page. What is stored, below the mount:
//
//	config            provider.Config: shared between clusters
//	key               the key of the requests, if they are signed; shared
//	role/<name>       role.Role; shared
//	verified          the copy of the identity provider's metadata that was verified last; shared
//
// and, of each cluster on its own (Mount.ClusterStorage):
//
//	provider               the last good copy of the identity provider's metadata
//	refused/<role>         role.LastRejection: the last login that was rejected, for explain
//	login/<id>             login: one that was started; id is the hash of the poll id or sign-in code
//	relay/<hash>           the login that a RelayState belongs to
//	go/<hash>              the login that a short link leads to
//	assertion/<hash>       an assertion that has been used
//	expiry/<time>-<hash>   the keys to remove at that time
//
// Everything of a login that decides something is one transaction, so it is decided once in a cluster, whichever nodes
// requests reach. Start reading at New, then login.go, callback.go, token.go.
package saml

import (
	"log/slog"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/engines/saml/provider"
	"github.com/coffer-project/coffer/engines/saml/role"
)

// Options are what every mount of a node shares. The zero value works.
type Options struct {
	Logger *slog.Logger // nil: discard
	Counts *Counts      // nil: not counted
}

// Counts are what the mounts of a node have done since it started. Safe for concurrent use.
type Counts struct {
	Started          atomic.Int64 // logins
	Completed        atomic.Int64 // accepted responses of identity providers
	Rejected         atomic.Int64 // rejected responses
	Redeemed         atomic.Int64 // logins that ended with a token
	MetadataFailures atomic.Int64 // fetches of metadata that failed
}

// Numbers returns the counts by name, for the metrics.
func (c *Counts) Numbers() map[string]float64 {
	return map[string]float64{
		"saml_logins_started_total":    float64(c.Started.Load()),
		"saml_answers_accepted_total":  float64(c.Completed.Load()),
		"saml_answers_refused_total":   float64(c.Rejected.Load()),
		"saml_logins_redeemed_total":   float64(c.Redeemed.Load()),
		"saml_metadata_failures_total": float64(c.MetadataFailures.Load()),
	}
}

// engine is one mount on one node.
type engine struct {
	router          *engines.Router
	log             *slog.Logger
	counts          *Counts
	provider        *provider.Provider
	pending         pending
	queue           *fairqueue.Queue
	rejected        rejections
	unverifiedLimit throttle
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// StoredPath returns a path with the role's name in it as it is stored: in lower case. Policies are asked about it, too.
func (e *engine) StoredPath(path string) string { return engines.FoldPath(path, "role") }

// New returns the engines.Factory. Its engines are engines.Renewer and engines.RoleNamer.
func New(o Options) engines.Factory {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Counts == nil {
		o.Counts = new(Counts)
	}
	shared := newQueue() // more mounts are no more processors
	return func(m engines.Mount) (engines.Engine, error) {
		return newEngine(o.Logger.With("mount", m.Namespace+m.Path), o.Counts, shared), nil
	}
}

func newEngine(log *slog.Logger, counts *Counts, shared *fairqueue.Queue) *engine {
	e := &engine{router: engines.NewRouter(), log: log, counts: counts, queue: shared, provider: provider.New(log, &counts.MetadataFailures)}
	r := e.router
	const public = engines.Unauthenticated | engines.Active
	e.provider.Routes(r)
	role.Routes(r)

	engines.On(r, engines.Update, "sso_service_url", "Start a login.", public, e.start).
		Returns("confirmation_required: boolean, expires_in: integer, role, short_url, sso_service_url, token_poll_id, verification_code")
	engines.On(r, engines.Update, "callback", "Take the identity provider's response, posted by the user's browser.", public|engines.Form|engines.ForeignForm, e.callback).
		Returns("text/html;")
	engines.On(r, engines.Update, "token", "Finish a login: 401 as long as the user has not.", public, e.token).Returns("auth;")
	engines.On(r, engines.Read, "go/{code}", "Ask who opens a short link whether the login is theirs.", public, e.ask).
		Returns("text/html;")
	engines.On(r, engines.Update, "go/{code}", "Lead a browser to the identity provider, once.", public|engines.Form, e.follow).
		Returns("text/html;")
	return e
}

// LevelTrace is below slog.LevelDebug: where verbose_logging writes whole responses.
const LevelTrace = slog.LevelDebug - 4
