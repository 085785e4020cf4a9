package cloud1sm_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// refusals of the service, whatever was asked.
func refusal(status int, code string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		// It is as talkative as can be.
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "Message": string(body) + r.Header.Get("Authorization")})
	}
}

// atPlace is the fake for the suite, with faults in front.
type atPlace struct {
	*cloud1smtest.Server
	faults *desttest.Faults
	url    string
}

func newFake(t *testing.T) desttest.Fake {
	p := &atPlace{Server: cloud1smtest.New(t, cloud1smtest.PageSize(30))}
	p.faults = &desttest.Faults{
		Next: p.Server,
		Reads: func(r *http.Request, _ []byte) bool {
			_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			return slices.Contains([]string{"DescribeSecret", "GetSecretValue", "ListSecrets"}, action)
		},
		Troubled: refusal(http.StatusInternalServerError, "InternalServiceError"),
		Rejected: refusal(http.StatusBadRequest, "AccessDeniedException"),
	}
	front := httptest.NewServer(p.faults)
	t.Cleanup(front.Close)
	p.url = front.URL
	return p
}

func (p *atPlace) Open(t *testing.T) destination.Destination {
	return distinct{open(t, p.Server, destination.Env{URL: p.url}, nil)}
}

// distinct gives writes of different values different tokens, as the contract has it and the service insists on.
type distinct struct{ destination.Destination }

func (d distinct) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	it.Token = fmt.Sprintf("%x", sha256.Sum256([]byte(it.Token+string(it.Value))))
	held, err := d.Destination.Write(ctx, it, was)
	return held, err
}

func (p *atPlace) Put(_ *testing.T, name, value string) { p.Server.Put(name, []byte(value)) }

func (p *atPlace) Get(_ *testing.T, name string) (string, bool) {
	value, ok := p.Server.Get(name)
	return string(value), ok
}

func (p *atPlace) Fail(f desttest.Fault) { p.faults.Set(f) }

func (p *atPlace) Secrets() []string {
	id, secret := p.Root()
	return []string{id, secret}
}

// open makes a destination at a fake. env needs nothing but what is special.
func open(t *testing.T, s *cloud1smtest.Server, env destination.Env, change func(*cloud1sm.Config)) destination.Destination {
	t.Helper()
	id, secret := s.Root()
	c := &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: engines.Sensitive(id), SecretAccessKey: engines.Sensitive(secret), Region: s.Region}}
	if change != nil {
		change(c)
	}
	if problems := c.Check(); problems != nil {
		t.Fatal(problems)
	}
	if env.Client == nil {
		env.Client = &http.Client{}
		t.Cleanup(env.Client.CloseIdleConnections)
	}
	if env.URL == "" {
		env.URL = s.URL
	}
	d, err := cloud1sm.Type.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDestination(t *testing.T) { desttest.Run(t, cloud1sm.Type, newFake) }

const (
	ourMark = "instance-association"
	name    = "vault/kv_1234/my-secret"
)

var tokens int

// item is a write of its own.
func item(value string) destination.Item {
	tokens++
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: ourMark, Token: fmt.Sprintf("%032d", tokens)}
}

func read(t *testing.T, d destination.Destination) destination.Found {
	t.Helper()
	f, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, d destination.Destination, it destination.Item) destination.Held {
	t.Helper()
	held, err := d.Write(t.Context(), it, read(t, d))
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// failed says how a call must have failed.
func failed(t *testing.T, err error, class destination.Class, code string, unknown bool) *destination.Error {
	t.Helper()
	e, ok := errors.AsType[*destination.Error](err)
	if !ok {
		t.Fatalf("failed with %T %v, want code %q", err, err, code)
	}
	if e.Class != class || e.Code != code || e.Unknown != unknown {
		t.Errorf("failed with class %q, code %q, unknown %v (%s), want %q, %q, %v", e.Class, e.Code, e.Unknown, e.Text, class, code, unknown)
	}
	return e
}

func holds(t *testing.T, s *cloud1smtest.Server, value string) {
	t.Helper()
	if got, ok := s.Get(name); !ok || string(got) != value {
		t.Errorf("the destination has %q (%v), want %q", got, ok, value)
	}
}

func did(t *testing.T, s *cloud1smtest.Server, actions ...string) {
	t.Helper()
	if got := s.Actions(); !slices.Equal(got, actions) {
		t.Errorf("calls %v, want %v", got, actions)
	}
}

func TestClose(t *testing.T) {
	desttest.Closes(t, cloud1sm.Type, &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIA", SecretAccessKey: "secret", Region: "eu-central-1"}}, destination.Env{})
}
