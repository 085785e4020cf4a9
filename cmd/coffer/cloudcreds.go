package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
)

// Values of -as.
const (
	asEnv     = "env"
	asJSON    = "json"
	asProcess = "credential-process"
)

func cloudAsFlag() cli.Flag {
	return &cli.StringFlag{Name: "as", Usage: "print only the credentials, as `env|json|credential-process`"}
}

// checkAs refuses an -as that cannot be printed, before there are credentials.
func (c *call) checkAs() error {
	switch c.String("as") {
	case "":
		return nil
	case asEnv, asJSON, asProcess:
	default:
		return usagef("-as is %q; there are %s, %s and %s", c.String("as"), asEnv, asJSON, asProcess)
	}
	for _, other := range []string{"format", "field", "wrap-ttl"} {
		if c.IsSet(other) {
			return usagef("-as and -%s exclude each other", other)
		}
	}
	return nil
}

// cloudCredentials are what a client logs in to a cloud provider with.
type cloudCredentials struct {
	AccessKey    string    `json:"access_key"`
	SecretKey    string    `json:"secret_key"`
	SessionToken string    `json:"session_token,omitempty"` // "" for keys of users
	ARN          string    `json:"arn,omitempty"`
	Expiration   time.Time `json:"expiration,omitzero"` // zero if the server does not say
	LeaseID      string    `json:"lease_id,omitempty"`
}

// issuedCredentials reads an answer of creds/ or sts/. Times count from asked on, so that what is printed as their end is
// not after it.
func issuedCredentials(a *answer, asked time.Time) (*cloudCredentials, error) {
	var out struct {
		LeaseID  string `json:"lease_id"`
		Duration int64  `json:"lease_duration"`
		Data     struct {
			cloudCredentials
			TTL int64 `json:"ttl"`
		}
	}
	if err := json.Unmarshal(a.raw, &out); err != nil || out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		return nil, serverErrorf("the answer holds no credentials; is another engine mounted there?")
	}
	creds := out.Data.cloudCredentials
	creds.LeaseID = out.LeaseID
	seconds := out.Data.TTL
	if seconds == 0 {
		seconds = out.Duration
	}
	if seconds > 0 {
		creds.Expiration = asked.Add(time.Duration(seconds) * time.Second)
	}
	return &creds, nil
}

// staticCredentials reads an answer of static-creds/.
func staticCredentials(a *answer) (*cloudCredentials, error) {
	var out struct{ Data cloudCredentials }
	if err := json.Unmarshal(a.raw, &out); err != nil || out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		return nil, serverErrorf("the answer holds no credentials; is another engine mounted there?")
	}
	return &out.Data, nil
}

// printAs prints credentials as -as says, which checkAs knows.
func (c *call) printAs(a *answer, creds *cloudCredentials) error {
	if a.secret != nil {
		for _, w := range a.secret.Warnings {
			c.warnf("Warning: %s", printable(w))
		}
	}
	switch c.String("as") {
	case asEnv:
		if creds.LeaseID != "" {
			c.warnf("The keys are those of the lease %s, which ends at %s.", printable(creds.LeaseID), creds.Expiration.Format(time.RFC3339))
		}
		_, err := fmt.Fprint(c.out, creds.shell())
		return err
	case asProcess:
		return c.printObject(creds.process())
	}
	return c.printObject(creds)
}

func (c *call) printObject(v any) error {
	out := json.NewEncoder(c.out)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

// shell are commands that put the credentials into the environment. A session token of before would spoil the keys of a
// user.
func (k *cloudCredentials) shell() string {
	var b strings.Builder
	set := func(name, value string) { fmt.Fprintf(&b, "export %s=%s\n", name, shellWord(value)) }
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

func (k *cloudCredentials) process() processCredentials {
	return processCredentials{
		Version: 1, AccessKeyID: k.AccessKey, SecretAccessKey: k.SecretKey, SessionToken: k.SessionToken, Expiration: k.Expiration,
	}
}
