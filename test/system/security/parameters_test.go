package security_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestParameterRules: what a rule says of a value holds for all its spellings, and all names of the field.
func TestParameterRules(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/kv", fields{"type": "kv", "options": fields{"version": "2"}})
	root.must("POST", "sys/mounts/flat", fields{"type": "kv"})
	root.must("POST", "sys/mounts/cloud", fields{"type": "cloud"})
	root.must("POST", "sys/auth/people", fields{"type": "userpass"})
	root.must("POST", "sys/auth/machines", fields{"type": "approle"})
	root.must("POST", "auth/people/users/eve", fields{"password": "eve-password-1"})
	root.must("POST", "kv/data/a", fields{"data": fields{"k": hidden}})
	root.must("POST", "kv/data/a", fields{"data": fields{"k": "new"}})
	policies := 0
	ruled := func(path, key, rules string) user {
		policies++
		name := fmt.Sprintf("p%d", policies)
		root.policy(name, fmt.Sprintf(`path %q { capabilities = ["create", "read", "update", "sudo"] %s = { %s } }`, path, key, rules))
		return root.having(name)
	}
	denied := func(path, rules string) user { return ruled(path, "denied_parameters", rules) }
	allowed := func(path, rules string) user { return ruled(path, "allowed_parameters", rules) }
	for _, test := range []struct {
		who      user
		method   string
		path     string
		refused  []string // bodies, or queries of a GET
		accepted []string
	}{
		{
			denied("auth/token/create", `"policies" = ["adm"], "no_parent" = ["true"], "ttl" = ["9h"], "num_uses" = [1]`), "POST", "auth/token/create",
			[]string{
				`{"policies":"adm"}`, `{"policies":["adm"]}`, `{"policies":["adm","default"]}`, `{"policies":"adm,default"}`, `{"policies":"ADM"}`, `{"policies":["default"," Adm "]}`,
				`{"policies":" adm"}`, `{"\u0070olicies":["\u0061dm"]}`, `{"no_parent":true}`, `{"no_parent":"true"}`, `{"no_parent":"1"}`, `{"no_parent":"T"}`, `{"no_parent":1}`,
				`{"no_parent":"TRUE"}`, `{"ttl":"9h"}`, `{"lease":"9h"}`, `{"ttl":32400}`, `{"ttl":"32400"}`, `{"ttl":"540m"}`, `{"ttl":3.24e4}`, `{"lease":"0.375d"}`, `{"ttl":0,"lease":"9h0s"}`,
				`{"num_uses":1}`, `{"num_uses":"01"}`, `{"num_uses":1.0}`, `{"num_uses":" 1 "}`,
			},
			[]string{`{"policies":["default"]}`, `{"policies":["adm2"]}`, `{"no_parent":false}`, `{"no_parent":""}`, `{"ttl":"8h"}`, `{"num_uses":2}`},
		},
		{
			denied("auth/token/create", `"ttl" = []`), "POST", "auth/token/create",
			[]string{`{"ttl":"1h"}`, `{"lease":"1h"}`, `{"ttl":null}`, `{"lease":null}`, `{"lease":""}`},
			[]string{`{}`, `{"explicit_max_ttl":"1h"}`},
		},
		{
			allowed("auth/token/create", `"policies" = ["dev-*", "qa"], "lease" = ["1h"]`), "POST", "auth/token/create",
			[]string{`{"policies":["dev-a","adm"]}`, `{"policies":[]}`, `{"policies":""}`, `{"policies":"adm"}`, `{"policies":null}`, `{"ttl":"2h"}`, `{"lease":"2h"}`, `{"ttl":"1h","lease":"2h"}`, `{"no_parent":true}`, `{"POLICIES":"adm"}`},
			[]string{`{"policies":"dev-a"}`, `{"policies":["dev-a","QA"]}`, `{"policies":"qa, Dev-b"}`, `{"ttl":3600}`, `{"lease":"60m"}`, `{}`},
		},
		{
			denied("auth/people/users/*", `"token_policies" = [], "token_bound_cidrs" = ["0.0.0.0/0"]`), "POST", "auth/people/users/eve",
			[]string{`{"policies":"adm"}`, `{"token_policies":"adm"}`, `{"bound_cidrs":"0.0.0.0/0"}`, `{"token_bound_cidrs":["10.1.2.3/0"]}`, `{"bound_cidrs":"10.0.0.0/8,1.2.3.4/0"}`},
			[]string{`{"password":"eve-password-2"}`, `{"bound_cidrs":"127.0.0.0/8"}`},
		},
		{
			denied("auth/people/users/*", `"policies" = ["adm"]`), "POST", "auth/people/users/eve/policies",
			[]string{`{"policies":"adm"}`, `{"token_policies":["x","ADM"]}`}, []string{`{"token_policies":["x"]}`},
		},
		{
			denied("auth/machines/role/*", `"token_policies" = ["adm"], "token_period" = []`), "POST", "auth/machines/role/r",
			[]string{`{"policies":["adm"]}`, `{"policies":"x,Adm"}`, `{"token_policies":"adm"}`, `{"period":"1h"}`, `{"token_period":"1h"}`}, []string{`{"policies":["x"]}`},
		},
		{
			denied("identity/group", `"policies" = ["adm"], "name" = ["admins"]`), "POST", "identity/group",
			[]string{`{"name":"g","policies":["adm"]}`, `{"name":"g","policies":"Adm"}`, `{"name":"Admins"}`}, []string{`{"name":"g","policies":["x"]}`},
		},
		{
			denied("sys/mounts/*", `"type" = ["cloud"], "options" = ["version=2"]`), "POST", "sys/mounts/new",
			[]string{`{"type":"cloud"}`, `{"type":"aws"}`, `{"type":"kv","options":{"version":"2"}}`, `{"type":"kv","options":{"version":2,"x":"y"}}`, `{"type":"kv","options":"version=2"}`, `{"type":"kv","options":["version = 2"]}`},
			nil,
		},
		{
			allowed("sys/mounts/*", `"type" = ["kv"]`), "POST", "sys/mounts/kinds",
			[]string{`{"type":"kv-v2"}`, `{"type":"kv-v1"}`, `{"type":"kv","options":{"version":"2"}}`}, []string{`{"type":"kv"}`},
		},
		{
			allowed("sys/mounts/*", `"type" = ["kv-v2"]`), "POST", "sys/mounts/kinds-v2", []string{`{"type":"kv"}`, `{"type":"kv-v1"}`}, []string{`{"type":"kv-v2"}`},
		},
		{
			denied("sys/mounts/*", `"type" = ["kv-v2"]`), "POST", "sys/mounts/kinds-v1",
			[]string{`{"type":"kv-v2"}`, `{"type":"kv","options":{"version":"2"}}`}, []string{`{"type":"kv-v1"}`},
		},
		{
			denied("cloud/roles/*", `"policy_arns" = ["arn:aws:iam::aws:policy/AdministratorAccess"], "policy_document" = []`), "POST", "cloud/roles/r",
			[]string{`{"credential_type":"iam_user","policy_arns":["arn:aws:iam::aws:policy/AdministratorAccess"]}`, `{"arn":"arn:aws:iam::aws:policy/AdministratorAccess"}`, `{"arn":" arn:aws:iam::aws:policy/AdministratorAccess"}`, `{"policy":"{}"}`},
			[]string{`{"credential_type":"iam_user","policy_arns":"arn:aws:iam::aws:policy/ReadOnlyAccess"}`},
		},
		{
			denied("auth/machines/role/+/secret-id", `"metadata" = ["team=adm"]`), "POST", "auth/machines/role/r/secret-id",
			[]string{`{"metadata":{"team":"adm"}}`, `{"metadata":"team=adm"}`, `{"metadata":"a=b, team = adm"}`, `{"metadata":"{\"team\":\"adm\",\"a\":\"b\"}"}`}, []string{`{"metadata":{"team":"dev"}}`},
		},
		{
			denied("kv/data/*", `"version" = ["1"]`), "GET", "kv/data/a",
			[]string{"version=1", "version=01", "version=1.0", "version=%201", "version=%2B1", "version=1e0", "version=1&version=2", "VERSION=1", "version=1%20"},
			[]string{"version=2", "version=0"},
		},
		{
			denied("flat/*", `"mode" = ["rw", 7, { "a" = 1, "b" = [2] }], "hidden" = []`), "POST", "flat/x",
			[]string{`{"mode":"rw"}`, `{"mode":["ro","rw"]}`, `{"mode":7}`, `{"mode":7.0}`, `{"mode":"7"}`, `{"mode":[70e-1]}`, `{"mode": { "b":[ 2.0 ],"\u0061":1}}`, `{"Mode":"rw"}`, `{"HIDDEN":null}`},
			[]string{`{"mode":"ro"}`, `{"mode":"RW"}`, `{"mode":{"a":1}}`},
		},
	} {
		send := func(input string) harness.Answer {
			if test.method == "GET" {
				return test.who.do("GET", test.path+"?"+input, nil)
			}
			return test.who.do(test.method, test.path, []byte(input))
		}
		for _, input := range test.refused {
			if a := send(input); a.Status != 403 || strings.Contains(string(a.Body), hidden) {
				t.Errorf("%s %s with %s: status %d, want 403: %.200s", test.method, test.path, input, a.Status, a.Body)
			}
		}
		for _, input := range test.accepted {
			if a := send(input); a.Status >= 300 {
				t.Errorf("%s %s with %s: status %d, want success: %.200s", test.method, test.path, input, a.Status, a.Body)
			}
		}
	}
}

// TestRequiredParameters: a field is given if the engine gets it, under whichever of its names.
func TestRequiredParameters(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.policy("p", `path "auth/token/create" { capabilities = ["update"] required_parameters = ["ttl"] }`)
	u := root.having("p")
	for _, body := range []string{`{}`, `{"TTL":"1h"}`, `{"ttl":null}`, `{"Lease":"1h"}`} {
		u.refused(body, "POST", "auth/token/create", []byte(body))
	}
	for _, body := range []string{`{"ttl":"1h"}`, `{"lease":"1h"}`} {
		u.must("POST", "auth/token/create", []byte(body))
	}
	root.policy("note", `path "auth/token/create" { capabilities = ["update"] required_parameters = ["ticket"] }`)
	noted := root.having("note")
	noted.refused("no ticket", "POST", "auth/token/create", fields{"ticket": nil})
	noted.must("POST", "auth/token/create", fields{"ticket": "T-1"}) // for the audit log: no engine knows it
	// What no engine would take is told, as without rules.
	if a := u.do("POST", "auth/token/create", []byte(`{"ttl":"soon"}`)); a.Status != 400 {
		t.Errorf("a wrong ttl: status %d: %s", a.Status, a.Body)
	}
}

// TestWrappingRules: limits of wrapping hold for every spelling of the header.
func TestWrappingRules(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/flat", fields{"type": "kv"})
	root.must("POST", "flat/x", fields{"k": hidden})
	root.policy("p", `path "flat/*" { capabilities = ["read"] min_wrapping_ttl = "1m" max_wrapping_ttl = 3600 }`)
	u := root.having("p")
	for _, ttl := range []string{"", "0", "0s", "59", "59s", "0.9m", "3601", "61m", "1.1h", "2d", "1e4", "-60", " ", "60,60", "60 s", "+0", "0x3c"} {
		if a := u.do("GET", "flat/x", nil, "X-Vault-Wrap-TTL", ttl); a.Status < 400 || strings.Contains(string(a.Body), hidden) {
			t.Errorf("wrapped for %q: status %d: %.200s", ttl, a.Status, a.Body)
		}
	}
	for _, ttl := range []string{"60", "60s", "1m", "1h", "0.5h", "3.6e3", " 90 "} {
		a := u.must("GET", "flat/x", nil, "x-vault-wrap-ttl", ttl)
		var out struct {
			Wrap struct {
				TTL int64 `json:"ttl"`
			} `json:"wrap_info"`
		}
		if err := json.Unmarshal(a.Body, &out); err != nil || out.Wrap.TTL < 60 || out.Wrap.TTL > 3600 {
			t.Errorf("wrapped for %q: %s", ttl, a.Body)
		}
	}
}
