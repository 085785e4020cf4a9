package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/coffer-project/coffer/engines/saml/idp"
)

func samlCommand() *cli.Command {
	return group("saml", "set SAML up and find out why a login is refused", `Commands for those who administer a SAML auth method. Users log in with "coffer login -method=saml". docs/saml.md leads through it.

Examples:

  $ coffer saml config -metadata=idp.xml
  $ coffer saml explain dev`,
		samlConfigCommand(), samlVerifyCommand(), samlMetadataCommand(), samlExplainCommand())
}

func samlPathFlag() cli.Flag {
	return &cli.StringFlag{Name: "path", Value: "saml", Usage: "`PATH` of the method"}
}

// samlPath is a path of the method that -path names.
func (c *call) samlPath(what string) string {
	return methodKind.prefix + cmp.Or(methodPath(c.String("path")), "saml") + "/" + what
}

// samlProvider is what is known of an identity provider, as config/verify answers it.
type samlProvider struct {
	EntityID            string            `json:"entity_id"`
	SSOURL              string            `json:"sso_url"`
	WantsSignedRequests bool              `json:"wants_signed_requests"`
	Certificates        []samlCertificate `json:"certificates"`
	FetchedAt           string            `json:"fetched_at,omitempty"`
	Warnings            []string          `json:"warnings,omitempty"`
}

type samlCertificate struct {
	Subject     string `json:"subject"`
	Fingerprint string `json:"sha256_fingerprint"`
	NotBefore   string `json:"not_before"`
	NotAfter    string `json:"not_after"`
}

// newSAMLProvider is what a metadata document says.
func newSAMLProvider(d *idp.Descriptor) *samlProvider {
	p := &samlProvider{EntityID: d.EntityID, SSOURL: d.SSOURL, WantsSignedRequests: d.WantsSignedRequests}
	for _, cert := range d.Certificates {
		sum := sha256.Sum256(cert.Raw)
		p.Certificates = append(p.Certificates, samlCertificate{
			Subject: cert.Subject.String(), Fingerprint: strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":"),
			NotBefore: cert.NotBefore.UTC().Format(time.RFC3339), NotAfter: cert.NotAfter.UTC().Format(time.RFC3339),
		})
	}
	return p
}

// printProvider shows an identity provider to people.
func (c *call) printProvider(p *samlProvider) error {
	rows := []row{{"entity_id", p.EntityID}, {"sso_url", p.SSOURL}, {"wants_signed_requests", p.WantsSignedRequests}}
	if p.FetchedAt != "" {
		rows = append(rows, row{"fetched_at", p.FetchedAt})
	}
	if err := c.printTable(rows); err != nil {
		return err
	}
	var certs [][]string
	for _, cert := range p.Certificates {
		certs = append(certs, []string{text(cert.Subject), text(cert.NotBefore), text(cert.NotAfter), text(cert.Fingerprint)})
	}
	fmt.Fprintln(c.out)
	return c.printColumns([]string{"Certificate", "Not Before", "Not After", "SHA-256"}, certs)
}

func samlVerifyCommand() *cli.Command {
	return command(spec{
		name: "verify", usage: "fetch the identity provider's metadata now and show what is known of it",
		help: `Shows what the server knows of the identity provider. If it is configured by the URL of its metadata, that is fetched now, from where
the server is. Warnings are about what will stop logins, or soon will: certificates that expire, requests that should be signed.

Examples:

  $ coffer saml verify
  $ coffer saml verify -path=corp -format=json`,
		flags: []cli.Flag{samlPathFlag(), fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		a, err := c.send(ctx, request{method: http.MethodPost, path: c.samlPath("config/verify")})
		if err != nil {
			return err
		}
		if c.format() != formatTable || c.String("field") != "" {
			return c.printAnswer(a)
		}
		var out struct{ Data samlProvider }
		if err := json.Unmarshal(a.raw, &out); err != nil || out.Data.EntityID == "" {
			return serverErrorf("the answer does not describe an identity provider")
		}
		c.printWarnings(a)
		return c.printProvider(&out.Data)
	})
}

func samlMetadataCommand() *cli.Command {
	return command(spec{
		name: "metadata", usage: "print the metadata that the identity provider needs",
		help: `Prints what an identity provider has to know of this service: entity id, ACS URLs and, if requests are signed, the certificate. Most
identity providers take the document as a file, or its URL: /v1/auth/PATH/metadata. Needs no token.

Examples:

  $ coffer saml metadata
  $ coffer saml metadata -output=coffer.xml`,
		flags: []cli.Flag{samlPathFlag(), &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`"}},
	}, func(ctx context.Context, c *call) error {
		a, err := c.send(ctx, request{method: http.MethodGet, path: c.samlPath("metadata"), raw: true})
		if err != nil {
			return err
		}
		file := c.String("output")
		if file == "" {
			_, err := c.out.Write(a.raw)
			return err
		}
		if err := writePrivate(file, func(f *os.File) error { _, err := f.Write(a.raw); return err }); err != nil {
			return err
		}
		c.sayf("Success! The metadata is in %s.", file)
		return nil
	})
}

// readInput returns the content of the file that a flag names, or of stdin for "-".
func (c *call) readInput(ctx context.Context, flag string) (string, error) {
	name := c.String(flag)
	if name != "-" {
		name = "@" + strings.TrimPrefix(name, "@")
	}
	text, err := c.expand(ctx, name)
	if err != nil {
		return "", usagef("-%s: %w", flag, err)
	}
	return text, nil
}
