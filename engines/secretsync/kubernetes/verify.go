package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// verifyCreate has a Secret created in a dry run.
func (d *dest) verifyCreate(ctx context.Context) destination.Check {
	s := d.blank("coffer-verify-"+strings.ToLower(rand.Text()), nil, nil, nil)
	s.Type = opaque // other types need data
	if _, _, err := d.create(ctx, s, true); err != nil {
		return destination.FailedCheck("create", err)
	}
	return destination.Check{Name: "create", OK: true, Text: "a Secret was created in a dry run, which leaves nothing behind"}
}

// expirySoon is the remaining lifetime from which on a token fails the check.
const expirySoon = 7 * 24 * time.Hour

// expiry reads when a token expires, which the tokens of service accounts say. Their signature is the API server's affair.
func expiry(token string) destination.Check {
	c := destination.Check{Name: "expiry", Unknown: true, Text: "token does not say when it expires"}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Expiry int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil || claims.Expiry <= 0 {
		return c
	}
	at := time.Unix(claims.Expiry, 0)
	c.Unknown, c.OK, c.Text = false, true, "token expires on "+at.UTC().Format(time.RFC3339)
	if at.Sub(time.Now()) < expirySoon {
		c.OK = false
		c.Text += ": replace it before then"
	}
	return c
}
