//go:build e2e

package secretsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/openbao/openbao/api/v2"

	"github.com/coffer-project/coffer/test/harness"
)

const (
	store   = "sys/sync/destinations/cloud1-sm/aws"
	patient = 3 * time.Minute // what was rejected is tried again after a minute at the latest
)

// emulated is a server, driven by a client of the family, and the emulator that it syncs to.
type emulated struct {
	*emulator
	bao      *api.Client
	node     *harness.Node
	accessor string
	coffer   keys // the server's, which may do what the page says
	app      keys // of a client that reads secrets
	team     keys // of a client with secrets of its own
}

func (s *emulated) in(t *testing.T) *emulated {
	sub := *s
	sub.emulator = s.emulator.in(t)
	return &sub
}

// TestEmulator drives a server that syncs to an emulator of the provider that others wrote, which checks signatures and
// policies, with the least that docs/sync-destinations.md wants to be allowed. Applications read with the vendor's clients.
func TestEmulator(t *testing.T) {
	e := newEmulator(t)
	policy, statements := documented(t, "cloud1-sm")
	s := &emulated{emulator: e, coffer: e.limit("coffer", policy, statements)}
	s.app = e.addUser("app", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"secretsmanager:GetSecretValue","Resource":"*"}]}`)
	s.team = e.addUser("team", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"secretsmanager:*","Resource":"*"}]}`)
	door := e.addUser("door", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sts:AssumeRole","Resource":"arn:aws:iam::`+account+`:role/sync"}]}`)
	role := e.addRole("sync", "door", anywhere(policy))
	e.lock()

	c := harness.NewCluster(t, 1, harness.Options{Prefix: "emulated", Config: fmt.Sprintf(`sync {
  allow_private_addresses = true
  endpoint "cloud1-sm" { url = %q }
}`, e.url)})
	s.node, s.bao = c.Nodes[0], newBao(t, c)
	s.write("sys/mounts/kv", object{"type": "kv", "options": object{"version": "2"}})
	mounts, err := s.bao.Sys().ListMounts()
	if err != nil {
		t.Fatal(err)
	}
	s.accessor = mounts["kv/"].Accessor

	for _, flow := range []struct {
		name string
		run  func(*emulated)
	}{
		{"a destination", (*emulated).destination},
		{"a secret arrives", (*emulated).arrives},
		{"the keys of a secret", (*emulated).byKey},
		{"a deleted secret is scheduled for deletion and comes back", (*emulated).deleted},
		{"a secret of another client stays until it is adopted", (*emulated).foreign},
		{"changes of others are found and repaired", (*emulated).drifted},
		{"tags", (*emulated).tagged},
		{"all below a prefix", (*emulated).below},
		{"nothing but what the page wants is needed", func(s *emulated) {
			if was := s.wasRefused(); was != nil {
				s.t.Errorf("the policy of the page does not allow %q", was)
			}
		}},
		{"a name that the policy does not allow", (*emulated).outside},
		{"privileges that are revoked", (*emulated).revoked},
		{"a key that is replaced", (*emulated).replaced},
		{"what the page wants is needed", func(s *emulated) {
			for _, action := range actionsOf(statements) {
				if !s.wasServed(action) {
					s.t.Errorf("the page wants %s to be allowed, and it was never needed", action)
				}
			}
		}},
		{"a role", func(s *emulated) { s.asRole(door, role) }},
		{"associations and destinations end", (*emulated).ends},
		{"the log tells nothing", (*emulated).silent},
	} {
		if !t.Run(flow.name, func(t *testing.T) { flow.run(s.in(t)) }) && flow.name == "a destination" {
			t.FailNow()
		}
	}
}

// newBao returns the client of the family, as the command line bao uses it.
func newBao(t *testing.T, c *harness.Cluster) *api.Client {
	t.Helper()
	config := api.DefaultConfig()
	if config.Error != nil {
		t.Fatal(config.Error)
	}
	config.Address, config.MaxRetries = c.Nodes[0].URL, 0
	if err := config.ConfigureTLS(&api.TLSConfig{CACert: c.CAFile}); err != nil {
		t.Fatal(err)
	}
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(c.RootToken)
	return client
}

func (s *emulated) call(what string, call func(context.Context) (*api.Secret, error)) object {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := call(ctx)
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if out == nil {
		return nil
	}
	return out.Data
}

func (s *emulated) write(path string, data object) object {
	s.t.Helper()
	return s.call(path, func(ctx context.Context) (*api.Secret, error) {
		return s.bao.Logical().WriteWithContext(ctx, path, data)
	})
}

func (s *emulated) patch(path string, data object) object {
	s.t.Helper()
	return s.call(path, func(ctx context.Context) (*api.Secret, error) { return s.bao.Logical().JSONMergePatch(ctx, path, data) })
}

func (s *emulated) show(path string) object {
	s.t.Helper()
	return s.call(path, func(ctx context.Context) (*api.Secret, error) { return s.bao.Logical().ReadWithContext(ctx, path) })
}

func (s *emulated) list(path string) object {
	s.t.Helper()
	return s.call(path, func(ctx context.Context) (*api.Secret, error) { return s.bao.Logical().ListWithContext(ctx, path) })
}

func (s *emulated) remove(path string, query map[string][]string) object {
	s.t.Helper()
	return s.call(path, func(ctx context.Context) (*api.Secret, error) {
		return s.bao.Logical().DeleteWithDataWithContext(ctx, path, query)
	})
}

// put writes a secret of one key.
func (s *emulated) put(secret, value string) {
	s.t.Helper()
	s.write("kv/data/"+secret, object{"data": object{"password": value}})
}

func document(value string) string { return fmt.Sprintf(`{"password":%q}`, value) }

func (s *emulated) set(secret string, more object) map[string]entry {
	s.t.Helper()
	body := object{"mount": "kv", "secret_name": secret}
	maps.Copy(body, more)
	return entriesOf(s.t, s.write(store+"/associations/set", body))
}

func (s *emulated) retry(secret string) {
	s.t.Helper()
	s.write(store+"/associations/retry", object{"mount": "kv", "secret_name": secret})
}

func (s *emulated) nameOf(secret string) string { return "vault/" + s.accessor + "/" + secret }

// until waits for a status of a secret, and returns the entry.
func (s *emulated) until(secret, status string, words ...string) entry {
	s.t.Helper()
	var is entry
	harness.Await(s.t, secret+" to be "+status, patient, func() error {
		var ok bool
		is, ok = entriesOf(s.t, s.show(store+"/associations"))[s.accessor+"/"+secret]
		if !ok || is.Status != status {
			return fmt.Errorf("it is %+v", is)
		}
		for _, word := range words {
			if !strings.Contains(is.Cause, word) {
				return fmt.Errorf("it is %+v, want a cause with %q", is, word)
			}
		}
		return nil
	})
	return is
}

// value waits until an application that uses the SDK reads a value.
func (s *emulated) value(name, want string) {
	s.t.Helper()
	harness.Await(s.t, name, patient, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := s.secrets(s.app).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &name, VersionStage: aws.String("AWSCURRENT")})
		if err != nil {
			return err
		}
		if got := aws.ToString(out.SecretString); got != want {
			return fmt.Errorf("it is %q, want %q", got, want)
		}
		return nil
	})
}

// about returns what the provider tells of a secret.
func (s *emulated) about(name string) *secretsmanager.DescribeSecretOutput {
	s.t.Helper()
	return did(s.t, func(ctx context.Context) (*secretsmanager.DescribeSecretOutput, error) {
		return s.secrets(s.team).DescribeSecret(ctx, &secretsmanager.DescribeSecretInput{SecretId: &name})
	})
}

func (s *emulated) scheduled(name string) {
	s.t.Helper()
	harness.Await(s.t, name+" to be scheduled for deletion", patient, func() error {
		if s.about(name).DeletedDate == nil {
			return errors.New("it is not")
		}
		return nil
	})
}

// create makes a secret as another client does.
func (s *emulated) create(name, value string) {
	s.t.Helper()
	did(s.t, func(ctx context.Context) (*secretsmanager.CreateSecretOutput, error) {
		return s.secrets(s.team).CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: &name, SecretString: &value})
	})
}

func tagsOf(list []types.Tag) map[string]string {
	tags := map[string]string{}
	for _, tag := range list {
		tags[*tag.Key] = *tag.Value
	}
	return tags
}

// failed returns the names of the checks of a destination that have failed.
func (s *emulated) failed() (names []string) {
	s.t.Helper()
	checks, _ := s.write(store+"/verify", nil)["checks"].([]any)
	if len(checks) < 5 {
		s.t.Errorf("checks: %v", checks)
	}
	for _, c := range checks {
		if c := c.(object); c["result"] == "failed" {
			names = append(names, c["name"].(string))
		}
	}
	return names
}
