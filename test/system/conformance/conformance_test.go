// Package conformance_test drives real processes with the family's own Go clients, unchanged. TestConformance goes
// from the first start of a cluster to its last snapshot with one of them, TestClients through all that is served
// above the storage with both. Each check is a subtest; the stages of TestConformance build on each other.
package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

func TestMain(m *testing.M) { harness.Main(m) }

// suite is a cluster of three and the client of its first node, with the root token.
type suite struct {
	*harness.Cluster
	n1, n2, n3 *harness.Node
	root       *api.Client
}

// patient keeps a busy machine from electing leaders in the middle of a request.
const patient = "performance_multiplier = 5"

// TestConformance stops at a stage that fails: the next ones would only repeat the news.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Bare: true, Shamir: true, NoRetryJoin: true, Described: true, StorageConfig: patient})
	s := &suite{Cluster: c, n1: c.Nodes[0], n2: c.Nodes[1], n3: c.Nodes[2]}
	s.root = s.n1.Client("")
	for _, stage := range []struct {
		name     string
		run      func(*testing.T)
		required bool
	}{
		{"init", s.initialise, true},
		{"unseal", s.unseal, true},
		{"join", s.join, true},
		{"status", s.status, false},
		{"mounts", s.mounts, false},
		{"kv2", s.kv2, false},
		{"kv1", s.kv1, false},
		{"tokens", s.tokens, false},
		{"policies", s.policies, false},
		{"cubbyhole", s.cubbyhole, false},
		{"audit", s.audit, false},
		{"meta", s.meta, false},
		{"standby", s.standby, false},
		{"operations", s.operations, false},
		{"snapshot", s.snapshot, false},
	} {
		if !t.Run(stage.name, stage.run) && stage.required {
			t.Fatalf("stage %q failed: the others need it", stage.name)
		}
	}
	if n := c.Compared(); n < 40 && !t.Failed() {
		t.Errorf("only %d operations had responses that could be compared with their descriptions", n)
	}
}

func (s *suite) ctx() context.Context { return context.Background() }

// as returns a client of n1 with another token.
func (s *suite) as(token string) *api.Client { return s.n1.Client(token) }

// raw sends a request and wants an answer, whatever its status. Without one it answers status 0, so that it can
// be used from any goroutine.
func (s *suite) raw(t *testing.T, n *harness.Node, method, path, token string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx(), 30*time.Second)
	defer cancel()
	a, err := n.Do(ctx, method, path, token, body, header...)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return a
}

// token creates a token with exactly these policies.
func (s *suite) token(t *testing.T, o api.TokenCreateRequest) string {
	t.Helper()
	secret, err := s.root.Auth().Token().Create(&o)
	noErr(t, err)
	return secret.Auth.ClientToken
}

// policy writes a policy and returns a token that has nothing but it.
func (s *suite) policy(t *testing.T, name, rules string) string {
	t.Helper()
	noErr(t, s.root.Sys().PutPolicy(name, rules))
	return s.token(t, api.TokenCreateRequest{Policies: []string{name}, NoDefaultPolicy: true})
}

// mount enables an engine for one stage and disables it at its end.
func (s *suite) mount(t *testing.T, path, kind string, options map[string]string) {
	t.Helper()
	noErr(t, s.root.Sys().Mount(path, &api.MountInput{Type: kind, Options: options}))
	t.Cleanup(func() {
		if err := s.root.Sys().Unmount(path); err != nil {
			t.Errorf("disabling %s: %v", path, err)
		}
	})
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// status wants an error answer with this status, whose text has the words.
func status(t *testing.T, err error, want int, words ...string) {
	t.Helper()
	var answer *api.ResponseError
	if !errors.As(err, &answer) {
		t.Fatalf("error %v, want an answer with status %d", err, want)
	}
	if answer.StatusCode != want {
		t.Fatalf("status %d (%v), want %d", answer.StatusCode, answer.Errors, want)
	}
	for _, w := range words {
		if !strings.Contains(strings.Join(answer.Errors, "\n"), w) {
			t.Errorf("errors %q do not say %q", answer.Errors, w)
		}
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s = %#v, want %#v", what, got, want)
	}
}

// number turns what the client decodes numbers to into an int.
func number(t *testing.T, v any) int64 {
	t.Helper()
	n, ok := v.(json.Number)
	if !ok {
		t.Fatalf("%#v is not a number", v)
	}
	i, err := n.Int64()
	noErr(t, err)
	return i
}

func contains(t *testing.T, what string, list []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(list, w) {
			t.Fatalf("%s = %q, want %q among them", what, list, w)
		}
	}
}

func texts(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, x := range list {
		text, _ := x.(string)
		out = append(out, text)
	}
	return out
}

// snapshotBytes takes a snapshot.
func (s *suite) snapshotBytes(t *testing.T, c *api.Client) []byte {
	t.Helper()
	var b bytes.Buffer
	noErr(t, c.Sys().RaftSnapshot(&b))
	return b.Bytes()
}
