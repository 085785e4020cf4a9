package cloud2kv

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// maxSkew is how far the clocks may be apart: tokens are dated.
const maxSkew = 5 * time.Minute

// Verify implements destination.Destination. A secret that was written leaves a trace for days, even if it is deleted. So
// the permissions are tried with a name that is not there, which the vault looks for only if one may.
func (v *vault) Verify(ctx context.Context) []destination.Check {
	ctx, cancel := bounded(ctx)
	defer cancel()
	name := "coffer-verify-" + strings.ToLower(rand.Text())
	date := time.Time{}
	err := v.do(ctx, getting, func(ctx context.Context) error {
		_, err := v.secrets.GetSecret(ctx, name, "", nil)
		date = exchangeOf(ctx).date
		return err
	})
	checks := []destination.Check{reached(err)}
	if !checks[0].OK {
		return checks
	}
	checks = append(checks, admitted(err))
	if !checks[1].OK {
		return checks
	}
	checks = append(checks, v.readable(ctx, err), v.writable(ctx, name), v.deletable(ctx, name))
	if !date.IsZero() {
		checks = append(checks, v.clock(date))
	}
	return checks
}

func code(err error) string {
	if e, ok := errors.AsType[*destination.Error](err); ok {
		return e.Code
	}
	return ""
}

// notThere reports whether the vault has looked for the name.
func notThere(err error) bool {
	r := refusalOf(err)
	return r.status == http.StatusNotFound && r.code == codeNotFound
}

func reached(err error) destination.Check {
	c := destination.Check{Name: "reachable", OK: true, Text: "the vault answers"}
	switch code(err) {
	case destination.Unreachable, destination.NoLocation, destination.Blocked, destination.Unavailable, destination.Unexpected, destination.Throttled:
		c.OK, c.Text = false, err.Error()
	}
	return c
}

func admitted(err error) destination.Check {
	c := destination.Check{Name: "credentials", OK: true, Text: "the vault accepts the app registration"}
	if code(err) == destination.Denied && refusalOf(err).status != http.StatusForbidden {
		c.OK, c.Text = false, err.Error()
	}
	return c
}

// readable is about secrets/get, which got was tried with, and secrets/list.
func (v *vault) readable(ctx context.Context, got error) destination.Check {
	if !notThere(got) {
		return judged("read", got)
	}
	err := v.page(ctx, func(ctx context.Context) error {
		_, err := v.secrets.NewListSecretPropertiesPager(nil).NextPage(ctx)
		return err
	})
	if err != nil {
		return judged("read", err)
	}
	return destination.Check{Name: "read", OK: true, Text: "secrets/get and secrets/list are allowed"}
}

// writable is about secrets/recover and secrets/set. For the latter no call is quite harmless, but one with an illegal name
// comes close: if that is forbidden, all are.
func (v *vault) writable(ctx context.Context, name string) destination.Check {
	err := v.do(ctx, recovering, func(ctx context.Context) error {
		_, err := v.secrets.RecoverDeletedSecret(ctx, name, nil)
		return err
	})
	if !notThere(err) {
		return judged("write", err)
	}
	err = v.do(ctx, setting, func(ctx context.Context) error {
		_, err := v.secrets.SetSecret(ctx, "coffer_verify", azsecrets.SetSecretParameters{Value: to.Ptr("")}, nil)
		return err
	})
	if code(err) == destination.Denied {
		return judged("write", err)
	}
	return destination.Check{Name: "write", Unknown: true, Text: "secrets/recover is allowed; secrets/set shows only when a secret is written"}
}

func (v *vault) deletable(ctx context.Context, name string) destination.Check {
	err := v.do(ctx, deleting, func(ctx context.Context) error {
		_, err := v.secrets.DeleteSecret(ctx, name, nil)
		return err
	})
	if notThere(err) {
		return destination.Check{Name: "delete", OK: true, Text: "secrets/delete is allowed"}
	}
	return judged("delete", err)
}

// judged is a check that has failed, or could not be made.
func judged(name string, err error) destination.Check {
	switch {
	case err == nil:
		return destination.Check{Name: name, Unknown: true, Text: "the vault gives an unexpected response"}
	case code(err) == destination.Denied:
		return destination.Check{Name: name, Text: err.Error()}
	}
	return destination.Check{Name: name, Unknown: true, Text: "not tried out: " + err.Error()}
}

func (v *vault) clock(date time.Time) destination.Check {
	if skew := time.Since(date).Abs(); skew > maxSkew {
		return destination.Check{Name: "clock", Text: "the clocks of this server and of the vault are " + skew.Round(time.Second).String() + " apart: tokens may be rejected; set the clock"}
	}
	return destination.Check{Name: "clock", OK: true, Text: "the clocks of this server and of the vault agree"}
}
