package conformance_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	vault "github.com/hashicorp/vault/api"
	"github.com/openbao/openbao/api/v2"
)

// incumbent is a client of github.com/hashicorp/vault/api.
type incumbent struct{ *vault.Client }

func newVault(t *testing.T, c *harness.Cluster) client {
	t.Helper()
	config := vault.DefaultConfig()
	noErr(t, config.Error)
	config.Address, config.MaxRetries, config.ReadYourWrites = c.Nodes[0].URL, 0, true
	noErr(t, config.ConfigureTLS(&vault.TLSConfig{CACert: c.CAFile}))
	config.HttpClient.Transport = &transport{c.Nodes, c.Described(config.HttpClient.Transport)}
	out, err := vault.NewClient(config)
	noErr(t, err)
	out.SetToken(c.RootToken)
	return incumbent{out}
}

// but returns a copy with a change. Copies share what they know of the cluster's state.
func (v incumbent) but(change func(*vault.Client)) client {
	c, err := v.CloneWithHeaders()
	if err != nil {
		panic(err)
	}
	c.SetToken(v.Token())
	c.SetWrappingLookupFunc(v.CurrentWrappingLookupFunc())
	change(c)
	return incumbent{c}
}

func (v incumbent) as(token string) client {
	return v.but(func(c *vault.Client) { c.SetToken(token) })
}
func (v incumbent) in(ns string) client {
	return v.but(func(c *vault.Client) { c.SetNamespace(ns) })
}
func (v incumbent) wrapped(ttl string) client {
	return v.but(func(c *vault.Client) { c.SetWrappingLookupFunc(func(string, string) string { return ttl }) })
}
func (v incumbent) with(header, value string) client {
	return v.but(func(c *vault.Client) { c.AddHeader(header, value) })
}

func secret(s *vault.Secret, err error) (*api.Secret, error) { return like[*api.Secret](s, err) }

func (v incumbent) read(path string) (*api.Secret, error) { return secret(v.Logical().Read(path)) }
func (v incumbent) query(path string, q url.Values) (*api.Secret, error) {
	return secret(v.Logical().ReadWithData(path, q))
}
func (v incumbent) list(path string) (*api.Secret, error) { return secret(v.Logical().List(path)) }
func (v incumbent) write(path string, data map[string]any) (*api.Secret, error) {
	return secret(v.Logical().Write(path, data))
}
func (v incumbent) patch(path string, data map[string]any) (*api.Secret, error) {
	return secret(v.Logical().JSONMergePatch(context.Background(), path, data))
}
func (v incumbent) remove(path string) (*api.Secret, error) { return secret(v.Logical().Delete(path)) }
func (v incumbent) unwrap(token string) (*api.Secret, error) {
	return secret(v.Logical().Unwrap(token))
}

func (v incumbent) create(r api.TokenCreateRequest) (*api.Secret, error) {
	return secret(v.Auth().Token().Create(must[*vault.TokenCreateRequest](r)))
}
func (v incumbent) createOrphan(r api.TokenCreateRequest) (*api.Secret, error) {
	return secret(v.Auth().Token().CreateOrphan(must[*vault.TokenCreateRequest](r)))
}
func (v incumbent) createByRole(r api.TokenCreateRequest, role string) (*api.Secret, error) {
	return secret(v.Auth().Token().CreateWithRole(must[*vault.TokenCreateRequest](r), role))
}
func (v incumbent) lookup(token string) (*api.Secret, error) {
	return secret(v.Auth().Token().Lookup(token))
}
func (v incumbent) lookupSelf() (*api.Secret, error) { return secret(v.Auth().Token().LookupSelf()) }
func (v incumbent) lookupAccessor(a string) (*api.Secret, error) {
	return secret(v.Auth().Token().LookupAccessor(a))
}
func (v incumbent) renew(token string, n int) (*api.Secret, error) {
	return secret(v.Auth().Token().Renew(token, n))
}
func (v incumbent) renewSelf(n int) (*api.Secret, error) {
	return secret(v.Auth().Token().RenewSelf(n))
}
func (v incumbent) revokeTree(token string) error   { return v.Auth().Token().RevokeTree(token) }
func (v incumbent) revokeOrphan(token string) error { return v.Auth().Token().RevokeOrphan(token) }
func (v incumbent) revokeAccessor(accessor string) error {
	return v.Auth().Token().RevokeAccessor(accessor)
}

func (v incumbent) mount(path string, in api.MountInput) error {
	return v.Sys().Mount(path, must[*vault.MountInput](in))
}
func (v incumbent) unmount(path string) error { return v.Sys().Unmount(path) }
func (v incumbent) mounts() (map[string]*api.MountOutput, error) {
	all, err := v.Sys().ListMounts()
	return like[map[string]*api.MountOutput](all, err)
}
func (v incumbent) mountConfig(path string) (*api.MountConfigOutput, error) {
	c, err := v.Sys().MountConfig(path)
	return like[*api.MountConfigOutput](c, err)
}
func (v incumbent) tune(path string, in api.MountConfigInput) error {
	return v.Sys().TuneMount(path, must[vault.MountConfigInput](in))
}
func (v incumbent) enableAuth(path, kind string) error {
	return v.Sys().EnableAuthWithOptions(path, &vault.EnableAuthOptions{Type: kind})
}
func (v incumbent) disableAuth(path string) error { return v.Sys().DisableAuth(path) }
func (v incumbent) auths() (map[string]*api.AuthMount, error) {
	all, err := v.Sys().ListAuth()
	return like[map[string]*api.AuthMount](all, err)
}
func (v incumbent) startRemount(from, to string) (*api.MountMigrationOutput, error) {
	m, err := v.Sys().StartRemount(from, to)
	return like[*api.MountMigrationOutput](m, err)
}
func (v incumbent) remountStatus(id string) (*api.MountMigrationStatusOutput, error) {
	m, err := v.Sys().RemountStatus(id)
	return like[*api.MountMigrationStatusOutput](m, err)
}

func (v incumbent) putPolicy(name, rules string) error { return v.Sys().PutPolicy(name, rules) }
func (v incumbent) policies() ([]string, error)        { return v.Sys().ListPolicies() }
func (v incumbent) capabilities(token, path string) ([]string, error) {
	return v.Sys().Capabilities(token, path)
}
func (v incumbent) capabilitiesSelf(path string) ([]string, error) {
	return v.Sys().CapabilitiesSelf(path)
}
func (v incumbent) mfaValidate(id string, payload map[string]any) (*api.Secret, error) {
	return secret(v.Sys().MFAValidate(id, payload))
}

func (v incumbent) lease(id string) (*api.Secret, error) { return secret(v.Sys().Lookup(id)) }
func (v incumbent) renewLease(id string, n int) (*api.Secret, error) {
	return secret(v.Sys().Renew(id, n))
}
func (v incumbent) revokeLease(id string) error      { return v.Sys().Revoke(id) }
func (v incumbent) revokePrefix(prefix string) error { return v.Sys().RevokePrefix(prefix) }
func (v incumbent) revokeForce(prefix string) error  { return v.Sys().RevokeForce(prefix) }

func (v incumbent) enableAudit(path string, o api.EnableAuditOptions) error {
	return v.Sys().EnableAuditWithOptions(path, must[*vault.EnableAuditOptions](o))
}
func (v incumbent) disableAudit(path string) error { return v.Sys().DisableAudit(path) }
func (v incumbent) audits() (map[string]*api.Audit, error) {
	all, err := v.Sys().ListAudit()
	return like[map[string]*api.Audit](all, err)
}
func (v incumbent) auditHash(path, text string) (string, error) { return v.Sys().AuditHash(path, text) }

func (v incumbent) cors() (*api.CORSResponse, error) {
	c, err := v.Sys().CORSStatus()
	return like[*api.CORSResponse](c, err)
}
func (v incumbent) setCORS(r api.CORSRequest) error {
	return v.Sys().ConfigureCORS(must[*vault.CORSRequest](r))
}
func (v incumbent) disableCORS() error { return v.Sys().DisableCORS() }

func (v incumbent) replication(kind string) (*vault.ReplicationStatusGenericResponse, error) {
	ctx := context.Background()
	switch kind {
	case "performance":
		return v.Sys().ReplicationPerformanceStatusWithContext(ctx)
	case "dr":
		return v.Sys().ReplicationDRStatusWithContext(ctx)
	}
	both, err := v.Sys().ReplicationStatus()
	if err != nil {
		return nil, err
	}
	return &both.Performance, nil
}
func (v incumbent) health() (*api.HealthResponse, error) {
	h, err := v.Sys().Health()
	return like[*api.HealthResponse](h, err)
}
func (v incumbent) sealStatus() (*api.SealStatusResponse, error) {
	s, err := v.Sys().SealStatus()
	return like[*api.SealStatusResponse](s, err)
}
func (v incumbent) keyStatus() (*api.KeyStatus, error) {
	k, err := v.Sys().KeyStatus()
	return like[*api.KeyStatus](k, err)
}
func (v incumbent) rotate() error { return v.Sys().Rotate() }
func (v incumbent) rootInit(otp string) (*api.GenerateRootStatusResponse, error) {
	return v.rootAnswer(v.Sys().GenerateRootInit(otp, ""))
}
func (v incumbent) rootStatus() (*api.GenerateRootStatusResponse, error) {
	return v.rootAnswer(v.Sys().GenerateRootStatus())
}
func (v incumbent) rootUpdate(share, nonce string) (*api.GenerateRootStatusResponse, error) {
	return v.rootAnswer(v.Sys().GenerateRootUpdate(share, nonce))
}
func (v incumbent) rootAnswer(s *vault.GenerateRootStatusResponse, err error) (*api.GenerateRootStatusResponse, error) {
	return like[*api.GenerateRootStatusResponse](s, err)
}
func (v incumbent) rootCancel() error { return v.Sys().GenerateRootCancel() }
func (v incumbent) rekeyInit(r api.RekeyInitRequest) (*api.RekeyStatusResponse, error) {
	s, err := v.Sys().RekeyInit(must[*vault.RekeyInitRequest](r))
	return like[*api.RekeyStatusResponse](s, err)
}
func (v incumbent) rekeyStatus() (*api.RekeyStatusResponse, error) {
	s, err := v.Sys().RekeyStatus()
	return like[*api.RekeyStatusResponse](s, err)
}
func (v incumbent) rekeyUpdate(share, nonce string) (*api.RekeyUpdateResponse, error) {
	s, err := v.Sys().RekeyUpdate(share, nonce)
	return like[*api.RekeyUpdateResponse](s, err)
}
func (v incumbent) rekeyCancel() error { return v.Sys().RekeyCancel() }
func (v incumbent) rekeyVerify(share, nonce string) (*api.RekeyVerificationUpdateResponse, error) {
	s, err := v.Sys().RekeyVerificationUpdate(share, nonce)
	return like[*api.RekeyVerificationUpdateResponse](s, err)
}
