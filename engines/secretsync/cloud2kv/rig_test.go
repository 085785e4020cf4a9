package cloud2kv

import (
	"net/http"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// config is one that the fake's vault takes.
func config() *Config {
	return &Config{KeyVaultURI: "https://" + cloud2kvtest.Host + "/", ClientID: cloud2kvtest.ClientID, ClientSecret: cloud2kvtest.ClientSecret, TenantID: cloud2kvtest.TenantID, Cloud: "cloud"}
}

// faultyVault is a vault with faults in front of it.
type faultyVault struct {
	*cloud2kvtest.Vault
	faults desttest.Faults
}

func newFaultyVault(t *testing.T) *faultyVault {
	p := &faultyVault{Vault: cloud2kvtest.New(t)}
	p.faults.Rejected = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":{"code":"Forbidden","message":"no","innererror":{"code":"ForbiddenByRbac"}}}`))
	}
	p.Front = func(next http.Handler) http.Handler {
		p.faults.Next = next
		return &p.faults
	}
	return p
}

// Open opens it as production does, with the vendor's own names and all verification.
func (p *faultyVault) Open(t *testing.T) destination.Destination {
	return opened(t, config(), destination.Env{Client: p.Client()})
}

func (p *faultyVault) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	client := p.Client()
	next := client.Transport
	client.Transport = desttest.Hook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) { return h(r, next) })
	return opened(t, config(), destination.Env{Client: client})
}

func (p *faultyVault) Put(_ *testing.T, name, value string) { p.Vault.Put(name, value, nil) }

func (p *faultyVault) Get(_ *testing.T, name string) (string, bool) { return p.Vault.Get(name) }

func (p *faultyVault) Fail(f desttest.Fault) { p.faults.Set(f) }

func (p *faultyVault) Secrets() []string {
	return []string{cloud2kvtest.ClientSecret, "token.", "Bearer"}
}

func opened(t *testing.T, c *Config, env destination.Env) *vault {
	t.Helper()
	if problems := c.Check(); len(problems) > 0 {
		t.Fatal(problems)
	}
	d, err := Type.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	v := d.(*vault)
	v.patience = 5 * time.Second
	t.Cleanup(func() { _ = v.Close() })
	return v
}
