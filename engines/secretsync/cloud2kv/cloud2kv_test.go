package cloud2kv

import (
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func TestDestination(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Place { return newPlace(t) })
}

// The vault takes its time to delete and to recover.
func TestDestinationThatLags(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Place {
		p := newPlace(t)
		p.Lag(2)
		return p
	})
}

// overridden is a place whose addresses the operator has set.
type overridden struct{ *place }

func (o overridden) Open(t *testing.T) destination.Destination {
	return opened(t, config(), destination.Env{Client: o.Client(), URL: o.URL + "/", AuthorityURL: o.AuthorityURL})
}

func TestDestinationAtAnotherAddress(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Place {
		p := newPlace(t)
		p.PageSize(7)
		return overridden{p}
	})
}
