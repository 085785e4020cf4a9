package cert

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const rolePrefix storage.Key = "role/"

// maxTrusted is how many certificates a role may trust.
const maxTrusted = 50

// role is the stored form of one, as JSON.
type role struct {
	Format      int    `json:"format"` // 1
	Certificate string `json:"certificate"`
	DisplayName string `json:"display_name"`
	constraints
	Token engines.TokenFields `json:"token"`
	// Older are the older names of fields that were used last: reads answer these, too.
	Older engines.Older `json:"older,omitempty"`
}

// RecordFormat implements engines.Record.
func (ro *role) RecordFormat() *int { return &ro.Format }

// newerNames of the fields that have an older one.
var newerNames = map[string]string{
	"policies": "token_policies", "ttl": "token_ttl", "max_ttl": "token_max_ttl", "period": "token_period", "bound_cidrs": "token_bound_cidrs",
}

// getRole returns a role by normal name, nil if there is none.
func getRole(ctx context.Context, s engines.Getter, name string) (*role, error) {
	ro := new(role)
	found, err := engines.GetRecord(ctx, s, rolePrefix+storage.Key(name), ro)
	if !found || err != nil {
		return nil, err
	}
	return ro, nil
}

func (ro *role) data() map[string]any {
	data := ro.Token.Data()
	ro.constraints.data(data)
	data["certificate"], data["display_name"] = ro.Certificate, ro.DisplayName
	for _, older := range ro.Older {
		data[older] = data[newerNames[older]]
	}
	for field, off := range ocspOff {
		data[field] = off
	}
	return data
}

// ocspOff is what reads answer, as the family's do for a role that does not use OCSP.
var ocspOff = map[string]any{
	"ocsp_enabled": false, "ocsp_ca_certificates": "", "ocsp_servers_override": []string{}, "ocsp_fail_open": false,
	"ocsp_query_all_servers": false, "ocsp_this_update_max_age": 0, "ocsp_max_retries": 4,
}

type roleIn struct {
	nameIn
	Certificate string `json:"certificate" max:"262144" help:"PEM: CA certificates, any of which may have issued what clients present; or the one certificate of a client."`
	DisplayName string `json:"display_name" max:"256" help:"Name of the tokens; the role's by default."`
	constraints
	engines.TokenFields
	Policies   engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"1024" help:"Older name of token_policies."`
	TTL        engines.Duration   `json:"ttl" alias:"token_ttl" help:"Older name of token_ttl."`
	MaxTTL     engines.Duration   `json:"max_ttl" alias:"token_max_ttl" help:"Older name of token_max_ttl."`
	Period     engines.Duration   `json:"period" alias:"token_period" help:"Older name of token_period."`
	BoundCIDRs engines.StringList `json:"bound_cidrs" alias:"token_bound_cidrs" form:"network" max:"256" help:"Older name of token_bound_cidrs."`
	ocspIn
}

// ocspIn are the fields of OCSP, which can only be switched off.
type ocspIn struct {
	Enabled         bool               `json:"ocsp_enabled" help:"There is no OCSP: must be false. Revocation lists go to crls/NAME."`
	CACertificates  string             `json:"ocsp_ca_certificates" max:"262144" help:"There is no OCSP: must be empty."`
	Servers         engines.StringList `json:"ocsp_servers_override" max:"64" help:"There is no OCSP: must be empty."`
	FailOpen        bool               `json:"ocsp_fail_open" help:"There is no OCSP: must be false."`
	QueryAllServers bool               `json:"ocsp_query_all_servers" help:"There is no OCSP: must be false."`
	MaxAge          engines.Duration   `json:"ocsp_this_update_max_age" help:"There is no OCSP: it has no effect."`
	MaxRetries      int                `json:"ocsp_max_retries" help:"There is no OCSP: it has no effect."`
}

// check refuses what would be left undone.
func (in *ocspIn) check() error {
	if in.Enabled || in.FailOpen || in.QueryAllServers || in.CACertificates != "" || len(in.Servers) > 0 {
		return engines.Invalid("fields \"ocsp_*\": OCSP is not supported: leave them out, and store revocation lists at crls/NAME")
	}
	return nil
}

// apply sets what the request gave.
func (in *roleIn) apply(req *engines.Request, ro *role) {
	if req.Given("certificate") {
		ro.Certificate = in.Certificate
	}
	if req.Given("display_name") {
		ro.DisplayName = in.DisplayName
	}
	ro.constraints.take(req, in.constraints)
	fields := in.TokenFields
	fields.Keep(req, ro.Token)
	ro.Token = fields
	take := func(older string, set func()) { ro.Older.Take(req, older, newerNames[older], set) }
	take("policies", func() { ro.Token.TokenPolicies = in.Policies })
	take("ttl", func() { ro.Token.TokenTTL = in.TTL })
	take("max_ttl", func() { ro.Token.TokenMaxTTL = in.MaxTTL })
	take("period", func() { ro.Token.TokenPeriod = in.Period })
	take("bound_cidrs", func() { ro.Token.TokenBoundCIDRs = in.BoundCIDRs })
}

// trusted returns what the role trusts: CA certificates, or, if pinned, one client's certificate.
func (ro *role) trusted() (certs []*x509.Certificate, pinned bool, err error) {
	certs, err = parsePEM(ro.Certificate)
	if err != nil {
		return nil, false, err
	}
	if pinned = !certs[0].IsCA; pinned {
		return certs[:1], true, nil
	}
	if slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return !c.IsCA }) {
		return nil, false, errors.New("must hold CA certificates only, or a client's own certificate first")
	}
	return certs, false, nil
}

// parsePEM returns the certificates of a PEM text: at least one.
func parsePEM(text string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace([]byte(text)); len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("must be certificates in PEM and nothing else")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			return nil, errors.New("must be certificates in PEM and nothing else")
		}
		if certs = append(certs, cert); len(certs) > maxTrusted {
			return nil, fmt.Errorf("has more than %d certificates", maxTrusted)
		}
		rest = bytes.TrimSpace(rest)
	}
	if len(certs) == 0 {
		return nil, errors.New("is required: the CA certificates that clients' certificates come from, in PEM")
	}
	return certs, nil
}

// check brings the role into its stored form and refuses what cannot work.
func (ro *role) check() (warnings []string, err error) {
	certs, pinned, err := ro.trusted()
	if err != nil {
		return nil, engines.Invalid("field \"certificate\": %v", err)
	}
	if pinned && !forClients(certs[0]) {
		return nil, engines.Invalid("field \"certificate\": the certificate is no CA's, and its extended key usage does not allow TLS client authentication")
	}
	if pinned {
		if all, err := parsePEM(ro.Certificate); err == nil && len(all) > 1 {
			warnings = append(warnings, "only the first certificate counts: it is no CA's, so the role trusts this one certificate")
		}
	}
	if err := ro.constraints.check(); err != nil {
		return nil, err
	}
	return warnings, ro.Token.Validate()
}

// forClients reports whether a certificate may be used for TLS client authentication.
func forClients(c *x509.Certificate) bool {
	return len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0 ||
		slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}

func listRoles(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, rolePrefix, in.After, in.Limit))
}

func roleExists(ctx context.Context, req *engines.Request) (bool, error) {
	name, err := normalName(req.Param("name"))
	if err != nil {
		return false, err
	}
	ro, err := getRole(ctx, req.Mount.Storage, name)
	return ro != nil, err
}

func readRole(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	ro, err := getRole(ctx, req.Mount.Storage, name)
	if err == nil && ro == nil {
		err = engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: ro.data()}, nil
}

func writeRole(ctx context.Context, req *engines.Request, in *roleIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	if err := in.ocspIn.check(); err != nil {
		return nil, err
	}
	var warnings []string
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		ro, err := getRole(ctx, t, name)
		if err != nil {
			return err
		}
		if ro == nil {
			ro = new(role)
		}
		in.apply(req, ro)
		ro.DisplayName = cmp.Or(ro.DisplayName, name)
		if warnings, err = ro.check(); err != nil {
			return err
		}
		if limit := engines.Duration(req.Mount.MaxLeaseTTL); limit > 0 && ro.Token.TokenMaxTTL > limit {
			warnings = append(warnings, "token_max_ttl is greater than the mount's maximum: tokens get the mount's")
		}
		return engines.PutRecord(t, rolePrefix+storage.Key(name), ro)
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

func deleteRole(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	return remove(ctx, req, rolePrefix, in.Name)
}

// remove deletes what is stored under a name, which need not be there.
func remove(ctx context.Context, req *engines.Request, prefix storage.Key, name string) (*engines.Response, error) {
	name, err := normalName(name)
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		t.Delete(prefix + storage.Key(name))
		return nil
	})
	return nil, err
}
