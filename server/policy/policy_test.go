package policy_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/policy"
)

func mustParse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("test", text)
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, text)
	}
	return p
}

func TestParseForms(t *testing.T) {
	tests := []struct{ name, text string }{
		{"block", `path "secret/a" { capabilities = ["read"] }`},
		{"leading slash", `path "/secret/a" { capabilities = ["read"] }`},
		{"assignment", `path = { "secret/a" = { capabilities = ["read"] } }`},
		{"comments and heredoc", "# one\n// two }}}{{{\n/* [[[[[[[[[[[[[[[[[[[[[[[ */\npath \"secret/a\" {\n  comment = <<EOT\n{{{{{{{{{{{{{{{{{{{{\nEOT\n  capabilities = [\"read\"]\n}\n"},
		{"shorthand", `path "secret/a" { policy = "read" }`},
		{"windows", "path \"secret/a\" {\r\n capabilities = [\"read\",\r\n]\r\n}\r\n"},
		{"JSON", `{"path": {"secret/a": {"capabilities": ["read"]}}}`},
		{"JSON list", ` {"path": [{"secret/a": {"capabilities": ["read"]}}], "name": "x"}`},
		{"JSON twice", `{"path": {"secret/a": {"capabilities": ["read"]}}, "path": {"secret/b": {"capabilities": ["list"]}}}`},
		{"all keys", `path "secret/a" {
			capabilities        = ["create", "read", "update", "patch", "delete", "list", "sudo", "scan"]
			comment             = "x"
			expiration          = "2999-01-01T00:00:00Z"
			required_parameters = []
			allowed_parameters  = { "*" = [] "a" = [1, true, "x", ["y"]] }
			denied_parameters { "b" = [] }
		}`},
		{"template beside", `path "id/{{identity.entity.id}}/*" { capabilities = ["deny"] } path "secret/a" { capabilities = ["read"] }`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			acl := policy.NewACL(mustParse(t, tt.text))
			if !acl.Allow(engines.Read, "secret/a") {
				t.Error("read of secret/a is not allowed")
			}
			if acl.Allow(engines.Read, "secret/other") {
				t.Error("read of secret/other is allowed")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown top key", "\npaht \"x\" {}", `line 2: unknown key "paht"`},
		{"unknown key", "path \"x\" {\n  capability = [\"read\"]\n}", `line 2: path "x": unknown key "capability"`},
		{"unknown capability", "path \"x\" {\n\n  capabilities = [\"write\"]\n}", `line 3: path "x": unknown capability "write"`},
		{"capabilities as text", `path "x" { capabilities = "read" }`, `"capabilities" must be a list of strings`},
		{"number in list", `path "x" { capabilities = [1] }`, `"capabilities" must be a list of strings`},
		{"bad shorthand", `path "x" { policy = "all" }`, `"policy" must be`},
		{"twice", `path "x" { allowed_parameters {} allowed_parameters {} }`, `"allowed_parameters" is given twice`},
		{"parameters differ in case only", `path "x" { denied_parameters = { A = [], a = [] } }`, `names the parameter "a" twice`},
		{"parameter without list", `path "x" { denied_parameters = { a = "b" } }`, `values of "a" in "denied_parameters" must be a list`},
		{"plus star", `path "a/+*" { capabilities = ["read"] }`, `cannot hold "+*"`},
		{"open template", `path "a/{{identity" { capabilities = ["read"] }`, `must be followed by`},
		{"closed template", `path "a/b}}" { capabilities = ["read"] }`, `"}}" without "{{"`},
		{"wrap bounds", `path "x" { min_wrapping_ttl = "2h" max_wrapping_ttl = 60 }`, `"max_wrapping_ttl" is less`},
		{"wrap text", `path "x" { min_wrapping_ttl = "soon" }`, `"min_wrapping_ttl" must be a duration`},
		{"negative wrap", `path "x" { min_wrapping_ttl = "-1h" }`, `"min_wrapping_ttl" must be a duration`},
		{"expiration", `path "x" { expiration = "tomorrow" }`, `"expiration" must be a time`},
		{"two labels", `path "x" "y" { capabilities = ["read"] }`, "at most one label"},
		{"path without label", `path { capabilities = ["read"] }`, `path "capabilities": must be a block`},
		{"path is text", `path = "x"`, `"path" must be a block`},
		{"huge number", `path "x" { min_wrapping_ttl = 99999999999999999999999 }`, "not valid HCL"},
		{"HCL syntax", "path \"x\" {\n capabilities = [\n", "line "},
		{"deep", strings.Repeat("a {", 100_000>>2), "nested deeper than 16"},
		{"deep lists", "a = " + strings.Repeat("[", 1000), "nested deeper than 16"},
		{"deep JSON", strings.Repeat(`{"a":`, 1000), "nested deeper than 16"},
		{"JSON NUL", "{\"\x00", "NUL"},
		{"JSON trailing", `{"path": {}} x`, "line 1"},
		{"JSON cut", `{"path": {`, "unexpected EOF"},
		{"JSON duplicate", `{"path": {"x": {"policy": "deny", "policy": "read"}}}`, `"policy" is given twice`},
		{"JSON null path", `{"path": {"x": null}}`, `path "x": must be a block`},
		{"not UTF-8", "path \"\xff\" {}", "UTF-8"},
		{"long", strings.Repeat("#", policy.MaxTextBytes+1), "the limit is"},
		{"base64", base64.StdEncoding.EncodeToString([]byte("# x")), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := policy.Parse("test", tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestDecodeTakesBase64(t *testing.T) {
	const text = `path "secret/a" { capabilities = ["read"] }`
	p, err := policy.Decode("p", base64.StdEncoding.EncodeToString([]byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	if p.Text != text || !policy.NewACL(p).Allow(engines.Read, "secret/a") {
		t.Errorf("Decode kept %q", p.Text)
	}
	if _, err := policy.Decode("p", "paths {}"); err == nil || !strings.Contains(err.Error(), `unknown key "paths"`) {
		t.Errorf("Decode of bad HCL = %v, want the error of the HCL", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`path "secret/+/x*" { capabilities = ["read", "sudo"] allowed_parameters = { "a" = ["b*", 1, true] } }`)
	f.Add(`{"path": {"a/+/b": {"policy": "write", "min_wrapping_ttl": "1h", "denied_parameters": {"*": []}}}}`)
	f.Add("path \"x\" {\n  comment = <<-EOT\n  y\n  EOT\n}\n")
	f.Add("{\"\x00")
	f.Add(`a = [[[[{`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policy.Parse("f", text)
		if err != nil {
			return
		}
		if p.Text != text {
			t.Error("the text is not kept as written")
		}
		acl := policy.NewACL(p)
		acl.Check(engines.Update, "secret/a/x", freeForm(`{"a": "b"}`))
		acl.AnyUnder("secret/")
		acl.Capabilities("a/b")
	})
}

// TestCutOff: text whose end is missing is refused, not read as far as it goes; base64 looks like that at times.
func TestCutOff(t *testing.T) {
	const text = `path "a" { capabilities = ["read"] }`
	for _, cut := range []string{"abc=", text + " foo =", text + " path", "path"} {
		if p, err := policy.Parse("x", cut); err == nil {
			t.Errorf("Parse(%q) = %+v", cut, p)
		}
	}
	for _, tail := range []string{"", " ", "  ", "\n# end\n"} {
		p, err := policy.Decode("x", base64.StdEncoding.EncodeToString([]byte(text+tail)))
		if err != nil || !policy.NewACL(p).Allow(engines.Read, "a") {
			t.Errorf("Decode of base64 with %q at its end: %v", tail, err)
		}
	}
}
