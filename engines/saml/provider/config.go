package provider

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/storage"
)

const configKey storage.Key = "config"

// Config is the stored configuration of a mount, as JSON.
type Config struct {
	Format int `json:"format"` // 1

	// Either the metadata's URL is set, or the three fields after it.
	IDPMetadataURL string `json:"idp_metadata_url,omitempty"`
	IDPSSOURL      string `json:"idp_sso_url,omitempty"`
	IDPEntityID    string `json:"idp_entity_id,omitempty"`
	IDPCert        string `json:"idp_cert,omitempty"` // PEM, one certificate or several

	EntityID       string             `json:"entity_id"`
	ACSURLs        engines.StringList `json:"acs_urls"`
	DefaultRole    string             `json:"default_role,omitempty"`
	VerboseLogging bool               `json:"verbose_logging,omitempty"`

	ValidateResponseSignature  bool `json:"validate_response_signature,omitempty"`
	ValidateAssertionSignature bool `json:"validate_assertion_signature,omitempty"`
	SignAuthnRequests          bool `json:"sign_authn_requests,omitempty"`
	AllowIDPInitiated          bool `json:"allow_idp_initiated,omitempty"`

	// NameIDFormat is the format that NameIDs must have, "" for any.
	NameIDFormat string `json:"name_id_format,omitempty"`
	// FoldNames takes aliases of users in lower case. Configurations from before it was there go on without it, or their users
	// would become new entities.
	FoldNames bool `json:"fold_names,omitempty"`
}

func (c *Config) RecordFormat() *int { return &c.Format }

var errNotConfigured = engines.Invalid("the method is not configured: write its config first")

// GetConfig returns the configuration. Without one the error tells the client so.
func GetConfig(ctx context.Context, s engines.Getter) (*Config, error) {
	c := new(Config)
	found, err := engines.GetRecord(ctx, s, configKey, c)
	if err == nil && !found {
		err = errNotConfigured
	}
	return c, err
}

// Alias returns the name of the alias of a subject. Only A to Z are folded: other letters have more than one partner, so that
// two names would become one that look different.
func (c *Config) Alias(subject string) string {
	if !c.FoldNames {
		return subject
	}
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, subject)
}

// nameIDFormats are short names of formats (SAML core 8.3).
var nameIDFormats = map[string]string{
	"unspecified":                "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified",
	"emailaddress":               "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress",
	"x509subjectname":            "urn:oasis:names:tc:SAML:1.1:nameid-format:X509SubjectName",
	"windowsdomainqualifiedname": "urn:oasis:names:tc:SAML:1.1:nameid-format:WindowsDomainQualifiedName",
	"kerberos":                   "urn:oasis:names:tc:SAML:2.0:nameid-format:kerberos",
	"persistent":                 "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent",
	"transient":                  transientFormat,
}

const transientFormat = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"

// nameIDFormat returns the URI of a format that is given by its URI or its short name.
func nameIDFormat(text string) string {
	text = strings.TrimSpace(text)
	return cmp.Or(nameIDFormats[strings.ToLower(text)], text)
}

// nameWarnings tell who can choose the name that a user gets.
func (c *Config) nameWarnings() []string {
	switch {
	case c.NameIDFormat == transientFormat:
		return []string{"name_id_format: names of the format transient are new at each login, and so is the entity: what is said of an entity does not hold at the next login"}
	case c.NameIDFormat == "" && !c.SignAuthnRequests:
		return []string{"name_id_format: neither it nor sign_authn_requests is set: a user can edit the request, have the identity provider send a name of another format, and so become another entity, past what was said of the first one. Set name_id_format to the format that the identity provider sends, or sign requests and have it demand that"}
	}
	return nil
}

type none struct{}

// Routes declares the paths of the configuration.
func (p *Provider) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "config", "Read the configuration.", 0, readConfig).
		Returns(`acs_urls: [string], allow_idp_initiated: boolean, case_sensitive_names: boolean, default_role, entity_id, idp_cert,
			idp_entity_id, idp_metadata_url, idp_sso_url, name_id_format, sign_authn_requests: boolean, validate_assertion_signature:
			boolean, validate_response_signature: boolean, verbose_logging: boolean`)
	engines.On(r, engines.Update, "config", "Configure the identity provider, or change what is given.", 0, writeConfig).Exists = configExists
	engines.On(r, engines.Update, "config/verify", "Fetch the identity provider's metadata now, and say what is known of it.", engines.ClusterLocal|engines.Active, p.verifyConfig).
		Returns("certificates: [{*: string}], entity_id, fetched_at: string?, sso_url, wants_signed_requests: boolean")
	engines.On(r, engines.Update, "config/rotate-signing-key", "Make a new key for signed requests.", 0, rotateKey).Returns("certificate")
	engines.On(r, engines.Read, "metadata", "The metadata of this service provider, for the identity provider.", engines.Unauthenticated, metadata).
		Returns("application/samlmetadata+xml;")
}

func configExists(ctx context.Context, req *engines.Request) (bool, error) {
	return engines.GetRecord(ctx, req.Mount.Storage, configKey, new(Config))
}

// readConfig returns what was set, and the switches.
func readConfig(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	c := new(Config)
	if found, err := engines.GetRecord(ctx, req.Mount.Storage, configKey, c); err != nil || !found {
		return nil, orMissing(err)
	}
	data := map[string]any{
		"entity_id":                    c.EntityID,
		"acs_urls":                     c.ACSURLs,
		"verbose_logging":              c.VerboseLogging,
		"validate_response_signature":  c.ValidateResponseSignature,
		"validate_assertion_signature": c.ValidateAssertionSignature,
		"sign_authn_requests":          c.SignAuthnRequests,
		"allow_idp_initiated":          c.AllowIDPInitiated,
		"case_sensitive_names":         !c.FoldNames,
	}
	for field, value := range map[string]string{
		"idp_metadata_url": c.IDPMetadataURL, "idp_sso_url": c.IDPSSOURL, "idp_entity_id": c.IDPEntityID,
		"idp_cert": c.IDPCert, "default_role": c.DefaultRole, "name_id_format": c.NameIDFormat,
	} {
		if value != "" {
			data[field] = value
		}
	}
	return &engines.Response{Data: data}, nil
}

func orMissing(err error) error {
	if err != nil {
		return err
	}
	return engines.NotFound("")
}

// configIn is the input of a write: what is absent keeps its value, an empty text unsets.
type configIn struct {
	IDPMetadataURL string `json:"idp_metadata_url" form:"trim" help:"Address of the identity provider's metadata. Excludes the other idp_ fields."`
	IDPSSOURL      string `json:"idp_sso_url" form:"trim" help:"Address where the identity provider takes requests by HTTP-Redirect."`
	IDPEntityID    string `json:"idp_entity_id" form:"trim" help:"Entity id of the identity provider."`
	IDPIssuer      string `json:"idp_issuer" alias:"idp_entity_id" form:"trim" help:"Another name of idp_entity_id."`
	IDPCert        string `json:"idp_cert" form:"trim" max:"131072" help:"Certificate that the identity provider signs with, in PEM; several may follow one another."`

	EntityID       string             `json:"entity_id" form:"trim" help:"Entity id of this service provider, as the identity provider knows it."`
	ACSURLs        engines.StringList `json:"acs_urls" max:"64" help:"Addresses of the callback that responses may be posted to."`
	DefaultRole    string             `json:"default_role" form:"name" max:"512" help:"Role of logins that name none."`
	VerboseLogging bool               `json:"verbose_logging" help:"Log users' attributes at debug level and whole responses at trace level. Not for production."`

	ValidateResponseSignature  bool   `json:"validate_response_signature" help:"Demand that the response is signed; otherwise a signature of the response or of the assertion suffices."`
	ValidateAssertionSignature bool   `json:"validate_assertion_signature" help:"Demand that the assertion is signed."`
	SignAuthnRequests          bool   `json:"sign_authn_requests" help:"Sign the requests to the identity provider. The certificate is in the metadata of this mount."`
	NameIDFormat               string `json:"name_id_format" max:"1024" help:"Format that the identity provider is asked for and that the NameID must have: a URI, or unspecified, emailAddress, persistent, transient, kerberos, X509SubjectName or WindowsDomainQualifiedName. Empty: any."`
	CaseSensitiveNames         bool   `json:"case_sensitive_names" help:"Whether Alice and alice are two entities. Names of aliases are in lower case otherwise, as they are in a new configuration."`
	AllowIDPInitiated          bool   `json:"allow_idp_initiated" help:"Also accept responses to no request, for the default role; the user gets a code to finish the login with."`
}

// writeConfig changes what is given. Nothing is fetched: config/verify does that.
func writeConfig(ctx context.Context, req *engines.Request, in *configIn) (*engines.Response, error) {
	var warnings []string
	var key *signingKey // made once, however often the transaction runs
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		c := new(Config)
		found, err := engines.GetRecord(ctx, t, configKey, c)
		if err != nil {
			return err
		}
		if !found {
			c.FoldNames = true
		}
		url, folds := c.IDPMetadataURL, c.FoldNames
		p := in.apply(req, c)
		if c.IDPMetadataURL != url {
			t.Delete(verifiedKey)
		}
		warnings = c.check(&p, time.Now())
		if p != nil {
			return p.Err()
		}
		if found && c.FoldNames != folds {
			warnings = append(warnings, "case_sensitive_names: aliases keep the names that they have: users whose name has capitals get another entity at their next login")
		}
		missing, err := c.lacksRole(ctx, req.Mount.Storage)
		if err != nil {
			return err
		}
		warnings = append(warnings, missing...)
		if c.SignAuthnRequests {
			if err := ensureSigningKey(ctx, t, &key, c.EntityID); err != nil {
				return err
			}
		}
		return engines.PutRecord(t, configKey, c)
	})
	if err != nil || warnings == nil {
		return nil, err
	}
	return &engines.Response{Warnings: warnings}, nil
}

// apply changes the configuration to what the request gives.
func (in *configIn) apply(req *engines.Request, c *Config) (p engines.Problems) {
	p = in.applyProvider(req, c)
	set(req, "entity_id", &c.EntityID, strings.TrimSpace(in.EntityID))
	set(req, "default_role", &c.DefaultRole, strings.ToLower(strings.TrimSpace(in.DefaultRole)))
	set(req, "verbose_logging", &c.VerboseLogging, in.VerboseLogging)
	set(req, "validate_response_signature", &c.ValidateResponseSignature, in.ValidateResponseSignature)
	set(req, "validate_assertion_signature", &c.ValidateAssertionSignature, in.ValidateAssertionSignature)
	set(req, "sign_authn_requests", &c.SignAuthnRequests, in.SignAuthnRequests)
	set(req, "allow_idp_initiated", &c.AllowIDPInitiated, in.AllowIDPInitiated)
	set(req, "name_id_format", &c.NameIDFormat, nameIDFormat(in.NameIDFormat))
	set(req, "case_sensitive_names", &c.FoldNames, !in.CaseSensitiveNames)
	if req.Given("acs_urls") {
		c.ACSURLs = nil
		for _, u := range in.ACSURLs {
			if !slices.Contains(c.ACSURLs, u) {
				c.ACSURLs = append(c.ACSURLs, u)
			}
		}
	}
	return p
}

func set[T any](req *engines.Request, field string, v *T, given T) {
	if req.Given(field) {
		*v = given
	}
}

// applyProvider changes what says who the identity provider is. There are two ways to say it: one request uses one of
// them, and a later one that gives the whole other replaces it.
func (in *configIn) applyProvider(req *engines.Request, c *Config) (p engines.Problems) {
	url, sso, cert := strings.TrimSpace(in.IDPMetadataURL), strings.TrimSpace(in.IDPSSOURL), strings.TrimSpace(in.IDPCert)
	id, issuer := strings.TrimSpace(in.IDPEntityID), strings.TrimSpace(in.IDPIssuer)
	if id != "" && issuer != "" && id != issuer {
		p.Add("idp_issuer", "is another name of idp_entity_id, and they differ: give one of them")
	}
	if id == "" {
		id = issuer
	}
	switch {
	case url != "" && (sso != "" || id != "" || cert != ""):
		p.Add("idp_metadata_url", "is mutually exclusive with idp_sso_url, idp_entity_id (idp_issuer) and idp_cert: give either the URL or the three of them")
		return p
	case url != "":
		c.IDPMetadataURL, c.IDPSSOURL, c.IDPEntityID, c.IDPCert = url, "", "", ""
		return p
	case sso != "" && id != "" && cert != "":
		c.IDPMetadataURL = ""
	}
	set(req, "idp_metadata_url", &c.IDPMetadataURL, "")
	set(req, "idp_sso_url", &c.IDPSSOURL, sso)
	if cert != "" {
		cert = in.IDPCert // read back as it was written
	}
	set(req, "idp_cert", &c.IDPCert, cert)
	if req.Given("idp_entity_id") || req.Given("idp_issuer") {
		c.IDPEntityID = id
	}
	if c.IDPMetadataURL != "" && (c.IDPSSOURL != "" || c.IDPEntityID != "" || c.IDPCert != "") {
		p.Add("idp_metadata_url", "is configured and mutually exclusive with idp_sso_url, idp_entity_id (idp_issuer) and idp_cert: give all three to replace it")
	}
	return p
}

// check adds everything that keeps the configuration from working, and returns what should be known about it.
func (c *Config) check(p *engines.Problems, now time.Time) (warnings []string) {
	warn := func(field, text string, args ...any) {
		warnings = append(warnings, field+": "+fmt.Sprintf(text, args...))
	}
	c.checkProvider(p, warn, now)

	if c.EntityID == "" {
		p.Add("entity_id", "is required: the name that the identity provider has for this service provider")
	} else if err := idp.CheckEntityID(c.EntityID); err != nil {
		p.Add("entity_id", "%v", err)
	}
	if len(c.ACSURLs) == 0 {
		p.Add("acs_urls", "is required: the address of this mount's callback, such as \"https://coffer.example.com/v1/auth/saml/callback\"")
	}
	for i, u := range c.ACSURLs {
		if err := idp.CheckURL(u); err != nil {
			p.Add("acs_urls", "element %d %v", i+1, err)
		} else if withoutTLS(u) {
			warn("acs_urls", "%s is a URL without TLS: a response that is posted there can be read on the way", u)
		}
	}
	if c.AllowIDPInitiated && c.DefaultRole == "" {
		p.Add("allow_idp_initiated", "needs a default_role, for logins that were not started here")
	}
	if c.NameIDFormat != "" && !idp.IsURI(c.NameIDFormat) {
		p.Add("name_id_format", "is neither a URI, such as %s, nor a short name of a format, such as persistent", nameIDFormats["persistent"])
	}
	warnings = append(warnings, c.nameWarnings()...)
	if c.VerboseLogging {
		warn("verbose_logging", "logs what the identity provider says about users: it is not for production")
	}
	return warnings
}

func (c *Config) checkProvider(p *engines.Problems, warn func(field, text string, args ...any), now time.Time) {
	checkURL := func(field, url, risk string) {
		if err := idp.CheckURL(url); err != nil {
			p.Add(field, "%v", err)
		} else if withoutTLS(url) {
			warn(field, "%s is a URL without TLS: %s", shownURL(url), risk)
		}
	}
	if c.IDPMetadataURL != "" {
		checkURL("idp_metadata_url", c.IDPMetadataURL, "a host on the way can put other certificates into the metadata, and log in as any user")
		return
	}
	if c.IDPSSOURL == "" && c.IDPEntityID == "" && c.IDPCert == "" {
		p.Add("idp_metadata_url", "is required, or idp_sso_url, idp_entity_id and idp_cert together")
		return
	}
	const otherwise = "is required, as there is no idp_metadata_url"
	if c.IDPSSOURL == "" {
		p.Add("idp_sso_url", otherwise)
	} else {
		checkURL("idp_sso_url", c.IDPSSOURL, "the user's browser asks for the login there unprotected")
	}
	if c.IDPEntityID == "" {
		p.Add("idp_entity_id", otherwise)
	} else if err := idp.CheckEntityID(c.IDPEntityID); err != nil {
		p.Add("idp_entity_id", "%v", err)
	}
	if c.IDPCert == "" {
		p.Add("idp_cert", otherwise)
	} else if certificates, err := idp.ParseCertificates(c.IDPCert); err != nil {
		p.Add("idp_cert", "%v", err)
	} else {
		for _, text := range certificateWarnings(certificates, now) {
			warn("idp_cert", "%s", text)
		}
	}
}

// lacksRole warns of a default role that is not there (yet).
func (c *Config) lacksRole(ctx context.Context, s engines.Getter) ([]string, error) {
	if c.DefaultRole == "" {
		return nil, nil
	}
	if ro, err := role.Get(ctx, s, c.DefaultRole); err != nil || ro != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("default_role: there is no role %q: logins that name no role fail until there is one", c.DefaultRole)}, nil
}
