package migration_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/coffer-project/coffer/test/harness"
)

// secrets is how many secrets populate writes into the mount team/apps.
const secrets = 60

// populate fills a cluster with something of everything that is imported.
func populate(p place) {
	p.write("sys/namespaces/team", fields{"custom_metadata": fields{"owner": "ada"}})
	p.write("team/sys/namespaces/child", nil)
	p.write("sys/mounts/apps", fields{"type": "kv", "description": "of the apps", "options": fields{"version": "2"}, "config": fields{"max_lease_ttl": "1h", "listing_visibility": "unauth"}})
	p.write("apps/config", fields{"max_versions": 4, "delete_version_after": "720h"})
	p.write("sys/mounts/old", fields{"type": "kv", "options": fields{"version": "1"}})
	p.write("team/sys/mounts/apps", fields{"type": "kv", "options": fields{"version": "2"}})
	p.write("team/child/sys/mounts/deep/apps", fields{"type": "kv-v2"})
	for i := range secrets {
		path := fmt.Sprintf("team/apps/data/app%d/%s", i%7, number(i))
		for version := range 3 {
			p.write(path, fields{"data": fields{"secret": fmt.Sprintf("value-%d-%d", i, version), "number": 9007199254740993}})
		}
	}
	for i := range 7 { // more than one request takes
		p.write("team/apps/data/large", fields{"data": fields{"x": strings.Repeat(fmt.Sprint(i), 900<<10)}})
	}
	for i := range 6 {
		p.write("apps/data/many", fields{"data": fields{"n": i}})
	}
	p.write("apps/metadata/many", fields{"custom_metadata": fields{"owner": "ada"}, "cas_required": true, "max_versions": 3})
	p.write("apps/data/a%20b/%C3%BC+%25%3F%23", fields{"data": fields{"x": "<&>"}})
	for range 3 {
		p.write("apps/data/states", fields{"data": fields{"x": "y"}})
	}
	p.write("apps/delete/states", fields{"versions": []int{1}})
	p.write("apps/destroy/states", fields{"versions": []int{2}})
	p.write("apps/metadata/empty", fields{"custom_metadata": fields{"only": "metadata"}})
	p.write("team/child/deep/apps/data/x", fields{"data": fields{"x": "deep"}})
	p.write("old/a/b", fields{"x": "y", "ttl": "10m"})
	p.write("old/a", fields{"x": "both a secret and a folder"})

	p.write("sys/auth/machines", fields{"type": "approle", "config": fields{"default_lease_ttl": "30m"}})
	p.write("sys/auth/people", fields{"type": "userpass", "description": "people"})
	p.write("sys/policies/acl/app", fields{"policy": "path \"apps/data/*\" {\n  capabilities = [\"read\"]\n}\n"})
	accessor := p.read("sys/auth")["people/"].(fields)["accessor"].(string)
	p.write("sys/policies/acl/own", fields{"policy": `path "apps/data/{{identity.entity.aliases.` + accessor + `.name}}" { capabilities = ["read"] }`})
	p.write("team/sys/policies/acl/team", fields{"policy": `path "apps/*" { capabilities = ["read", "list"] }`})
	p.write("sys/policies/password/long", fields{"policy": "length = 20\nrule \"charset\" {\n  charset = \"abcdef\"\n}\n"})
	p.write("auth/machines/role/web", fields{"token_policies": "app", "token_ttl": "20m", "secret_id_num_uses": 3, "role_id": "the-role-id", "secret_id_bound_cidrs": "127.0.0.0/8"})
	p.write("auth/machines/role/web/secret-id", nil)
	p.write("auth/machines/role/open", fields{"bind_secret_id": false, "token_bound_cidrs": "127.0.0.1", "token_no_default_policy": true})
	p.write("auth/people/users/ann", fields{"password": "of-the-source", "token_policies": "app,own", "token_max_ttl": "2h"})
	p.write("sys/auth/sso", fields{"type": "saml"})
	p.write("auth/sso/config", fields{"entity_id": "https://coffer.example", "acs_urls": "https://coffer.example/v1/auth/sso/callback", "idp_metadata_url": "https://idp.example/metadata", "default_role": "staff"})
	p.write("auth/sso/role/staff", fields{"bound_subjects": "*@example.com", "bound_subjects_type": "glob", "bound_attributes": fields{"group": "a,b"}, "token_policies": "app"})
	p.write("sys/auth/certs", fields{"type": "cert"})
	p.write("auth/certs/config", fields{"disable_binding": true})
	p.write("auth/certs/certs/web", fields{"certificate": certtest.New(p.t, "ca").PEM(), "allowed_dns_sans": "*.example.com", "policies": "app", "ttl": "10m"})
	p.write("auth/token/roles/ci", fields{"allowed_policies": "app", "orphan": true, "token_period": "1h"})
	p.write("team/sys/auth/people", fields{"type": "userpass"})
	p.write("team/auth/people/users/bob", fields{"password": "bob", "token_policies": "team"})

	ann := p.write("identity/entity", fields{"name": "ann", "policies": "own", "metadata": fields{"team": "one"}})["id"]
	p.write("identity/entity", fields{"name": "away", "disabled": true, "metadata": fields{"level": "0"}})
	p.write("identity/entity-alias", fields{"name": "ann", "canonical_id": ann, "mount_accessor": accessor, "custom_metadata": fields{"k": "v"}})
	inner := p.write("identity/group", fields{"name": "inner", "policies": "app", "member_entity_ids": []any{ann}})["id"]
	p.write("identity/group", fields{"name": "outer", "metadata": fields{"a": "b"}, "member_group_ids": []any{inner}})
	outside := p.write("identity/group", fields{"name": "outside", "type": "external", "policies": "app"})["id"]
	p.write("identity/group-alias", fields{"name": "ldap-admins", "canonical_id": outside, "mount_accessor": accessor})

	p.write("sys/quotas/rate-limit/all", fields{"rate": 100000, "interval": "2s"})
	p.write("sys/quotas/lease-count/machines", fields{"max_leases": 5000, "path": "auth/machines"})
}

func TestImportFromCoffer(t *testing.T) {
	from := harness.NewCluster(t, 1, harness.Options{Prefix: "s"})
	to := harness.NewCluster(t, 1, harness.Options{Prefix: "d"})
	a, b := place{t, from}, place{t, to}
	populate(a)
	m := newMover(t, from, to)

	plan := m.run(0, "-plan")
	if _, err := os.Stat(m.ledger); err == nil {
		t.Error("-plan has written a ledger")
	}
	plan.wantTotal(t, "secret", "create", secrets+8)
	if reason := plan.reason(t, "create", "user", "", "people/ann"); !strings.Contains(reason, "no login works until one is set") {
		t.Errorf("the plan says of a user: %s", reason)
	}
	if reason := plan.reason(t, "create", "approle role", "", "machines/web"); !strings.Contains(reason, "secret ids (1) do not come") {
		t.Errorf("the plan says of a role: %s", reason)
	}
	plan.reason(t, "skip", "token", "", "all tokens and leases")
	plan.reason(t, "skip", "secret version", "", "apps/")
	before := b.read("sys/mounts")

	interruptAndResume(t, m, b)
	if len(before) >= len(b.read("sys/mounts")) {
		t.Error("no mount came over")
	}
	again := m.run(0)
	again.wantTotal(t, "secret", "unchanged", secrets+8)
	for kind, actions := range again.Totals {
		for action, n := range actions {
			if action != "unchanged" && action != "skip" {
				t.Errorf("a second run does %s to %d of kind %s", action, n, kind)
			}
		}
	}
	if again.Written != 0 {
		t.Errorf("a second run writes %d things", again.Written)
	}
	compare(t, a, b)
	logins(t, a, b)
	m.run(0, "-verify")
	noValues(t, m, a)
	differences(t, m, a, b)
	follow(t, m, a, b)
	ledger := m.ledger
	namespace(t, m, a, b)
	m.ledger = ledger
	goneMounts(t, m, a, b)
}

// interruptAndResume kills the command in the middle, and runs it again to the end.
func interruptAndResume(t *testing.T, m *mover, b place) {
	t.Helper()
	cmd := m.command(t.Context(), "-rate=200")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}) // closed when the process has ended
	go func() { _ = cmd.Wait(); close(ended) }()
	harness.Await(t, "the first secrets in the ledger", patience, func() error {
		select {
		case <-ended:
			t.Fatalf("the command ended before it was killed:\n%s", out.String())
		default:
		}
		if text, err := os.ReadFile(m.ledger); err != nil || !strings.Contains(string(text), `"kind":"secret"`) {
			return fmt.Errorf("none yet: %v", err)
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	text, err := os.ReadFile(m.ledger)
	if err != nil {
		t.Fatal(err)
	}
	done := strings.Count(string(text), `"kind":"secret"`)
	// As if the crash had cut the last line off.
	if err := os.WriteFile(m.ledger, append(text, `{"kind":"sec`...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := m.run(0)
	if came := r.Totals["secret"]["create"]; came == 0 || done == 0 || came+done > secrets+8 {
		t.Errorf("after %d secrets before the kill, the second run brought %d of %d", done, came, secrets+8)
	}
	if info, err := os.Stat(m.ledger); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the ledger: %v, %v", info.Mode(), err)
	}
}

// compare reads everything at both ends.
func compare(t *testing.T, a, b place) {
	t.Helper()
	same(t, a, b, "sys/namespaces/team", "id", "uuid")
	for _, path := range []string{
		"apps/config", "apps/data/many", "apps/data/many?version=4", "apps/metadata/states", "apps/data/states", "apps/metadata/empty",
		"apps/metadata/a%20b/%C3%BC+%25%3F%23", "apps/data/a%20b/%C3%BC+%25%3F%23", "team/child/deep/apps/data/x", "old/a/b", "old/a",
		"sys/policies/acl/app", "team/sys/policies/acl/team", "sys/policies/password/long",
		"auth/machines/role/web", "auth/machines/role/web/role-id", "auth/machines/role/open", "auth/people/users/ann", "auth/token/roles/ci", "auth/sso/config", "auth/sso/role/staff", "team/auth/people/users/bob",
		"sys/quotas/rate-limit/all", "sys/quotas/lease-count/machines",
	} {
		same(t, a, b, path)
	}
	for i := range secrets {
		path := fmt.Sprintf("app%d/%s", i%7, number(i))
		same(t, a, b, "team/apps/metadata/"+path)
		same(t, a, b, "team/apps/data/"+path+"?version=2")
	}
	for _, path := range []string{"sys/mounts/apps/tune", "sys/mounts/old/tune", "sys/auth/machines/tune"} {
		same(t, a, b, path)
	}
	same(t, a, b, "team/apps/metadata/large")
	for version := range 7 {
		same(t, a, b, fmt.Sprint("team/apps/data/large?version=", version+1))
	}
	same(t, a, b, "apps/metadata/many", "versions", "oldest_version") // max_versions of 3 counts at once
	if got := b.read("apps/metadata/many")["oldest_version"]; got != float64(4) {
		t.Errorf("the oldest version is %v, want 4", got)
	}
	if list := b.read("apps/metadata?list=true")["keys"]; fmt.Sprint(list) != fmt.Sprint(a.read("apps/metadata?list=true")["keys"]) {
		t.Errorf("the destination has the secrets %v", list)
	}
	for _, name := range []string{"ann", "away"} {
		same(t, a, b, "identity/entity/name/"+name, "id", "creation_time", "last_update_time", "aliases", "direct_group_ids", "group_ids", "inherited_group_ids")
	}
	ann := b.read("identity/entity/name/ann")
	alias := ann["aliases"].([]any)[0].(fields)
	accessor := b.read("sys/auth")["people/"].(fields)["accessor"].(string)
	if alias["name"] != "ann" || alias["mount_accessor"] != accessor || fmt.Sprint(alias["custom_metadata"]) != "map[k:v]" {
		t.Errorf("the alias is %v", alias)
	}
	inner := b.read("identity/group/name/inner")
	if fmt.Sprint(inner["member_entity_ids"]) != fmt.Sprint([]any{ann["id"]}) {
		t.Errorf("the inner group has the members %v", inner["member_entity_ids"])
	}
	if got := b.read("identity/group/name/outer")["member_group_ids"]; fmt.Sprint(got) != fmt.Sprint([]any{inner["id"]}) {
		t.Errorf("the outer group has the members %v", got)
	}
	if alias := b.read("identity/group/name/outside")["alias"].(fields); alias["name"] != "ldap-admins" || alias["mount_accessor"] != accessor {
		t.Errorf("the alias of the external group is %v", alias)
	}
	if policy := b.read("sys/policies/acl/own")["policy"].(string); !strings.Contains(policy, "aliases."+accessor+".name") {
		t.Errorf("the policy with an accessor is %s", policy)
	}
	b.do(400, "POST", "apps/undelete/states", b.c.RootToken, fields{"versions": []int{1}}) // its data did not come
}

// logins logs in at the destination.
func logins(t *testing.T, a, b place) {
	t.Helper()
	b.do(400, "POST", "auth/people/login/ann", "", fields{"password": "of-the-source"})
	b.write("auth/people/users/ann/password", fields{"password": "a new one"})
	auth := b.do(0, "POST", "auth/people/login/ann", "", fields{"password": "a new one"})
	if got := fmt.Sprint(auth["policies"]); got != "[app default own]" || auth["entity_id"] != b.read("identity/entity/name/ann")["id"] {
		t.Errorf("the login of ann: policies %v, entity %v", got, auth["entity_id"])
	}
	secret := b.write("auth/machines/role/web/secret-id", nil)["secret_id"]
	auth = b.do(0, "POST", "auth/machines/login", "", fields{"role_id": "the-role-id", "secret_id": secret})
	if auth["lease_duration"] != float64(1200) || !slices.Contains(auth["policies"].([]any), any("app")) {
		t.Errorf("the login of the role: %v", auth)
	}
	b.do(0, "GET", "apps/data/many", auth["client_token"].(string), nil)
	id := a.read("auth/machines/role/open/role-id")["role_id"]
	b.do(0, "POST", "auth/machines/login", "", fields{"role_id": id})
}

// noValues looks for values of secrets in the ledger and in what the command prints.
func noValues(t *testing.T, m *mover, a place) {
	t.Helper()
	ledger, err := os.ReadFile(m.ledger)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, args := range [][]string{{"-verify"}, {"-plan"}, {}} {
		cmd := m.command(t.Context(), args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out.String())
		}
	}
	for _, text := range []string{"value-0-0", "value-", "the-role-id", a.c.RootToken, m.to.RootToken} {
		if bytes.Contains(ledger, []byte(text)) || strings.Contains(out.String(), text) {
			t.Errorf("%s is in the ledger or in what is printed", text)
		}
	}
}

// differences changes things at the destination: the command reports them, and replaces them only when told so.
func differences(t *testing.T, m *mover, a, b place) {
	t.Helper()
	b.write("team/apps/data/app0/000", fields{"data": fields{"secret": "ours"}})
	b.write("old/a", fields{"x": "ours"})
	b.write("sys/policies/acl/app", fields{"policy": `path "ours" { capabilities = ["read"] }`})
	b.write("auth/machines/role/web/token-ttl", fields{"token_ttl": "1m"})
	b.do(0, "DELETE", "team/apps/metadata/app1/001", b.c.RootToken, nil)

	verify := m.run(2, "-verify")
	verify.reason(t, "different", "secret", "team", "apps/app0/000")
	verify.reason(t, "missing", "secret", "team", "apps/app1/001")
	verify.reason(t, "different", "secret", "", "old/a")
	verify.reason(t, "different", "policy", "", "app")
	if reason := verify.reason(t, "different", "approle role", "", "machines/web"); reason == "" || strings.Contains(reason, "20m") || !strings.Contains(reason, "token_ttl") {
		t.Errorf("the difference of a role: %s", reason)
	}

	// The source changes, too: what is already in the ledger is looked at again.
	a.write("team/apps/data/app0/000", fields{"data": fields{"secret": "theirs"}})
	r := m.run(2)
	r.reason(t, "conflict", "secret", "team", "apps/app0/000")
	r.reason(t, "conflict", "secret", "", "old/a")
	r.reason(t, "conflict", "policy", "", "app")
	if got := b.read("team/apps/data/app0/000")["data"]; fmt.Sprint(got) != "map[secret:ours]" {
		t.Errorf("a conflict was overwritten with %v", got)
	}
	r = m.run(0, "-overwrite")
	r.wantTotal(t, "secret", "overwrite", 2)
	same(t, a, b, "team/apps/data/app0/000")
	same(t, a, b, "team/apps/metadata/app0/000")
	same(t, a, b, "sys/policies/acl/app")
	same(t, a, b, "auth/machines/role/web")
	// What was deleted at the destination is done, says the ledger; a fresh one brings it again.
	m.ledger += ".new"
	r = m.run(0)
	r.wantTotal(t, "secret", "create", 1)
	m.run(0, "-verify")
}

// follow has changes come over while the command runs.
func follow(t *testing.T, m *mover, a, b place) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := m.command(ctx, "-follow", "-interval=100ms")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// What differs when the command starts might have been changed at either end: version 1 does not tell. This secret is the last to be read.
	a.write("team/child/deep/apps/data/last", fields{"data": fields{"x": "y"}})
	harness.Await(t, "the first pass", patience, func() error {
		answer, err := b.c.Nodes[0].Do(t.Context(), "GET", "/v1/team/child/deep/apps/data/last", b.c.RootToken, nil)
		if err != nil || answer.Status != 200 {
			return fmt.Errorf("status %d, %v", answer.Status, err)
		}
		return nil
	})
	for i := range 5 {
		a.write("team/apps/data/app2/002", fields{"data": fields{"secret": fmt.Sprint("new ", i)}})
		a.write("old/a", fields{"x": fmt.Sprint("new ", i)})
		a.write(fmt.Sprint("apps/data/new", i), fields{"data": fields{"x": "y"}})
	}
	a.write("team/apps/delete/app3/003", fields{"versions": []int{3}})
	a.write("team/apps/destroy/app4/004", fields{"versions": []int{1}})
	a.write("apps/undelete/states", fields{"versions": []int{1}})
	a.write("sys/policies/acl/late", fields{"policy": `path "late" { capabilities = ["read"] }`})
	a.write("sys/policies/acl/app", fields{"policy": `path "changed" { capabilities = ["read"] }`})
	harness.Await(t, "the changes at the destination", patience, func() error {
		for _, path := range []string{
			"team/apps/metadata/app2/002", "team/apps/metadata/app3/003", "team/apps/metadata/app4/004", "apps/metadata/states", "apps/data/new4", "old/a",
			"sys/policies/acl/late", "sys/policies/acl/app", "apps/data/states?version=1",
		} {
			var answers [2]string
			for i, p := range []place{a, b} {
				answer, err := p.c.Nodes[0].Do(t.Context(), "GET", "/v1/"+path, p.c.RootToken, nil)
				if err != nil {
					return err
				}
				var out struct{ Data fields }
				if answer.Status == 200 {
					answer.Decode(t, &out)
				}
				answers[i] = fmt.Sprint(answer.Status, out.Data)
			}
			if answers[0] != answers[1] {
				return fmt.Errorf("%s: %s, want %s", path, answers[1], answers[0])
			}
		}
		return nil
	})
	stop()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("-follow ended with %v:\n%s", err, out.String())
	}
	a.write("apps/data/new0", fields{"data": fields{"x": "z"}})
	// What is taken away at the source is taken away here.
	a.write("auth/machines/role/web", fields{"token_policies": "", "secret_id_bound_cidrs": ""})
	a.write("auth/people/users/ann", fields{"token_policies": ""})
	a.write("identity/entity/name/ann", fields{"policies": "", "metadata": fields{}})
	a.write("sys/mounts/apps/tune", fields{"listing_visibility": "", "max_lease_ttl": "0", "description": ""})
	a.do(0, "PATCH", "sys/namespaces/team", a.c.RootToken, fields{"custom_metadata": fields{"owner": nil, "cost": "1"}})
	r := m.run(0, "-follow-until-idle", "-interval=1ms")
	if r.Written != 6 {
		t.Errorf("-follow-until-idle wrote %d things, want 6: %+v", r.Written, r.Totals)
	}
	for _, path := range []string{"auth/machines/role/web", "auth/people/users/ann", "sys/mounts/apps/tune"} {
		same(t, a, b, path)
	}
	if ann := b.read("identity/entity/name/ann"); fmt.Sprint(ann["policies"], ann["metadata"]) != fmt.Sprint(a.read("identity/entity/name/ann")["policies"], a.read("identity/entity/name/ann")["metadata"]) {
		t.Errorf("ann has %v %v", ann["policies"], ann["metadata"])
	}
	if team := b.read("sys/namespaces/team"); fmt.Sprint(team["custom_metadata"]) != "map[cost:1]" {
		t.Errorf("the namespace has %v", team["custom_metadata"])
	}
	a.do(0, "DELETE", "apps/metadata/new1", a.c.RootToken, nil)
	a.do(0, "DELETE", "old/a/b", a.c.RootToken, nil)
	a.do(0, "DELETE", "apps/metadata/states", a.c.RootToken, nil)
	b.write("apps/metadata/states", fields{"custom_metadata": fields{"changed": "here"}})
	for _, r := range []report{m.run(0), m.run(2, "-verify")} {
		r.reason(t, "gone", "secret", "", "apps/new1")
		r.reason(t, "gone", "secret", "", "apps/states")
		r.reason(t, "gone", "secret", "", "old/a/b")
	}
	m.run(0, "-plan", "-delete-gone").reason(t, "delete", "secret", "", "apps/new1")
	b.read("apps/metadata/new1")
	r = m.run(0, "-delete-gone")
	r.reason(t, "delete", "secret", "", "apps/new1")
	r.reason(t, "gone", "secret", "", "old/a/b") // of version 1 it is not known whether it has changed
	r.reason(t, "gone", "secret", "", "apps/states")
	b.do(404, "GET", "apps/metadata/new1", b.c.RootToken, nil)
	m.run(0, "-delete-gone", "-overwrite")
	m.run(0, "-verify")
	if again := m.run(0); again.Totals["secret"]["gone"] != 0 {
		t.Errorf("what is deleted at both ends is reported: %v", again.Totals)
	}
}

// namespace moves one namespace, with that below it, to another place.
func namespace(t *testing.T, m *mover, a, b place) {
	t.Helper()
	b.write("sys/namespaces/moved", nil)
	m.ledger += ".moved"
	r := m.run(0, "-source-namespace=team", "-namespace=moved")
	r.wantTotal(t, "namespace", "create", 1)
	r.wantTotal(t, "secret", "create", secrets+3)
	for _, path := range []string{"apps/metadata/app2/002", "child/deep/apps/data/x", "auth/people/users/bob", "sys/policies/acl/team"} {
		one, other := a.read("team/"+path), b.read("moved/"+path)
		if fmt.Sprint(one) != fmt.Sprint(other) {
			t.Errorf("%s: %v, want %v", path, other, one)
		}
	}
	m.run(0, "-source-namespace=team", "-namespace=moved", "-verify")
	// Only the secrets of one mount.
	b.write("sys/namespaces/part", nil)
	b.write("part/sys/namespaces/child", nil)
	b.write("part/child/sys/mounts/deep/apps", fields{"type": "kv-v2"})
	m.ledger += ".part"
	r = m.run(0, "-source-namespace=team", "-namespace=part", "-mount=child/deep/apps/")
	if len(r.Totals) != 2 || r.Totals["secret"]["create"] != 2 {
		t.Errorf("only one mount: %v", r.Totals)
	}
}

// goneMounts removes mounts and a namespace at the source: they are reported, and stay at the destination with what is in them.
func goneMounts(t *testing.T, m *mover, a, b place) {
	t.Helper()
	for _, path := range []string{"sys/mounts/old", "sys/auth/sso", "team/child/sys/mounts/deep/apps", "sys/namespaces/team/child"} {
		a.do(0, "DELETE", path, a.c.RootToken, nil)
	}
	harness.Await(t, "the end of a namespace", patience, func() error {
		answer, err := a.c.Leader().Do(t.Context(), "GET", "/v1/sys/namespaces/team/child", a.c.RootToken, nil)
		if err == nil && answer.Status != 404 {
			err = fmt.Errorf("status %d", answer.Status)
		}
		return err
	})
	for _, r := range []report{m.run(0, "-delete-gone", "-overwrite"), m.run(2, "-verify")} {
		r.reason(t, "gone", "secrets engine", "", "old/")
		r.reason(t, "gone", "auth method", "", "sso/")
		r.reason(t, "gone", "namespace", "", "team/child")
		r.wantTotal(t, "secrets engine", "gone", 1)
	}
	b.read("old/a")
	b.read("team/child/deep/apps/data/x")
}
