package cloud2kv

import (
	"net/http"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func TestDestination(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Fake { return newFaultyVault(t) })
}

// overridden is a destination whose addresses the operator has set, and which speaks HTTP/1.1.
type overridden struct{ *faultyVault }

func (o overridden) Open(t *testing.T) destination.Destination {
	client := o.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	return opened(t, config(), destination.Env{Client: client, URL: o.URL + "/", AuthorityURL: o.AuthorityURL})
}

func TestDestinationAtAnotherAddress(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Fake {
		p := newFaultyVault(t)
		p.PageSize(7)
		return overridden{p}
	})
}

func TestClose(t *testing.T) {
	desttest.Closes(t, Type, config(), destination.Env{})
}
