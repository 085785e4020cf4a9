//go:build e2e

package secretsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	patient = 3 * time.Minute // what was refused is tried again after a minute at the latest
)

// emulated is a server, driven by a client of the family, and the emulator that it syncs to.
type emulated struct {
	*emulator
	bao      *api.Client
	node     *harness.Node
	accessor string
	coffer   keys // the server's, which may do what the page says
	app      keys // of somebody who reads secrets
	team     keys // of somebody who has secrets of their own
}

func (s *emulated) in(t *testing.T) *emulated {
	sub := *s
	sub.emulator = s.emulator.in(t)
	return &sub
}

// TestEmulator drives a server that syncs to an emulator of the provider that others wrote, which checks signatures and
// policies, with the least that docs/sync.md wants to be allowed. Applications read with the vendor's clients.
func TestEmulator(t *testing.T) {
	e := newEmulator(t)
	policy, statements := documented(t)
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
		{"a secret of somebody else stays until it is adopted", (*emulated).foreign},
		{"changes of others are found and repaired", (*emulated).drifted},
		{"tags", (*emulated).tagged},
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
				if !s.served[action] {
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

// create makes a secret as somebody else does.
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

func (s *emulated) destination() {
	made := s.write(store, object{"access_key_id": s.coffer.id, "secret_access_key": s.coffer.secret, "region": home})
	if again := s.show(store); fmt.Sprint(again) != fmt.Sprint(made) {
		s.t.Errorf("written %v, read %v", made, again)
	}
	details, _ := made["connection_details"].(object)
	if made["type"] != "cloud1-sm" || made["name"] != "aws" || details["access_key_id"] != "*****" || details["secret_access_key"] != "*****" || details["region"] != home {
		s.t.Errorf("the destination is %v", made)
	}
	all := s.list("sys/sync/destinations")
	equal(s.t, "destinations", all, object{"keys": []string{"cloud1-sm/"}, "key_info": object{"cloud1-sm/": []string{"aws"}}, "total_destinations": 1})
	if failed := s.failed(); failed != nil {
		s.t.Errorf("checks that have failed: %q", failed)
	}
}

func (s *emulated) arrives() {
	name := s.nameOf("shop/app")
	s.put("shop/app", "correct-horse-1")
	only(s.t, s.set("shop/app", nil)) // clients look for it at once
	e := s.until("shop/app", "SYNCED")
	if e.Name != name || e.Version != 1 {
		s.t.Errorf("the entry is %+v", e)
	}
	if text, refused := s.read(s.app, name); text != document("correct-horse-1") {
		s.t.Errorf("an application reads %q, refused %q", text, refused)
	}
	s.put("shop/app", "correct-horse-2")
	s.value(name, document("correct-horse-2"))
	for label, want := range map[string]string{"AWSCURRENT": "correct-horse-2", "AWSPREVIOUS": "correct-horse-1"} {
		if text, refused := s.read(s.app, name, label); text != document(want) {
			s.t.Errorf("under %s an application reads %q, refused %q", label, text, refused)
		}
	}
	is := s.about(name)
	if len(is.VersionIdsToStages) != 2 || tagsOf(is.Tags)["coffer:sync"] == "" {
		s.t.Errorf("versions %v, tags %v", is.VersionIdsToStages, tagsOf(is.Tags))
	}
	to, _ := s.show("sys/sync/associations/kv/shop/app")["associated_destinations"].(object)
	if at, _ := to["cloud1-sm/aws"].(object); at["type"] != "cloud1-sm" || at["name"] != "aws" || at["sync_status"] == nil {
		s.t.Errorf("its destinations: %v", to)
	}
	equal(s.t, "associations", s.list("sys/sync/associations")["total_associations"], 1)
}

func (s *emulated) byKey() {
	s.write("kv/data/keys", object{"data": object{"user": "shop", "token": "battery-staple", "port": 80}})
	all := s.set("keys", object{"granularity": "secret-key", "exclude": "user"})
	if len(all) != 2 {
		s.t.Errorf("the entries are %+v", all)
	}
	s.value(s.nameOf("keys/token"), "battery-staple")
	s.value(s.nameOf("keys/port"), "80")
	s.write("kv/data/keys", object{"data": object{"user": "shop", "token": "battery-staple"}})
	s.scheduled(s.nameOf("keys/port"))
}

func (s *emulated) deleted() {
	name := s.nameOf("brief")
	s.put("brief", "first")
	s.set("brief", nil)
	s.value(name, document("first"))
	arn := *s.about(name).ARN
	s.remove("kv/data/brief", nil)
	s.scheduled(name)
	s.until("brief", "UNSYNCED")
	if text, refused := s.read(s.app, name); refused != "InvalidRequestException" {
		s.t.Errorf("an application reads %q, refused %q", text, refused)
	}
	s.put("brief", "second")
	s.value(name, document("second"))
	if e := s.until("brief", "SYNCED"); e.Version != 2 {
		s.t.Errorf("the entry is %+v", e)
	}
	is := s.about(name)
	if *is.ARN != arn || is.DeletedDate != nil {
		s.t.Errorf("it is %s, deleted %v; it was %s", *is.ARN, is.DeletedDate, arn)
	}
	s.write("kv/metadata/brief", object{"max_versions": 5})
	s.remove("kv/metadata/brief", nil)
	s.scheduled(name)
	s.put("brief", "third") // another secret of the same name
	s.value(name, document("third"))
}

func (s *emulated) foreign() {
	name := s.nameOf("theirs")
	s.create(name, "of the team")
	s.put("theirs", "ours")
	s.set("theirs", nil)
	s.until("theirs", "CONFLICT", "not made by")
	s.put("theirs", "ours, too")
	s.retry("theirs")
	s.until("theirs", "CONFLICT")
	s.value(name, "of the team")
	gone := only(s.t, entriesOf(s.t, s.write(store+"/associations/remove", object{"mount": "kv", "name": "theirs"})))
	if gone.Status != "UNSYNCED" {
		s.t.Errorf("the entry is %+v", gone)
	}
	s.value(name, "of the team")
	if is := s.about(name); len(is.VersionIdsToStages) != 1 || len(is.Tags) != 0 {
		s.t.Errorf("versions %v, tags %v", is.VersionIdsToStages, tagsOf(is.Tags))
	}

	s.set("theirs", nil)
	s.write(store+"/associations/adopt", object{"mount": "kv", "secret_name": "theirs"})
	s.until("theirs", "SYNCED")
	for label, want := range map[string]string{"AWSCURRENT": document("ours, too"), "AWSPREVIOUS": "of the team"} {
		if text, refused := s.read(s.app, name, label); text != want {
			s.t.Errorf("under %s an application reads %q, refused %q", label, text, refused)
		}
	}
}

func (s *emulated) drifted() {
	name := s.nameOf("drifting")
	s.put("drifting", "right")
	s.set("drifting", nil)
	change := func() {
		s.t.Helper()
		did(s.t, func(ctx context.Context) (*secretsmanager.PutSecretValueOutput, error) {
			return s.secrets(s.team).PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: &name, SecretString: aws.String("wrong")})
		})
		s.write(store+"/drift", nil)
	}
	change()
	harness.Await(s.t, "the drift to be told", patient, func() error {
		if e := s.until("drifting", "SYNCED"); e.Drift == "" {
			return fmt.Errorf("the entry is %+v", e)
		}
		return nil
	})
	s.value(name, "wrong")
	s.set("drifting", object{"drift_policy": "repair"})
	s.value(name, document("right"))
	change()
	s.value(name, document("right"))
}

func (s *emulated) tagged() {
	name := s.nameOf("tagged")
	s.put("tagged", "one")
	s.patch(store, object{"custom_tags": object{"team": "payments", "stage": "test"}})
	s.set("tagged", nil)
	has := func(want map[string]string) {
		s.t.Helper()
		harness.Await(s.t, "the tags", patient, func() error {
			tags := tagsOf(s.about(name).Tags)
			delete(tags, "coffer:sync")
			if !maps.Equal(tags, want) {
				return fmt.Errorf("they are %v, want %v", tags, want)
			}
			return nil
		})
	}
	has(map[string]string{"team": "payments", "stage": "test"})
	s.patch(store, object{"tags_to_remove": []string{"stage"}})
	s.retry("tagged")
	has(map[string]string{"team": "payments"})
	s.value(name, document("one"))
}

func (s *emulated) outside() {
	s.put("outside", "one")
	s.set("outside", object{"secret_name_template": "other/{{ .SecretPath }}"})
	s.until("outside", "CLIENT_SIDE_ERROR", "does not allow this call")
	s.set("outside", object{"secret_name_template": ""})
	s.until("outside", "SYNCED")
	s.value(s.nameOf("outside"), document("one"))
}

func (s *emulated) revoked() {
	policy, _ := documented(s.t)
	first, second := s.nameOf("shop/app"), s.nameOf("second")
	s.put("second", "before")
	s.set("second", nil)
	s.value(second, document("before"))
	s.allow("coffer", strings.Replace(anywhere(policy), `"secretsmanager:PutSecretValue",`, "", 1))
	s.put("shop/app", "while revoked")
	s.put("second", "after")
	e := s.until("shop/app", "CLIENT_SIDE_ERROR", "PutSecretValue", "AccessDenied")
	if e.Code != "access_denied" || e.Attempts < 1 || e.NextRetry == "" {
		s.t.Errorf("the entry is %+v", e)
	}
	s.until("second", "CLIENT_SIDE_ERROR", "PutSecretValue")
	s.value(first, document("correct-horse-2"))
	if failed := s.failed(); !slices.Equal(failed, []string{"write"}) {
		s.t.Errorf("checks that have failed: %q", failed)
	}
	s.allow("coffer", anywhere(policy))
	s.retry("shop/app")
	s.value(first, document("while revoked"))
	s.until("shop/app", "SYNCED")
	s.value(second, document("after")) // by itself
	s.until("second", "SYNCED")
	if was := s.wasRefused(); !slices.Contains(was, "PutSecretValue") {
		s.t.Errorf("refused: %q", was)
	}
}

func (s *emulated) replaced() {
	_, statements := documented(s.t)
	name := s.nameOf("shop/app")
	next := s.addKey("coffer")
	s.watchKey(next, statements)
	s.dropKey("coffer", s.coffer)
	s.put("shop/app", "with another key")
	s.until("shop/app", "CLIENT_SIDE_ERROR", "access_key_id")
	s.value(name, document("while revoked"))
	s.patch(store, object{"access_key_id": next.id, "secret_access_key": "x" + next.secret})
	s.retry("shop/app")
	s.until("shop/app", "CLIENT_SIDE_ERROR", "secret_access_key")
	s.patch(store, object{"secret_access_key": next.secret})
	s.retry("shop/app")
	s.until("shop/app", "SYNCED")
	s.value(name, document("with another key"))
}

// asRole syncs with a role that its keys may assume, and may do nothing else.
func (s *emulated) asRole(door keys, role string) {
	const other = "sys/sync/destinations/cloud1-sm/role"
	s.write(other, object{"access_key_id": door.id, "secret_access_key": door.secret, "region": home, "role_arn": role})
	s.put("by-role", "assumed")
	s.write(other+"/associations/set", object{"mount": "kv", "secret_name": "by-role"})
	s.value(s.nameOf("by-role"), document("assumed"))
	s.write(other+"/associations/remove", object{"mount": "kv", "secret_name": "by-role"})
	s.scheduled(s.nameOf("by-role"))
	s.remove(other, nil)
}

func (s *emulated) ends() {
	gone := only(s.t, entriesOf(s.t, s.write(store+"/associations/remove", object{"mount": "kv", "name": "shop/app"})))
	if gone.Status != "UNSYNCED" {
		s.t.Errorf("the entry is %+v", gone)
	}
	s.scheduled(s.nameOf("shop/app"))
	_, err := s.bao.Logical().Delete(store)
	if refused, ok := errors.AsType[*api.ResponseError](err); !ok || refused.StatusCode != 400 || !strings.Contains(err.Error(), "associations") {
		s.t.Errorf("deleting a destination with associations: %v", err)
	}
	s.create(s.nameOf("unrelated"), "of the team")
	s.remove(store, map[string][]string{"purge": {"true"}})
	harness.Await(s.t, "the destination to be gone", patient, func() error {
		if d := s.show(store); d != nil {
			return fmt.Errorf("it is %v", d)
		}
		return nil
	})
	for _, secret := range []string{"keys/token", "brief", "theirs", "drifting", "tagged", "outside", "second"} {
		if s.about(s.nameOf(secret)).DeletedDate == nil {
			s.t.Errorf("%s is still there", secret)
		}
	}
	s.value(s.nameOf("unrelated"), "of the team")
	if all := s.list("sys/sync/destinations"); all != nil {
		s.t.Errorf("destinations: %v", all)
	}
	if all := s.list("sys/sync/associations"); all != nil {
		s.t.Errorf("associations: %v", all)
	}
}

// silent wants neither values nor credentials in the log.
func (s *emulated) silent() {
	log := s.node.Log()
	for _, secret := range []string{s.coffer.id, s.coffer.secret, "correct-horse", "battery-staple", "of the team", "while revoked"} {
		if strings.Contains(log, secret) {
			s.t.Error("the log has a value or a credential")
		}
	}
}
