package initialize_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config/initialize"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/ast"
)

// parse reads a file as the configuration does.
func parse(t *testing.T, text string) ([]initialize.Request, error) {
	t.Helper()
	tree, err := hcl.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var all []initialize.Request
	for _, item := range tree.Node.(*ast.ObjectList).Items {
		requests, err := initialize.Parse(item)
		if err != nil {
			return nil, err
		}
		all = append(all, requests...)
	}
	return all, initialize.Check(all)
}

const inHCL = `
initialize "identity" {
  request "userpass" {
    operation = "update"
    path      = "sys/auth/userpass"
    data      = { type = "userpass" config { max_lease_ttl = "1h" } options { a = "b" } }
  }
  request "admin" {
    operation     = "create"
    path          = "auth/userpass/users/admin"
    allow_failure = true
    data {
      password       = { eval_source = "env" eval_type = "string" env_var = "PASSWORD" require_present = true }
      token_policies = ["admin", "other"]
      token_num_uses = 3
    }
  }
}
initialize "more" {
  request "mounts" {
    operation = "read"
    path      = "sys/mounts"
    token     = { eval_source = "response" eval_type = "string" initialize_name = "identity" request_name = "admin" field_selector = ["auth", "client_token"] }
  }
}`

const inJSON = `{"initialize": [
  {"identity": {"request": [
    {"userpass": {"operation": "update", "path": "sys/auth/userpass", "data": {"type": "userpass", "config": {"max_lease_ttl": "1h"}, "options": {"a": "b"}}}},
    {"admin": {"operation": "create", "path": "auth/userpass/users/admin", "allow_failure": true, "data": {
      "password": {"eval_source": "env", "eval_type": "string", "env_var": "PASSWORD", "require_present": true},
      "token_policies": ["admin", "other"], "token_num_uses": 3}}}]}},
  {"more": {"request": [
    {"mounts": {"operation": "read", "path": "sys/mounts", "token": {"eval_source": "response", "eval_type": "string",
      "initialize_name": "identity", "request_name": "admin", "field_selector": ["auth", "client_token"]}}}]}}]}`

// Both syntaxes say the same, and the values arrive where they belong.
func TestRun(t *testing.T) {
	requests, err := parse(t, inHCL)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parse(t, inJSON)
	if err != nil || !reflect.DeepEqual(again, requests) {
		t.Errorf("JSON is %#v, %v; HCL %#v", again, err, requests)
	}
	if _, err := initialize.Prepare(requests); err == nil || !strings.Contains(err.Error(), "PASSWORD") {
		t.Errorf("without the variable: %v", err)
	}
	t.Setenv("PASSWORD", "s3cret")
	prepared, err := initialize.Prepare(requests)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v", prepared, prepared, prepared); strings.Contains(text, "s3cret") {
		t.Errorf("a request shows its values: %s", text)
	}
	var calls []initialize.Call
	do := func(_ context.Context, c initialize.Call) (map[string]any, error) {
		calls = append(calls, c)
		return map[string]any{"auth": map[string]any{"client_token": "t1"}}, nil
	}
	if err := initialize.Run(t.Context(), prepared, do, nil); err != nil {
		t.Fatal(err)
	}
	want := []initialize.Call{
		{Operation: "update", Path: "sys/auth/userpass", Data: map[string]any{"type": "userpass", "config": map[string]any{"max_lease_ttl": "1h"}, "options": map[string]any{"a": "b"}}},
		{Operation: "create", Path: "auth/userpass/users/admin", Data: map[string]any{"password": "s3cret", "token_policies": []any{"admin", "other"}, "token_num_uses": int64(3)}},
		{Operation: "read", Path: "sys/mounts", Token: "t1"},
	}
	for i := range want {
		if i >= len(calls) || fmt.Sprint(calls[i]) != fmt.Sprint(want[i]) {
			t.Fatalf("calls %v, want %v", calls, want)
		}
	}
}

// The first request that fails ends the run, unless it may fail.
func TestFailures(t *testing.T) {
	t.Setenv("PASSWORD", "s3cret")
	requests, err := parse(t, inHCL)
	if err != nil {
		t.Fatal(err)
	}
	prepared, err := initialize.Prepare(requests[:2])
	if err != nil {
		t.Fatal(err)
	}
	for _, failing := range []string{"sys/auth/userpass", "auth/userpass/users/admin"} {
		var paths, told []string
		do := func(_ context.Context, c initialize.Call) (map[string]any, error) {
			if paths = append(paths, c.Path); c.Path == failing {
				return nil, errors.New("no")
			}
			return nil, nil
		}
		err := initialize.Run(t.Context(), prepared, do, func(r initialize.Request, _ error) { told = append(told, r.Name) })
		if may := failing == "auth/userpass/users/admin"; (err == nil) != may || slices.Equal(told, []string{"admin"}) != may || len(paths) != map[bool]int{false: 1, true: 2}[may] {
			t.Errorf("%s fails: %v, paths %v, told %v", failing, err, paths, told)
		}
	}
}

// A value becomes the type that it is asked to be, and an error does not show it.
func TestSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("17"), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]any{
		"string": "17", "int": int64(17), "float64": 17.0, "[]string": []string{"17"}, "any": "17", "bool": nil, "map": nil,
	} {
		requests, err := parse(t, `initialize "a" { request "b" { operation = "update" path = "p" data = { v = { eval_source = "file" path = "`+file+`" eval_type = "`+kind+`" } } } }`)
		if err != nil {
			t.Fatal(err)
		}
		prepared, err := initialize.Prepare(requests)
		switch {
		case want == nil && (err == nil || strings.Contains(err.Error(), "17")):
			t.Errorf("%s: %v", kind, err)
		case want != nil && (err != nil || !reflect.DeepEqual(prepared[0].Data["v"], want)):
			t.Errorf("%s: %v, %v", kind, prepared, err)
		}
	}
}

func TestRejects(t *testing.T) {
	const one = `initialize "a" { request "b" { operation = "read" path = "p" `
	for text, want := range map[string]string{
		`initialize "a" {}`: "needs a name and requests",
		`initialize { request "b" { operation = "read" path = "p" } }`:            "request",
		`initialize "1a" { request "b" {} }`:                                      "letters",
		`initialize "a" { ask "b" {} }`:                                           "no \"ask\"",
		`initialize "a" { request "b" { path = "p" } }`:                           "required",
		`initialize "a" { request "b" { operation = "scan" path = "p" } }`:        "operation must be one of",
		one + `colour = "red" } }`:                                                "colour",
		one + `allow_failure = "x" } }`:                                           "allow_failure",
		one + `} request "b" { operation = "read" path = "p" } }`:                 "twice",
		one + `token = { eval_source = "vault" eval_type = "string" } } }`:        "eval_source must be",
		one + `token = { eval_source = "env" eval_type = "string" } } }`:          "env_var",
		one + `token = { eval_source = "env" env_var = "A" eval_type = "x" } } }`: "eval_type must be",
		one + `token = { eval_source = "response" eval_type = "string" initialize_name = "a" request_name = "b" field_selector = "data" } } }`: "before it",
	} {
		if _, err := parse(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word on %s", text, err, want)
		}
	}
}
