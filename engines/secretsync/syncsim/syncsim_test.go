package syncsim_test

import (
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// fake is one of syncsim's as desttest wants it.
type fake struct {
	kind  destination.Type
	sites *syncsim.Sites

	mu    sync.Mutex
	fault desttest.Fault
}

func (p *fake) Open(t *testing.T) destination.Destination {
	c := p.kind.New().(*syncsim.Config)
	c.Site, c.Token = "s", "the-token"
	d, err := p.kind.Open(c, destination.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (p *fake) Put(_ *testing.T, name, value string) {
	p.sites.Site(p.kind.Name, "s").Put(name, value)
}

func (p *fake) Get(_ *testing.T, name string) (string, bool) {
	return p.sites.Site(p.kind.Name, "s").Get(name)
}

func (p *fake) Secrets() []string { return []string{"the-token"} }

func (p *fake) Fail(f desttest.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

func (p *fake) next(c syncsim.Call) syncsim.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	if f.Writes && (c.Op == "read" || c.Op == "list") {
		return syncsim.Fault{}
	}
	if f.Times > 0 {
		if p.fault.Times--; p.fault.Times == 0 {
			p.fault = desttest.Fault{}
		}
	}
	switch f.Kind {
	case desttest.Throttle:
		return syncsim.Fault{Kind: syncsim.Throttle, RetryAfter: f.RetryAfter}
	case desttest.Trouble:
		return syncsim.Fault{Kind: syncsim.Trouble}
	case desttest.Reject:
		return syncsim.Fault{Kind: syncsim.Reject}
	case desttest.DropBefore:
		return syncsim.Fault{Kind: syncsim.DropBefore}
	case desttest.DropAfter:
		return syncsim.Fault{Kind: syncsim.DropAfter}
	case desttest.Hang:
		return syncsim.Fault{Delay: time.Hour}
	}
	return syncsim.Fault{}
}

// TestPlacesAreDestinations: what the engine is tested with behaves as every destination must.
func TestPlacesAreDestinations(t *testing.T) {
	for _, kind := range syncsim.NewSites().Types() {
		t.Run(kind.Name, func(t *testing.T) {
			desttest.Run(t, kind, func(*testing.T) desttest.Fake {
				sites := syncsim.NewSites()
				p := &fake{sites: sites}
				for _, k := range sites.Types() {
					if k.Name == kind.Name {
						p.kind = k
					}
				}
				sites.SetFault(p.next)
				return p
			})
		})
	}
}
