package kubernetes

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

// Config says which namespace, and who is let in.
type Config struct {
	APIServer  string            `json:"api_server" form:"trim" max:"500" help:"URL of the cluster's API server, such as https://cluster.example.com:6443."`
	CACert     string            `json:"ca_cert" form:"trim" max:"65536" help:"Certificates that have signed that of the API server, PEM. Without it, those that the server's system trusts."`
	Token      engines.Sensitive `json:"token" max:"16384" help:"Token of a service account that may manage the Secrets of the namespace."`
	Namespace  string            `json:"namespace" form:"trim" max:"63" help:"Namespace whose Secrets are managed."`
	SecretType string            `json:"secret_type" form:"trim" max:"253" help:"Type of new Secrets, such as kubernetes.io/tls. Without it, Opaque."`
}

var (
	legalNamespace = engines.Pattern(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	legalType      = engines.Pattern(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
)

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.APIServer = strings.TrimRight(strings.TrimSpace(c.APIServer), "/")
	c.CACert, c.Namespace, c.SecretType = strings.TrimSpace(c.CACert), strings.TrimSpace(c.Namespace), strings.TrimSpace(c.SecretType)
	c.Token = engines.Sensitive(strings.TrimSpace(c.Token.Reveal()))
	if c.APIServer == "" {
		problems = append(problems, "api_server must be given")
	} else if p := wire.URLProblem(c.APIServer); p != "" {
		problems = append(problems, "api_server "+p)
	}
	if c.CACert != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CACert)) {
		problems = append(problems, "ca_cert must be certificates in PEM; @file is expanded by the command line only")
	}
	if p := wire.CredentialProblem(c.Token.Reveal()); p != "" {
		problems = append(problems, "token "+p)
	}
	switch {
	case c.Namespace == "":
		problems = append(problems, "namespace must be given")
	case !legalNamespace().MatchString(c.Namespace):
		problems = append(problems, "namespace must be lower-case letters, digits and \"-\", at most 63")
	}
	switch {
	case c.SecretType == "":
	case !legalType().MatchString(c.SecretType):
		problems = append(problems, "secret_type must be the type of a Secret, such as Opaque or kubernetes.io/tls")
	case c.SecretType == "kubernetes.io/service-account-token":
		problems = append(problems, "secret_type must not be kubernetes.io/service-account-token: the cluster fills such Secrets itself")
	}
	return problems
}

// Location implements destination.Config.
func (c *Config) Location() string {
	return typeName + "/" + wire.Location(c.APIServer) + "/" + c.Namespace
}

// Owner implements destination.Owned: the API server, as its certificate shows it.
func (c *Config) Owner() string {
	return fmt.Sprintf("%s %x", wire.Location(c.APIServer), sha256.Sum256([]byte(c.CACert)))
}

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	out := map[string]any{"api_server": c.APIServer, "namespace": c.Namespace}
	for name, value := range map[string]string{"ca_cert": c.CACert, "secret_type": c.SecretType} {
		if value != "" {
			out[name] = value
		}
	}
	if c.Token != "" {
		out["token"] = destination.Mask
	}
	return out
}
