// Package adoptions serves the paths below sys/sync/ that bring what a destination has already under secret sync: adopt, and import. What
// they do is package adoption's. Start reading at API.Routes.
package adoptions

import (
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/adoption"
	"github.com/coffer-project/coffer/engines/secretsync/api"
)

// API serves the paths that adopt and import names of a destination.
type API struct{ *api.API }

func (s *API) adopter() *adoption.Adopter { return &adoption.Adopter{Reconciler: s.Reconciler} }

// flags of all routes, as those of destinations.
const flags = engines.Primary | engines.Active | engines.Strict

// Routes declares the paths below sys/.
func (s *API) Routes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}"
	engines.On(r, engines.Update, of+"/associations/adopt", "Adopt names at the destination that belong to other clients: of a secret, a prefix, a mount, or the whole destination. With plan nothing is changed.", flags, api.WithClientErrors(s.adopt)).
		Returns(`actions: [{action, external_name, mount, reason, secret_name}], associated_secrets: {*: {accessor, attempts: integer, cause,
			code, external_name, external_version, last_attempt, last_success, mount, next_retry, secret_name, secret_prefix, sub_key,
			sync_status, updated_at, version: integer}}, next, store_name, store_type, totals: {adopt: integer, skip: integer}`)
	engines.On(r, engines.Update, of+"/import", "Copy values that the destination has into secrets that are not there yet. With plan nothing is changed.", flags|engines.Sudo, api.WithClientErrors(s.importNames)).
		Returns(`actions: [{action, external_name, mount, reason, secret_name}], next, totals: {create: integer, same: integer, skip: integer}`)
}
