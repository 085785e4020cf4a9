package passpolicy_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/passpolicy"
	"github.com/coffer-project/coffer/storage"
)

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// hcl writes a policy; each rule is a charset and its min-chars.
func hcl(length int, rules ...any) string {
	text := fmt.Sprintf("length = %d\n", length)
	for i := 0; i < len(rules); i += 2 {
		text += fmt.Sprintf("rule \"charset\" {\n  charset = %q\n  min-chars = %d\n}\n", rules[i], rules[i+1])
	}
	return text
}

// count returns how many characters of text are in charset.
func count(text, charset string) int {
	n := 0
	for _, c := range text {
		if strings.ContainsRune(charset, c) {
			n++
		}
	}
	return n
}

func TestGenerate(t *testing.T) {
	for _, tt := range []struct {
		length int
		rules  []any
	}{
		{20, []any{lower, 1, upper, 1, digits, 1, "!@#$%^&*", 1}},
		{4, []any{lower, 1, upper, 1, digits, 1, "-", 1}},
		{100, []any{lower + upper + digits, 0}},
		{8, []any{"a", 8}},
		{6, []any{"äöü€", 3, "日本", 2}},
		{10, []any{lower + digits, 10, digits, 2}},
		{4, []any{"abcd", 4, "abcd", 4}}, // together they ask for 4
		{12, []any{lower + lower, 2, digits, 9}},
	} {
		p, err := passpolicy.Parse(hcl(tt.length, tt.rules...))
		if err != nil {
			t.Errorf("%d %v: %v", tt.length, tt.rules, err)
			continue
		}
		all := ""
		for i := 0; i < len(tt.rules); i += 2 {
			all += tt.rules[i].(string)
		}
		for range 200 {
			password, err := p.Generate(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if utf8.RuneCountInString(password) != tt.length || count(password, all) != tt.length {
				t.Fatalf("%d %v: a password has %d characters, %d of them from the charsets", tt.length, tt.rules, utf8.RuneCountInString(password), count(password, all))
			}
			for i := 0; i < len(tt.rules); i += 2 {
				if n := count(password, tt.rules[i].(string)); n < tt.rules[i+1].(int) {
					t.Fatalf("%d %v: a password has %d characters for rule %d", tt.length, tt.rules, n, i/2)
				}
			}
		}
	}
}

// TestGenerateIsEven: of the 14 passwords that fulfil a policy, each comes up about equally often. The bounds are
// more than ten standard deviations away.
func TestGenerateIsEven(t *testing.T) {
	const draws = 28_000
	p, err := passpolicy.Parse(hcl(4, "a", 1, "b", 1))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for range draws {
		password, err := p.Generate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[password]++
	}
	if len(seen) != 14 {
		t.Errorf("%d passwords came up, want 14", len(seen))
	}
	for password, n := range seen {
		if n < 1500 || n > 2500 {
			t.Errorf("%s came up %d times, want about %d", password, n, draws/14)
		}
	}
}

func TestGenerateEnds(t *testing.T) {
	p, err := passpolicy.Parse(hcl(20, lower, 1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Generate(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Generate without a client: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	rule := hcl(20, lower, 1)
	for _, tt := range []struct{ text, want string }{
		{"", "length is missing"},
		{hcl(20), "no rule"},
		{hcl(3, lower, 1), "between 4 and 100"},
		{hcl(101, lower, 1), "between 4 and 100"},
		{hcl(0, lower, 1), "line 1: length"},
		{hcl(-5, lower, 1), "line 1: length"},
		{"length = 99999999999999999999\n", "HCL"},
		{"length = 4294967300\n", "line 1: length"},
		{"length = 20.5\n", "line 1: length"},
		{"length = \"20\"\n", "line 1: length"},
		{rule + "length = 20\n", "HCL"},
		{rule + "\"length\" = 20\n", "twice"},
		{rule + "size = 20\n", "line 6: only \"length\""},
		{rule + "rule \"dictionary\" {}\n", "line 6: only \"length\""},
		{rule + "rule {}\n", "only \"length\""},
		{rule + "rule \"charset\" \"x\" {}\n", "only \"length\""},
		{rule + "rule \"charset\" {}\n", "charset must be"},
		{rule + "rule \"charset\" { charset = \"\" }\n", "charset must be"},
		{rule + "rule \"charset\" { charset = 7 }\n", "charset must be"},
		{rule + "rule \"charset\" { charset = [\"a\"] }\n", "charset must be"},
		{rule + "rule \"charset\" { charset = \"a\" charset = \"b\" }\n", "HCL"},
		{rule + "rule \"charset\" {\n charset = \"a\"\n charset = \"b\"\n}\n", "HCL"},
		{rule + "rule \"charset\" {\n charset = \"a\"\n \"charset\" = \"b\"\n}\n", "twice"},
		{rule + "rule \"charset\" {\n charset = \"a\"\n min_chars = 1\n}\n", "min-chars"},
		{rule + "rule \"charset\" {\n charset = \"a\"\n min-chars = -1\n}\n", "min-chars must be"},
		{rule + "rule \"charset\" {\n charset = \"a\"\n min-chars = \"1\"\n}\n", "min-chars must be"},
		{rule + "rule \"charset\" = \"a\"\n", "HCL"},
		{hcl(20, "ab\n", 1), "printed"},
		{hcl(20, lower, 21), "line 2: min-chars is greater than length"},
		{hcl(20, lower, 11, upper, 10), "ask for 21 characters"},
		{hcl(4, lower+"1", 4, lower+"2", 4, "1", 1, "2", 1), "cannot be fulfilled"},
		{hcl(20, lower, 2, digits, 18), "too rarely"},
		{strings.Repeat(hcl(20, lower, 0)[12:], 33) + "length = 20\n", "more than 32 rules"},
		{"length = [[[[[1]]]]]", "nested deeper"},
		{strings.Repeat("{", 8000), "nested deeper"},
		{"length = 20 #" + strings.Repeat("x", 8<<10), "longer than 8192"},
		{"length = 20 # \xff", "UTF-8"},
		{"length = 20 # \x00", "UTF-8"},
		{"length = ", "HCL"},
		{rule + "length", "HCL"},
		{rule + "rule \"charset\"", "HCL"},
		{rule + "# fine\nlength =", "HCL"},
		{"}", "HCL"},
		{`{"length": 20}`, "HCL"},
		{base64.StdEncoding.EncodeToString([]byte("length = 20")), "no rule"},
	} {
		if _, err := passpolicy.Parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%.60q) = %v, want it to say %q", tt.text, err, tt.want)
		}
	}
}

// FuzzParse: what is accepted makes passwords of the length it says.
func FuzzParse(f *testing.F) {
	f.Add(hcl(20, lower, 1, digits, 2))
	f.Add("length = 4\r\nrule \"charset\" { charset = \"äö\" }")
	f.Add(base64.StdEncoding.EncodeToString([]byte(hcl(8, digits, 1))))
	f.Add("length = <<A\nA\n")
	f.Add("rule \"charset\" { charset = \"${a}\" }")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := passpolicy.Parse(text)
		if err != nil {
			return
		}
		password, err := p.Generate(t.Context())
		if n := utf8.RuneCountInString(password); err != nil || n < 4 || n > 100 {
			t.Errorf("Parse(%q) makes a password of %d characters, %v", text, n, err)
		}
	})
}

// sys is an engine with nothing but the password policies.
type sys struct{ router *engines.Router }

func (s sys) Router() *engines.Router { return s.router }

// newMount returns the paths as the server mounts them, and the store behind them.
func newMount(t testing.TB) (*enginetest.Mount, *passpolicy.Store) {
	mem := new(storage.Memory)
	s := passpolicy.NewStore(mem)
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) {
		r := engines.NewRouter()
		passpolicy.Routes(r, s)
		return sys{r}, nil
	}, enginetest.Options{Type: "system", Path: "sys/"})
	m.Memory = mem
	return m, s
}

func body(policy string) map[string]any { return map[string]any{"policy": policy} }

func TestRoutes(t *testing.T) {
	m, s := newMount(t)
	m.Fails(engines.KindNotFound, engines.List, "policies/password", nil)
	if m.Exists("policies/password/db") {
		t.Error("the policy exists before it is written")
	}
	text := hcl(20, lower, 1)
	if resp := m.Must(engines.Update, "policies/password/db", body(text)); resp != nil {
		t.Errorf("write answers %+v", resp)
	}
	for _, padding := range []string{"", " ", "  "} { // as HCL, some would be a text that is cut off
		name := fmt.Sprint("policies/password/padding", len(padding))
		m.Must(engines.Update, name, body(base64.StdEncoding.EncodeToString([]byte(text+padding))))
		if got := m.Data(m.Must(engines.Read, name, nil))["policy"]; got != text+padding {
			t.Errorf("read of a policy written in base64 = %q", got)
		}
		m.Must(engines.Delete, name, nil)
	}
	m.Must(engines.Update, "policies/password/Web.1", body("# comment\n"+text+"# comment"))
	if !m.Exists("policies/password/db") {
		t.Error("the policy does not exist after it was written")
	}
	if got := m.Data(m.Must(engines.Read, "policies/password/db", nil)); !reflect.DeepEqual(got, map[string]any{"policy": text}) {
		t.Errorf("read = %v", got)
	}
	if got := m.Data(m.Must(engines.List, "policies/password/", nil))["keys"]; !reflect.DeepEqual(got, []any{"Web.1", "db"}) {
		t.Errorf("list = %v", got)
	}
	first := m.Data(m.Must(engines.Read, "policies/password/db/generate", nil))["password"].(string)
	second, err := s.Generate(t.Context(), "root", "db")
	if err != nil || len(first) != 20 || len(second) != 20 || first == second {
		t.Errorf("two passwords of %d and %d characters, the same: %v, %v", len(first), len(second), first == second, err)
	}
	if _, err := m.Memory.Get(t.Context(), "s/sys/root/password-policies/db"); err != nil {
		t.Errorf("the policy is not where it belongs: %v", err)
	}
	m.Must(engines.Delete, "policies/password/db", nil)
	m.Must(engines.Delete, "policies/password/db", nil)
	for _, path := range []string{"policies/password/db", "policies/password/db/generate"} {
		if text := m.Fails(engines.KindNotFound, engines.Read, path, nil); text != "" {
			t.Errorf("%s: a missing policy is explained: %q", path, text)
		}
	}
	if _, err := s.Generate(t.Context(), "root", "db"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Generate by a missing policy: %v", err)
	}
	for path, policy := range map[string]string{"policies/password/db": "length = 3", "policies/password/a b": text, "policies/password/" + strings.Repeat("a", 129): text} {
		m.Fails(engines.KindInvalid, engines.Update, path, body(policy))
	}
}

func TestNamespaces(t *testing.T) {
	m, s := newMount(t)
	m.Must(engines.Update, "policies/password/a", body(hcl(20, lower, 1)))
	m.Mount.NamespaceID = "ns1"
	m.Fails(engines.KindNotFound, engines.Read, "policies/password/a", nil)
	m.Must(engines.Update, "policies/password/a", body(hcl(10, lower, 1)))
	for ns, length := range map[string]int{"root": 20, "ns1": 10} {
		if password, err := s.Generate(t.Context(), ns, "a"); err != nil || len(password) != length {
			t.Errorf("a password in %s has %d characters, %v, want %d", ns, len(password), err, length)
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	m, s := newMount(t)
	for _, r := range []map[string]any{{"format": 2, "text": hcl(20, lower, 1)}, {"format": 1, "text": "length = 1"}} {
		value, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "s/sys/root/password-policies/a", Value: value}}}); err != nil {
			t.Fatal(err)
		}
		if password, err := s.Generate(t.Context(), "root", "a"); err == nil {
			t.Errorf("the record %v makes a password of %d characters", r["format"], len(password))
		}
	}
}

func TestHostile(t *testing.T) {
	m, _ := newMount(t)
	m.Must(engines.Update, "policies/password/x", body(hcl(20, lower, 1)))
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}
