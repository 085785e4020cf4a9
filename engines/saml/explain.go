package saml

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/storage"
)

const refusedPrefix storage.Key = "refused/"

// refusal is the stored form of the last refused login of a role, as JSON, below refused/ in the ClusterStorage.
type refusal struct {
	Format  int              `json:"format"` // 1
	At      time.Time        `json:"at"`
	Reason  assertion.Reason `json:"reason"` // or "role"
	Detail  string           `json:"detail"`
	Address string           `json:"address"` // of the browser
	// User is who the identity provider said it was, nil if its answer was not believed.
	User *identity `json:"user,omitempty"`
}

func (r *refusal) format() *int { return &r.Format }

// refusedTTL is how long a refusal can be explained.
const refusedTTL = 24 * time.Hour

func explain(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }
