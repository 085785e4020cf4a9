package cloud3sm_test

import (
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const (
	mark    = "0123456789abcdef-0001"
	another = "0123456789abcdef-0002"
	token   = "00112233445566778899aabbccddeeff"
)

// fake is the service as the suite wants it.
type fake struct{ *cloud3smtest.Server }

func (p fake) Open(t *testing.T) destination.Destination { return open(t, p.Server, configured(nil)) }

func (p fake) Put(_ *testing.T, name, value string) { p.Server.Put(name, value) }

func (p fake) Get(_ *testing.T, name string) (string, bool) { return p.Server.Get(name) }

func (p fake) Secrets() []string {
	texts, _ := p.Tokens()
	return append(texts, cloud3smtest.PrivateKey(), cloud3smtest.Credentials(nil))
}

func TestDestination(t *testing.T) {
	desttest.Run(t, cloud3sm.Type, func(t *testing.T) desttest.Fake { return fake{cloud3smtest.New(t)} })
}

// configured returns a configuration with the key of the fake's service account.
func configured(change func(*cloud3sm.Config)) *cloud3sm.Config {
	c := &cloud3sm.Config{Credentials: engines.Sensitive(cloud3smtest.Credentials(nil))}
	if change != nil {
		change(c)
	}
	return c
}

func open(t *testing.T, s *cloud3smtest.Server, c *cloud3sm.Config) destination.Destination {
	t.Helper()
	return openWith(t, s.Env(), c)
}

func openWith(t *testing.T, env destination.Env, c *cloud3sm.Config) destination.Destination {
	t.Helper()
	if problems := c.Check(); len(problems) > 0 {
		t.Fatalf("the configuration has problems: %q", problems)
	}
	d, err := cloud3sm.Type.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: token}
}

func TestClose(t *testing.T) {
	desttest.Closes(t, cloud3sm.Type, configured(nil), destination.Env{})
}
