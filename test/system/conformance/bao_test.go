package conformance_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	vault "github.com/hashicorp/vault/api"
	"github.com/openbao/openbao/api/v2"
)

// bao is a client of github.com/openbao/openbao/api.
type bao struct{ *api.Client }

func newBao(t *testing.T, c *harness.Cluster) client {
	t.Helper()
	config := api.DefaultConfig()
	noErr(t, config.Error)
	config.Address, config.MaxRetries, config.DefaultStrongConsistency = c.Nodes[0].URL, 0, true
	noErr(t, config.ConfigureTLS(&api.TLSConfig{CACert: c.CAFile}))
	config.HttpClient.Transport = &transport{c.Nodes, c.Described(config.HttpClient.Transport)}
	out, err := api.NewClient(config)
	noErr(t, err)
	out.SetToken(c.RootToken)
	return bao{out}
}

// but returns a copy with a change. Copies share what they know of the cluster's state.
func (b bao) but(change func(*api.Client)) client {
	c, err := b.CloneWithHeaders()
	if err != nil {
		panic(err)
	}
	c.SetToken(b.Token())
	c.SetWrappingLookupFunc(b.CurrentWrappingLookupFunc())
	change(c)
	return bao{c}
}

func (b bao) as(token string) client { return b.but(func(c *api.Client) { c.SetToken(token) }) }
func (b bao) in(ns string) client    { return b.but(func(c *api.Client) { c.SetNamespace(ns) }) }
func (b bao) wrapped(ttl string) client {
	return b.but(func(c *api.Client) { c.SetWrappingLookupFunc(func(string, string) string { return ttl }) })
}
func (b bao) with(header, value string) client {
	return b.but(func(c *api.Client) { c.AddHeader(header, value) })
}

func (b bao) read(path string) (*api.Secret, error) { return b.Logical().Read(path) }
func (b bao) query(path string, v url.Values) (*api.Secret, error) {
	return b.Logical().ReadWithData(path, v)
}
func (b bao) list(path string) (*api.Secret, error) { return b.Logical().List(path) }
func (b bao) write(path string, data map[string]any) (*api.Secret, error) {
	return b.Logical().Write(path, data)
}
func (b bao) patch(path string, data map[string]any) (*api.Secret, error) {
	return b.Logical().JSONMergePatch(context.Background(), path, data)
}
func (b bao) remove(path string) (*api.Secret, error)  { return b.Logical().Delete(path) }
func (b bao) unwrap(token string) (*api.Secret, error) { return b.Logical().Unwrap(token) }

func (b bao) create(r api.TokenCreateRequest) (*api.Secret, error) {
	return b.Auth().Token().Create(&r)
}
func (b bao) createOrphan(r api.TokenCreateRequest) (*api.Secret, error) {
	return b.Auth().Token().CreateOrphan(&r)
}
func (b bao) createByRole(r api.TokenCreateRequest, role string) (*api.Secret, error) {
	return b.Auth().Token().CreateWithRole(&r, role)
}
func (b bao) lookup(token string) (*api.Secret, error) { return b.Auth().Token().Lookup(token) }
func (b bao) lookupSelf() (*api.Secret, error)         { return b.Auth().Token().LookupSelf() }
func (b bao) lookupAccessor(a string) (*api.Secret, error) {
	return b.Auth().Token().LookupAccessor(a)
}
func (b bao) renew(token string, n int) (*api.Secret, error) { return b.Auth().Token().Renew(token, n) }
func (b bao) renewSelf(n int) (*api.Secret, error)           { return b.Auth().Token().RenewSelf(n) }
func (b bao) revokeTree(token string) error                  { return b.Auth().Token().RevokeTree(token) }
func (b bao) revokeOrphan(token string) error                { return b.Auth().Token().RevokeOrphan(token) }
func (b bao) revokeAccessor(accessor string) error {
	return b.Auth().Token().RevokeAccessor(accessor)
}

func (b bao) mount(path string, in api.MountInput) error   { return b.Sys().Mount(path, &in) }
func (b bao) unmount(path string) error                    { return b.Sys().Unmount(path) }
func (b bao) mounts() (map[string]*api.MountOutput, error) { return b.Sys().ListMounts() }
func (b bao) mountConfig(path string) (*api.MountConfigOutput, error) {
	return b.Sys().MountConfig(path)
}
func (b bao) tune(path string, in api.MountConfigInput) error { return b.Sys().TuneMount(path, in) }
func (b bao) enableAuth(path, kind string) error {
	return b.Sys().EnableAuthWithOptions(path, &api.EnableAuthOptions{Type: kind})
}
func (b bao) disableAuth(path string) error             { return b.Sys().DisableAuth(path) }
func (b bao) auths() (map[string]*api.AuthMount, error) { return b.Sys().ListAuth() }
func (b bao) startRemount(from, to string) (*api.MountMigrationOutput, error) {
	return b.Sys().StartRemount(from, to)
}
func (b bao) remountStatus(id string) (*api.MountMigrationStatusOutput, error) {
	return b.Sys().RemountStatus(id)
}

func (b bao) putPolicy(name, rules string) error { return b.Sys().PutPolicy(name, rules) }
func (b bao) policies() ([]string, error)        { return b.Sys().ListPolicies() }
func (b bao) capabilities(token, path string) ([]string, error) {
	return b.Sys().Capabilities(token, path)
}
func (b bao) capabilitiesSelf(path string) ([]string, error) { return b.Sys().CapabilitiesSelf(path) }
func (b bao) mfaValidate(id string, payload map[string]any) (*api.Secret, error) {
	return b.Sys().MFAValidate(id, payload)
}

func (b bao) lease(id string) (*api.Secret, error)             { return b.Sys().Lookup(id) }
func (b bao) renewLease(id string, n int) (*api.Secret, error) { return b.Sys().Renew(id, n) }
func (b bao) revokeLease(id string) error                      { return b.Sys().Revoke(id) }
func (b bao) revokePrefix(prefix string) error                 { return b.Sys().RevokePrefix(prefix) }
func (b bao) revokeForce(prefix string) error                  { return b.Sys().RevokeForce(prefix) }

func (b bao) enableAudit(path string, o api.EnableAuditOptions) error {
	return b.Sys().EnableAuditWithOptions(path, &o)
}
func (b bao) disableAudit(path string) error              { return b.Sys().DisableAudit(path) }
func (b bao) audits() (map[string]*api.Audit, error)      { return b.Sys().ListAudit() }
func (b bao) auditHash(path, text string) (string, error) { return b.Sys().AuditHash(path, text) }

func (b bao) cors() (*api.CORSResponse, error) { return b.Sys().CORSStatus() }
func (b bao) setCORS(r api.CORSRequest) error  { return b.Sys().ConfigureCORS(&r) }
func (b bao) disableCORS() error               { return b.Sys().DisableCORS() }

// replication reads the status by its path: this client has no call for it.
func (b bao) replication(kind string) (*vault.ReplicationStatusGenericResponse, error) {
	if kind != "" {
		kind += "/"
	}
	s, err := b.read("sys/replication/" + kind + "status")
	if err != nil {
		return nil, err
	}
	if kind == "" {
		return like[*vault.ReplicationStatusGenericResponse](s.Data["performance"], nil)
	}
	return like[*vault.ReplicationStatusGenericResponse](s.Data, nil)
}

func (b bao) health() (*api.HealthResponse, error)         { return b.Sys().Health() }
func (b bao) sealStatus() (*api.SealStatusResponse, error) { return b.Sys().SealStatus() }
func (b bao) keyStatus() (*api.KeyStatus, error)           { return b.Sys().KeyStatus() }
func (b bao) rotate() error                                { return b.Sys().Rotate() }
func (b bao) rootInit(otp string) (*api.GenerateRootStatusResponse, error) {
	return b.Sys().GenerateRootInit(otp, "")
}
func (b bao) rootStatus() (*api.GenerateRootStatusResponse, error) {
	return b.Sys().GenerateRootStatus()
}
func (b bao) rootUpdate(share, nonce string) (*api.GenerateRootStatusResponse, error) {
	return b.Sys().GenerateRootUpdate(share, nonce)
}
func (b bao) rootCancel() error { return b.Sys().GenerateRootCancel() }
func (b bao) rekeyInit(r api.RekeyInitRequest) (*api.RekeyStatusResponse, error) {
	return b.Sys().RekeyInit(&r)
}
func (b bao) rekeyStatus() (*api.RekeyStatusResponse, error) { return b.Sys().RekeyStatus() }
func (b bao) rekeyUpdate(share, nonce string) (*api.RekeyUpdateResponse, error) {
	return b.Sys().RekeyUpdate(share, nonce)
}
func (b bao) rekeyCancel() error { return b.Sys().RekeyCancel() }
func (b bao) rekeyVerify(share, nonce string) (*api.RekeyVerificationUpdateResponse, error) {
	return b.Sys().RekeyVerificationUpdate(share, nonce)
}
