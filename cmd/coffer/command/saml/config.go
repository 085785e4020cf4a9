package saml

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/login"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/engines/saml/idp"
)

func configCommand() *cli.Command {
	str := func(name, usage string) cli.Flag { return &cli.StringFlag{Name: name, Usage: usage} }
	boolean := func(name, usage string) cli.Flag { return &cli.BoolFlag{Name: name, Usage: usage} }
	return command.New(command.Spec{
		Name: "config", Usage: "show or change the configuration, also from an identity provider's metadata file",
		Help: `Changes the settings given and leaves the others as they are; without any it shows the configuration.

-metadata reads a file that the identity provider offers for download, shows what it says, and writes its entity id, SSO URL and
certificates. -metadata-url lets the server fetch the document itself, again and again, so that new certificates need no hand. If the
method has no configuration yet, -entity-id and -acs-url may be left out: they are made of this server's address.

Examples:

  $ coffer saml config -metadata=idp.xml -default-role=dev
  $ coffer saml config -metadata-url=https://idp.example.com/metadata
  $ coffer saml config -acs-url=https://eu.example.com/v1/auth/saml/callback -acs-url=https://us.example.com/v1/auth/saml/callback`,
		Flags: []cli.Flag{
			pathFlag(),
			str("metadata", "`FILE` with the identity provider's metadata; - is stdin"),
			str("metadata-url", "`URL` of the metadata, for the server to fetch"),
			str("entity-id", "`ID` that the identity provider knows this service by"),
			&cli.StringSliceFlag{Name: "acs-url", Usage: "`URL` of a callback, where answers are posted; repeatable, these replace those there are"},
			str("default-role", "`ROLE` of logins that name none"),
			str("name-id-format", "`FORMAT` of names, which is asked for and demanded: a URI, or a short name such as persistent or emailAddress"),
			boolean("case-sensitive-names", "let Alice and alice be two entities"),
			boolean("sign-authn-requests", "sign requests"),
			boolean("validate-response-signature", "demand that the response itself is signed"),
			boolean("validate-assertion-signature", "demand that the assertion itself is signed"),
			boolean("allow-idp-initiated", "let logins begin at the identity provider"),
			boolean("verbose-logging", "log the attributes of users, to find mistakes; not for production"),
		},
	}, configure)
}

func configure(ctx context.Context, c *command.Call) error {
	path := apiPath(c, "config")
	body := map[string]any{}
	for _, flag := range []string{"entity-id", "default-role", "name-id-format"} {
		command.SetIfGiven(c, body, flag, c.String(flag))
	}
	for _, flag := range []string{"sign-authn-requests", "validate-response-signature", "validate-assertion-signature", "allow-idp-initiated", "verbose-logging", "case-sensitive-names"} {
		command.SetIfGiven(c, body, flag, c.Bool(flag))
	}
	if c.IsSet("acs-url") {
		body["acs_urls"] = c.StringSlice("acs-url")
	}
	if c.IsSet("metadata-url") {
		body["idp_metadata_url"] = c.String("metadata-url")
	}
	provider, err := readMetadata(ctx, c, body)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		a, err := c.Get(ctx, path)
		if command.NothingThere(err) {
			return command.ServerErrorf("there is no configuration at %s", path)
		}
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	}
	if err := addDefaults(ctx, c, path, body); err != nil {
		return err
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body})
	if err != nil {
		return err
	}
	if provider != nil && c.Format() != command.FormatTable {
		provider.Warnings = a.Warnings()
		return c.PrintValue(provider)
	}
	if err := c.PrintWritten(a, path); err != nil || !c.IsSet("metadata-url") {
		return err
	}
	checkMetadataURL(ctx, c, path)
	return nil
}

// checkMetadataURL has the server fetch the metadata whose URL was configured, and warns if that fails: nothing else would
// tell before the first login. The configuration stands.
func checkMetadataURL(ctx context.Context, c *command.Call, path string) {
	_, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path + "/verify"})
	switch {
	case err == nil, c.Bool("output-curl-string"):
	case command.StatusOf(err) == http.StatusForbidden:
		c.Warnf("Not checked: your token may not have the server fetch the metadata. Who may does it with: coffer saml verify")
	default:
		c.Warnf("Warning: logins will fail until the server can fetch the metadata: %s. Check again with: coffer saml verify", table.Printable(err.Error()))
	}
}

// readMetadata puts what the file named by -metadata says into body, and shows it. It returns nil if there is no such flag.
func readMetadata(ctx context.Context, c *command.Call, body map[string]any) (*provider, error) {
	if !c.IsSet("metadata") {
		return nil, nil
	}
	if c.IsSet("metadata-url") {
		return nil, command.Usagef("-metadata and -metadata-url exclude each other: the server reads either what is in the file now, or what is at the URL")
	}
	text, err := readInput(ctx, c, "metadata")
	if err != nil {
		return nil, err
	}
	d, err := idp.Parse([]byte(text))
	if err != nil {
		return nil, command.Usagef("-metadata: %w", err)
	}
	var certs strings.Builder
	for _, cert := range d.Certificates {
		if err := pem.Encode(&certs, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}); err != nil {
			return nil, err
		}
	}
	body["idp_sso_url"], body["idp_entity_id"], body["idp_cert"] = d.SSOURL, d.EntityID, certs.String()
	if !d.ValidUntil.IsZero() && d.ValidUntil.Before(time.Now()) {
		c.Warnf("Warning: the metadata was valid until %s. Download it again.", d.ValidUntil.UTC().Format(time.RFC3339))
	}
	if d.WantsSignedRequests && !c.Bool("sign-authn-requests") {
		c.Warnf("Warning: the identity provider wants signed requests: see -sign-authn-requests.")
	}
	p := newProvider(d)
	if c.Format() != command.FormatTable {
		return p, nil
	}
	if err := printProvider(c, p); err != nil {
		return nil, err
	}
	fmt.Fprintln(c.Out)
	return p, nil
}

// addDefaults fills in entity id and ACS URL of a configuration that does not exist yet. Whether it does is not known to
// those who may write it and not read it: then the server says what is missing.
func addDefaults(ctx context.Context, c *command.Call, path string, body map[string]any) error {
	if body["entity_id"] != nil && body["acs_urls"] != nil || c.Bool("output-curl-string") {
		return nil
	}
	if _, err := c.Get(ctx, path); !command.NothingThere(err) {
		return nil
	}
	client, err := c.Connect()
	if err != nil {
		return err
	}
	mount := strings.TrimSuffix(strings.TrimPrefix(path, command.AuthPrefix), "/config")
	if body["entity_id"] == nil {
		body["entity_id"] = login.MethodURL(client, mount) + "/metadata"
		c.Warnf("Not given, so made of this server's address: -entity-id=%s", body["entity_id"])
	}
	if body["acs_urls"] == nil {
		body["acs_urls"] = []string{login.CallbackURL(client, mount)}
		c.Warnf("Not given, so made of this server's address: -acs-url=%s", login.CallbackURL(client, mount))
	}
	return nil
}
