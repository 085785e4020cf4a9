package apply

import (
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// RedeployInterval is how long changes of a destination are collected before it is redeployed, and the least time between two
// redeployments.
const RedeployInterval = 30 * time.Second

// RedeploysBy returns what redeploys a destination, "" if nothing does.
func (s *Syncer) RedeploysBy(d *state.Destination) string {
	c, err := s.Pool.ConfigOf(d)
	if err != nil {
		return ""
	}
	return redeploysBy(c)
}

func redeploysBy(c destination.Config) string {
	if r, ok := c.(destination.Redeployable); ok {
		return r.Redeploys()
	}
	return ""
}
