package config

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/ast"
)

// declarations returns every key with what its values look like, by name.
func declarations(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var walk func(text string)
	walk = func(text string) {
		d := &decoder{name: "test"}
		d.declared = func(where string, fields map[string]field) {
			for key, f := range fields {
				name := strings.TrimPrefix(where+"."+key, ".")
				if _, known := all[name]; known {
					continue
				}
				all[name] = kindOf(f)
			}
		}
		d.file("test", text, &Config{})
	}
	walk(`
listener "tcp" { telemetry {} }
storage "raft" { retry_join {} }
audit "file" "a" {}
audit {}
plugin "auth" "a" {}
service_registration "kubernetes" {}
snapshots {} replication {} telemetry {} user_lockout "all" {}
sync { endpoint "webhook" {} }`)
	return all
}

// kindOf tells from what a field accepts what its values are.
func kindOf(f field) string {
	accepts := func(value string) (ok bool) {
		defer func() { ok = recover() == nil && ok }()
		d := &decoder{name: "test"}
		tree := parseFor(value)
		f(d, tree)
		return len(d.problems) == 0
	}
	switch {
	case accepts(`"x-no-word"`) && accepts("[\"10.0.0.1\"]"):
		return "text or list"
	case accepts(`["10.0.0.1"]`):
		return "list of texts"
	case accepts(`"5MiB"`) && !accepts(`"x-no-word"`):
		return "size"
	case accepts(`"5m"`) && !accepts(`"x-no-word"`):
		return "duration"
	case accepts(`"x-no-word"`):
		return "text"
	case accepts(`"true"`):
		return "boolean"
	case accepts(`0.5`):
		return "number"
	case accepts(`5`):
		return "whole number"
	case accepts(`"0660"`):
		return "mode"
	}
	return "stanza or one of"
}

var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([^|]+) \\| ([^|]*) \\| ([^|]+) \\|$")

// docs/configuration.md has every key that is declared, with the type that it takes, and no other.
func TestReference(t *testing.T) {
	text, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s has two rows", m[1])
		}
		documented[m[1]] = strings.TrimSpace(m[2])
	}
	declared := declarations(t)
	for _, key := range slices.Sorted(maps.Keys(declared)) {
		want, got := declared[key], documented[key]
		if got == "" {
			t.Errorf("there is no row | `%s` | %s | … | … |", key, want)
		} else if want != got && (want != "stanza or one of" || got != "stanza" && got != "names" && !strings.HasPrefix(got, "one of ")) {
			t.Errorf("%s is documented as %q, and takes %q", key, got, want)
		}
	}
	for key := range documented {
		if _, ok := declared[key]; !ok {
			t.Error(fmt.Sprintf("%s is documented, and no key", key))
		}
	}
}

// parseFor returns a key with a value.
func parseFor(value string) *ast.ObjectItem {
	tree, err := hcl.Parse("key = " + value)
	if err != nil {
		panic(err)
	}
	return tree.Node.(*ast.ObjectList).Items[0]
}
