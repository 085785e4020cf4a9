// Package saml has the commands that set SAML logins up: the connection to the identity provider, checks of its metadata, and explain, which
// says why a response is or is not accepted for a role. The login itself is in package login.
package saml

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

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/login"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/engines/saml/idp"
)

func Command() *cli.Command {
	return command.Group("saml", "set SAML up and find out why a login is refused", `Commands for those who administer a SAML auth method. Users log in with "coffer login -method=saml". docs/saml.md leads through it.

Examples:

  $ coffer saml config -metadata=idp.xml
  $ coffer saml explain dev`,
		configCommand(), verifyCommand(), metadataCommand(), explainCommand())
}

func pathFlag() cli.Flag {
	return &cli.StringFlag{Name: "path", Value: "saml", Usage: "`PATH` of the method"}
}

// apiPath is a path of the method that -path names.
func apiPath(c *command.Call, what string) string {
	return command.AuthPrefix + cmp.Or(login.MethodPath(c.String("path")), "saml") + "/" + what
}

// provider is what is known of an identity provider, as config/verify answers it.
type provider struct {
	EntityID            string        `json:"entity_id"`
	SSOURL              string        `json:"sso_url"`
	WantsSignedRequests bool          `json:"wants_signed_requests"`
	Certificates        []certificate `json:"certificates"`
	FetchedAt           string        `json:"fetched_at,omitempty"`
	Warnings            []string      `json:"warnings,omitempty"`
}

type certificate struct {
	Subject     string `json:"subject"`
	Fingerprint string `json:"sha256_fingerprint"`
	NotBefore   string `json:"not_before"`
	NotAfter    string `json:"not_after"`
}

// newProvider is what a metadata document says.
func newProvider(d *idp.Descriptor) *provider {
	p := &provider{EntityID: d.EntityID, SSOURL: d.SSOURL, WantsSignedRequests: d.WantsSignedRequests}
	for _, cert := range d.Certificates {
		sum := sha256.Sum256(cert.Raw)
		p.Certificates = append(p.Certificates, certificate{
			Subject: cert.Subject.String(), Fingerprint: strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":"),
			NotBefore: cert.NotBefore.UTC().Format(time.RFC3339), NotAfter: cert.NotAfter.UTC().Format(time.RFC3339),
		})
	}
	return p
}

// printProvider shows an identity provider to people.
func printProvider(c *command.Call, p *provider) error {
	rows := []response.Row{{Key: "entity_id", Value: p.EntityID}, {Key: "sso_url", Value: p.SSOURL}, {Key: "wants_signed_requests", Value: p.WantsSignedRequests}}
	if p.FetchedAt != "" {
		rows = append(rows, response.Row{Key: "fetched_at", Value: p.FetchedAt})
	}
	if err := c.PrintTable(rows); err != nil {
		return err
	}
	var certs [][]string
	for _, cert := range p.Certificates {
		certs = append(certs, []string{table.Text(cert.Subject), table.Text(cert.NotBefore), table.Text(cert.NotAfter), table.Text(cert.Fingerprint)})
	}
	fmt.Fprintln(c.Out)
	return c.PrintColumns([]string{"Certificate", "Not Before", "Not After", "SHA-256"}, certs)
}

func verifyCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "verify", Usage: "fetch the identity provider's metadata now and show what is known of it",
		Help: `Shows what the server knows of the identity provider. If it is configured by the URL of its metadata, that is fetched now, from where
the server is. Warnings are about what will stop logins, or soon will: certificates that expire, requests that should be signed.

Examples:

  $ coffer saml verify
  $ coffer saml verify -path=corp -format=json`,
		Flags: []cli.Flag{pathFlag(), command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: apiPath(c, "config/verify")})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable || c.String("field") != "" {
			return c.PrintResponse(a)
		}
		var out struct{ Data provider }
		if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.EntityID == "" {
			return command.ServerErrorf("the answer does not describe an identity provider")
		}
		c.PrintWarnings(a)
		return printProvider(c, &out.Data)
	})
}

func metadataCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "metadata", Usage: "print the metadata that the identity provider needs",
		Help: `Prints what an identity provider has to know of this service: entity id, ACS URLs and, if requests are signed, the certificate. Most
identity providers take the document as a file, or its URL: /v1/auth/PATH/metadata. Needs no token.

Examples:

  $ coffer saml metadata
  $ coffer saml metadata -output=coffer.xml`,
		Flags: []cli.Flag{pathFlag(), &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`"}, command.ForceFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: apiPath(c, "metadata"), Raw: true})
		if err != nil {
			return err
		}
		file := c.String("output")
		if file == "" {
			_, err := c.Out.Write(a.Raw)
			return err
		}
		if err := local.WriteNew(file, c.Bool("force"), func(f *os.File) error { _, err := f.Write(a.Raw); return err }); err != nil {
			return command.Usagef("%w", err)
		}
		c.Sayf("Success! The metadata is in %s.", file)
		return nil
	})
}

// readInput returns the content of the file that a flag names, or of stdin for "-".
func readInput(ctx context.Context, c *command.Call, flag string) (string, error) {
	name := c.String(flag)
	if name != "-" {
		name = "@" + strings.TrimPrefix(name, "@")
	}
	text, err := c.Expand(ctx, name)
	if err != nil {
		return "", command.Usagef("-%s: %w", flag, err)
	}
	return text, nil
}
