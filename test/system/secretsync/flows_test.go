//go:build e2e

package secretsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/openbao/openbao/api/v2"

	"github.com/coffer-project/coffer/test/harness"
)

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
	health, _ := all["health"].(object)
	if h, _ := health["cloud1-sm/aws"].(object); h["circuit"] != "closed" {
		s.t.Errorf("the health of destinations is %v", health)
	}
	delete(all, "health")
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
	if text, rejected := s.read(s.app, name); text != document("correct-horse-1") {
		s.t.Errorf("an application reads %q, rejected %q", text, rejected)
	}
	s.put("shop/app", "correct-horse-2")
	s.value(name, document("correct-horse-2"))
	for label, want := range map[string]string{"AWSCURRENT": "correct-horse-2", "AWSPREVIOUS": "correct-horse-1"} {
		if text, rejected := s.read(s.app, name, label); text != document(want) {
			s.t.Errorf("under %s an application reads %q, rejected %q", label, text, rejected)
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
	if text, rejected := s.read(s.app, name); rejected != "InvalidRequestException" {
		s.t.Errorf("an application reads %q, rejected %q", text, rejected)
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
		if text, rejected := s.read(s.app, name, label); text != want {
			s.t.Errorf("under %s an application reads %q, rejected %q", label, text, rejected)
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

// below syncs all secrets below a prefix.
func (s *emulated) below() {
	const before, all = 20, 22
	secret := func(i int) string { return fmt.Sprintf("team/%d/app", i) }
	for i := range before {
		s.put(secret(i), fmt.Sprint("value ", i))
	}
	s.write(store+"/associations/set", object{"mount": "kv", "secret_prefix": "team/"})
	for i := before; i < all; i++ {
		s.put(secret(i), fmt.Sprint("value ", i)) // they follow
	}
	for i := range all {
		s.value(s.nameOf(secret(i)), document(fmt.Sprint("value ", i)))
		s.until(secret(i), "SYNCED")
	}
	plan := s.write(store+"/plan", nil)
	actions, _ := plan["actions"].([]any)
	for _, a := range actions {
		if a := a.(object); a["action"] != "none" {
			s.t.Errorf("all is right, and the plan is %v", a)
		}
	}
	if len(actions) < all {
		s.t.Errorf("the plan is %v", plan)
	}
	s.remove("kv/data/"+secret(3), nil)
	s.scheduled(s.nameOf(secret(3)))
	s.write(store+"/associations/remove", object{"mount": "kv", "secret_prefix": "team/"})
	for i := range all {
		s.scheduled(s.nameOf(secret(i)))
	}
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
	policy, _ := documented(s.t, "cloud1-sm")
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
		s.t.Errorf("rejected: %q", was)
	}
}

func (s *emulated) replaced() {
	_, statements := documented(s.t, "cloud1-sm")
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
	if rejected, ok := errors.AsType[*api.ResponseError](err); !ok || rejected.StatusCode != 400 || !strings.Contains(err.Error(), "associations") {
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
