// Package sealing compares the seals that a node is configured for with the one that its cluster has: which of them opens it, whether the
// cluster is to change to another, and whether the seal would still open. A change is prepared when the people who may decide it are there, and
// carried out when the node is the active one. The seals themselves are in server/seal.
package sealing

import (
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
)

// Seals are those that a node is configured for.
type Seals struct {
	Auto seal.Wrapper // nil: Shamir
	Old  seal.Wrapper // an automatic seal that the cluster is to leave; nil: none
}

// InUse is the wrapper that opened the node, or the one that took its place since.
type InUse struct{ p atomic.Pointer[seal.Wrapper] }

func (s *InUse) Use(w seal.Wrapper) { s.p.Store(&w) }
func (s *InUse) Get() seal.Wrapper  { return *s.p.Load() }

// Opening says how a sealed node opens the seal that its state (or the cluster it joins) has.
type Opening struct {
	Config  seal.Config
	Wrapper seal.Wrapper // opens it without people; nil: they must
	Migrate bool         // the node's configuration has another seal
}

// Open compares the cluster's seal with this node's configuration. The error is for the operator.
func (s Seals) Open(c seal.Config) (Opening, error) {
	auto, old := s.Auto, s.Old
	switch {
	case !c.Auto():
		return Opening{Config: c, Migrate: auto != nil}, nil
	case old != nil && old.Type() == c.Type && !fits(auto, c):
		return Opening{Config: c, Wrapper: old, Migrate: true}, nil
	case auto != nil && auto.Type() == c.Type:
		return Opening{Config: c, Wrapper: auto}, nil
	}
	return Opening{}, engines.Invalid("the cluster's seal is %q, this node is configured for %q: configure the cluster's seal, "+
		"with disabled = \"true\" beside the new one if the cluster is to change to that", c.Type, s.Type())
}

// fits reports whether the configured seal has the very key that the cluster's seal has.
func fits(w seal.Wrapper, c seal.Config) bool {
	return w != nil && w.Type() == c.Type && seal.KeyID(w) == c.KeyID
}

// Type is the type of seal that this node is configured for.
func (s Seals) Type() string {
	if s.Auto != nil {
		return s.Auto.Type()
	}
	return seal.TypeShamir
}

// MayUse reports, as an error, that shares are of no use now, or not for this. joining says that the node waits to join a cluster.
func (s Seals) MayUse(o Opening, migrate, joining bool) error {
	switch {
	case migrate && joining:
		return engines.Invalid("this node joins a cluster, it cannot change its seal: leave out migrate")
	case migrate && !o.Migrate:
		return engines.Invalid("there is nothing to migrate: the cluster's seal is %q and so is this node's", o.Config.Type)
	case o.Migrate && !migrate && !joining:
		return engines.Invalid("the cluster's seal is %q, this node is configured for %q: unseal with migrate to change the cluster's, or correct the configuration",
			o.Config.Type, s.Type())
	case migrate && o.Config.Auto() && o.Config.RecoveryShares == 0:
		return engines.Invalid("%v", seal.ErrNoRecoveryKeys)
	case o.Config.Auto() && !migrate:
		return engines.Invalid("this cluster unseals by itself (seal %q): key shares are not used", o.Config.Type)
	}
	return nil
}
