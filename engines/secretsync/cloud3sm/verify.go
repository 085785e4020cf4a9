package cloud3sm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/api/iterator"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

func doneIsNil(err error) error {
	if errors.Is(err, iterator.Done) {
		return nil
	}
	return err
}

// needs are the checks that a permission of a secret answers.
var needs = []struct {
	check       string
	permissions []string
}{
	{"write", []string{"secretmanager.versions.add", "secretmanager.versions.destroy"}},
	{"read", []string{"secretmanager.secrets.get", "secretmanager.versions.access"}},
	{"delete", []string{"secretmanager.secrets.delete"}},
	{"tags", []string{"secretmanager.secrets.update"}},
}

var opTest = op{name: "secrets.getIamPolicy"} // for the texts of errors: asking for one's permissions needs none

const maxSkew = 30 * time.Second // the issuer of tokens takes a little more

// Verify implements destination.Destination. It makes four calls at most and changes nothing. What a project allows can be
// asked only of a secret that is there: one with an ownership tag, if the first page of the list has one, else any.
func (p *dest) Verify(ctx context.Context) []destination.Check {
	defer p.enter()()
	checks, ok := p.verifyToken(ctx)
	if !ok {
		return checks
	}
	// The name cannot be taken: it would have to be guessed.
	_, err := p.get(ctx, opGet, "coffer-verify-"+rand.Text())
	mayGet := errors.Is(err, errNotFound)
	sample, marked, listErr := p.sample(ctx)
	if listErr != nil && !mayGet {
		return append(checks, entrance(err)...)
	}
	checks = append(checks,
		good("reachable", "Secret Manager answers"),
		good("credentials", "the project "+p.project+" lets "+p.tokens.Who()+" in"),
		destination.Check{Name: "create", Unknown: true, Text: "the first new secret will show it: secretmanager.secrets.create is needed in the project"},
	)
	if listErr != nil {
		checks = append(checks, destination.Check{Name: "list", Unknown: true, Text: "names cannot be listed, so that they are looked at one by one: " + listErr.Error()})
	}
	return append(checks, p.verifyPermissions(ctx, sample, marked)...)
}

func good(name, text string) destination.Check {
	return destination.Check{Name: name, OK: true, Text: text}
}

// verifyToken tries to get a token, and compares the clocks. It reports whether there is one.
func (p *dest) verifyToken(ctx context.Context) (checks []destination.Check, ok bool) {
	_, _, err := p.tokens.Get(ctx)
	if err != nil {
		checks = entrance(err)
	}
	if ahead, known := p.tokens.Clock(); known {
		c := good("clock", "this server's clock agrees with that of the token service")
		if ahead.Abs() > maxSkew {
			c.OK, c.Text = false, fmt.Sprintf("this server's clock is %v away from that of the token service: set it right, or tokens are rejected", ahead.Abs())
		}
		checks = append(checks, c)
	}
	return checks, err == nil
}

// entrance is what an error says about coming in at all.
func entrance(err error) []destination.Check {
	var e *destination.Error
	if errors.As(err, &e) && e.Class == destination.Client && e.Code != destination.Blocked {
		return []destination.Check{
			good("reachable", "there is an answer"),
			{Name: "credentials", Text: e.Text},
		}
	}
	return []destination.Check{{Name: "reachable", Text: err.Error()}}
}

// sample returns a secret of the project, "" if there is none, and whether it has an ownership tag of ours.
func (p *dest) sample(ctx context.Context) (name string, marked bool, err error) {
	page, _, err := p.page(ctx, 100, "")
	if err != nil || len(page) == 0 {
		return "", false, err
	}
	i := slices.IndexFunc(page, func(s *secretmanagerpb.Secret) bool { return s.Annotations[markKey] != "" })
	s := page[max(i, 0)]
	return last(s.Name), i >= 0, nil
}

func (p *dest) verifyPermissions(ctx context.Context, sample string, marked bool) []destination.Check {
	granted, err := p.granted(ctx, sample)
	var checks []destination.Check
	for _, need := range needs {
		list := strings.Join(need.permissions, " and ")
		missing := slices.DeleteFunc(slices.Clone(need.permissions), func(s string) bool { return slices.Contains(granted, s) })
		c := destination.Check{Name: need.check}
		switch {
		case sample == "":
			c.Unknown, c.Text = true, "there is no secret yet to ask about: "+list+" will be needed"
		case err != nil:
			c.Unknown, c.Text = true, "it cannot be asked: "+err.Error()
		case len(missing) == 0:
			c.OK, c.Text = true, "granted: "+list
		case marked:
			c.Text = "grant the service account " + strings.Join(missing, " and ")
		default: // a condition may leave out the secrets of others
			c.Unknown, c.Text = true, "not granted on a secret that is not ours: "+strings.Join(missing, " and ")+" will be needed on ours"
		}
		checks = append(checks, c)
	}
	return checks
}

// granted returns which of the permissions that are needed the service account has on a secret.
func (p *dest) granted(ctx context.Context, name string) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	var all []string
	for _, need := range needs {
		all = append(all, need.permissions...)
	}
	got, err := call(ctx, p, opTest, func(ctx context.Context) (*iampb.TestIamPermissionsResponse, error) {
		return p.api.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: p.path(name), Permissions: all})
	})
	return got.GetPermissions(), err
}
