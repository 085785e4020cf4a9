package cloud

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// Values of -as.
const (
	asEnv     = "env"
	asJSON    = "json"
	asProcess = "credential-process"
)

func asFlag() cli.Flag {
	return &cli.StringFlag{Name: "as", Usage: "print only the credentials, as `env|json|credential-process`"}
}

// checkAs refuses an -as that cannot be printed, before there are credentials.
func checkAs(c *command.Call) error {
	switch c.String("as") {
	case "":
		return nil
	case asEnv, asJSON, asProcess:
	default:
		return command.Usagef("-as is %q; there are %s, %s and %s", c.String("as"), asEnv, asJSON, asProcess)
	}
	for _, other := range []string{"format", "field", "wrap-ttl"} {
		if c.IsSet(other) {
			return command.Usagef("-as and -%s exclude each other", other)
		}
	}
	return nil
}

// credentials are what a client logs in to a cloud provider with.
type credentials struct {
	AccessKey    string    `json:"access_key"`
	SecretKey    string    `json:"secret_key"`
	SessionToken string    `json:"session_token,omitempty"` // "" for keys of users
	ARN          string    `json:"arn,omitempty"`
	Expiration   time.Time `json:"expiration,omitzero"` // zero if the server does not say
	LeaseID      string    `json:"lease_id,omitempty"`
}

// issuedCredentials reads a response of creds/ or sts/. Times count from asked on, so that what is printed as their end is
// not after it.
func issuedCredentials(a *command.Response, asked time.Time) (*credentials, error) {
	var out struct {
		LeaseID  string `json:"lease_id"`
		Duration int64  `json:"lease_duration"`
		Data     struct {
			credentials
			TTL int64 `json:"ttl"`
		}
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		return nil, command.ServerErrorf("the answer holds no credentials; is another engine mounted there?")
	}
	creds := out.Data.credentials
	if creds.SessionToken == "" { // what sessions have as a lease leads nowhere
		creds.LeaseID = out.LeaseID
	}
	seconds := out.Data.TTL
	if seconds == 0 {
		seconds = out.Duration
	}
	if seconds > 0 {
		creds.Expiration = asked.Add(time.Duration(seconds) * time.Second)
	}
	return &creds, nil
}

// staticCredentials reads a response of static-creds/.
func staticCredentials(a *command.Response) (*credentials, error) {
	var out struct{ Data credentials }
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		return nil, command.ServerErrorf("the answer holds no credentials; is another engine mounted there?")
	}
	return &out.Data, nil
}

// printAs prints credentials as -as says, which checkAs knows.
func printAs(c *command.Call, a *command.Response, creds *credentials) error {
	if a.Secret != nil {
		for _, w := range a.Secret.Warnings {
			c.Warnf("Warning: %s", table.Printable(w))
		}
	}
	switch c.String("as") {
	case asEnv:
		if creds.LeaseID != "" {
			c.Warnf("The keys are those of the lease %s, which ends at %s.", table.Printable(creds.LeaseID), creds.Expiration.Format(time.RFC3339))
		}
		_, err := fmt.Fprint(c.Out, creds.shell())
		return err
	case asProcess:
		return printObject(c, creds.process())
	}
	return printObject(c, creds)
}

func printObject(c *command.Call, v any) error {
	out := json.NewEncoder(c.Out)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

// shell are commands that put the credentials into the environment. A session token of before would spoil the keys of a
// user.
func (k *credentials) shell() string {
	var b strings.Builder
	set := func(name, value string) { fmt.Fprintf(&b, "export %s=%s\n", name, command.ShellWord(value)) }
	set("AWS_ACCESS_KEY_ID", k.AccessKey)
	set("AWS_SECRET_ACCESS_KEY", k.SecretKey)
	if k.SessionToken == "" {
		b.WriteString("unset AWS_SESSION_TOKEN\n")
	} else {
		set("AWS_SESSION_TOKEN", k.SessionToken)
	}
	if k.Expiration.IsZero() {
		b.WriteString("unset AWS_CREDENTIAL_EXPIRATION\n")
	} else {
		set("AWS_CREDENTIAL_EXPIRATION", k.Expiration.Format(time.RFC3339))
	}
	return b.String()
}

// processCredentials are the document that SDKs read from a credential_process.
type processCredentials struct {
	Version         int
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	SessionToken    string    `json:",omitempty"`
	Expiration      time.Time `json:",omitzero"`
}

func (k *credentials) process() processCredentials {
	return processCredentials{
		Version: 1, AccessKeyID: k.AccessKey, SecretAccessKey: k.SecretKey, SessionToken: k.SessionToken, Expiration: k.Expiration,
	}
}
