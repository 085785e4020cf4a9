package username

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/nametemplate"
)

// fixed is the time of tests: 1700000000.
var fixed = time.Unix(1_700_000_000, 0)

func TestDefaultUsernameTemplate(t *testing.T) {
	tests := []struct {
		name             string
		kind             string
		display, rolname string
		want             string
	}{
		{"federated user", STS, "ldap-bob", "deploy", `^vault-1700000000-[A-Za-z0-9]{15}$`},
		{"user", IAM, "ldap-bob", "deploy", `^vault-ldap-bob-deploy-1700000000-[A-Za-z0-9]{20}$`},
		{"user with long names", IAM, strings.Repeat("d", 40), strings.Repeat("r", 40), `^vault-d{40}-r-1700000000-[A-Za-z0-9]{4}$`},
		{"user without a display name", IAM, "", "deploy", `^vault--deploy-1700000000-[A-Za-z0-9]{20}$`},
		{"user with other characters", IAM, "bob smith/é", "a:b", `^vault-bob_smith__-a_b-1700000000-[A-Za-z0-9]{20}$`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := render("", nameInput{Type: tt.kind, DisplayName: tt.display, PolicyName: tt.rolname}, fixed)
			if err != nil || !regexp.MustCompile(tt.want).MatchString(got) {
				t.Errorf("name = %q, %v, want a match of %s", got, err, tt.want)
			}
			if problem := checkName(tt.kind, got); problem != "" {
				t.Error(problem)
			}
		})
	}
}

func TestDefaultUsernamesDiffer(t *testing.T) {
	a, errA := New("", IAM, "d", "r")
	b, errB := New("", IAM, "d", "r")
	if errA != nil || errB != nil || a == b {
		t.Errorf("%q, %v and %q, %v: want two names", a, errA, b, errB)
	}
}

func TestUsernameTemplateFunctions(t *testing.T) {
	tests := []struct{ template, want string }{
		{`{{ .DisplayName }}`, "Bob Smith"},
		{`{{ .Type }}.{{ .PolicyName }}`, "IAM.deploy"},
		{`{{ truncate 3 .PolicyName }}`, "dep"},
		{`{{ .PolicyName | truncate 100 }}`, "deploy"},
		{`{{ truncate 2 "äöü" }}x`, "__x"},
		{`{{ truncate_sha256 9 "0123456789" }}`, "0" + "15e2b0d3"},
		{`{{ truncate_sha256 10 "0123456789" }}`, "0123456789"},
		{`{{ uppercase .PolicyName }}{{ lowercase .Type }}`, "DEPLOYiam"},
		{`{{ replace "o" "0" .DisplayName }}`, "B0b Smith"},
		{`{{ sha256 "abc" }}`, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{`{{ base64 "a?>" }}`, "YT8+"},
		{`{{ unix_time }}.{{ unix_time_millis }}`, "1700000000.1700000000000"},
		{`{{ timestamp "2006-01-02T15.04" }}`, "2023-11-14T22.13"},
		{`{{ printf "%s-%05d-%.2s-%v%%" .Type 7 "abc" true }}`, "IAM-00007-ab-true_"},
		{`{{ print "a" "b" }}`, "ab"},
		{`{{ if eq .Type "STS" }}s{{ else if .DisplayName }}i{{ end }}`, "i"},
		{`{{ $d := .DisplayName }}{{ with .PolicyName }}{{ . }}{{ $d }}{{ $.Type }}{{ end }}`, "deployBob SmithIAM"},
		{`{{ and (len .Type) (not (lt 1 2)) }}`, "false"},
		{"{{- /* a comment */ -}}\n  plain=+,.@_-\n", "plain=+,.@_-"},
	}
	in := nameInput{Type: IAM, DisplayName: "Bob Smith", PolicyName: "deploy"}
	for _, tt := range tests {
		got, err := render(tt.template, in, fixed)
		if want := strings.ReplaceAll(tt.want, " ", "_"); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", tt.template, got, err, want)
		}
	}
	for template, want := range map[string]string{
		`{{ random 7 }}`: `^[A-Za-z0-9]{7}$`,
		`{{ uuid }}`:     `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
	} {
		if got, err := render(template, in, fixed); err != nil || !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s = %q, %v, want a match of %s", template, got, err, want)
		}
	}
}

// What does not come to an end soon, or to nothing sensible, is refused when it is written.
func TestUsernameTemplateRefuses(t *testing.T) {
	double := `{{ $x := "0123456789abcdef" }}` + strings.Repeat(`{{ $x = print $x $x }}`, 100)
	tests := []struct{ name, template, want string }{
		{"not closed", `{{ .DisplayName`, "unclosed action"},
		{"unknown function", `{{ rand 3 }}`, `function "rand" not defined`},
		{"unknown field", `{{ .Displayname }}`, "there is no .Displayname: there are .Type, .DisplayName and .PolicyName"},
		{"unknown field where nothing runs", `a{{ if false }}{{ .Secret }}{{ end }}`, "there is no .Secret"},
		{"field of a field", `{{ .Type.X }}`, "there is no .Type.X"},
		{"field of a variable", `{{ $.X }}`, "there is no .X"},
		{"field of a result", `{{ (print "a").X }}`, "cannot be used here"},
		{"loop", `{{ range .Type }}x{{ end }}`, "loops (range) cannot be used here"},
		{"loop in a branch", `{{ if true }}a{{ else }}{{ range 1000000000 }}x{{ end }}{{ end }}`, "loops (range)"},
		{"loop in with", `{{ with 1 }}{{ range 3 }}x{{ end }}{{ end }}`, "loops (range)"},
		{"define", `{{ define "a" }}x{{ end }}b`, "templates in templates"},
		{"block", `{{ block "a" . }}x{{ end }}`, "templates in templates"},
		{"recursion", `{{ template "" . }}`, "templates in templates"},
		{"other builtin", `{{ html .Type }}`, `function "html" cannot be used here`},
		{"call", `{{ call .Type }}`, `function "call" cannot be used here`},
		{"slice in an argument", `{{ print (slice .Type 1) }}`, `function "slice" cannot be used here`},
		{"wide printf", `{{ printf "%1000000000d" 1 }}`, "widths of two digits"},
		{"printf of a width argument", `{{ printf "%*d" 1000000000 1 }}`, "widths of two digits"},
		{"printf of an index", `{{ printf "%[1]s" "a" }}`, "widths of two digits"},
		{"doubling", double, "makes more than 4096 bytes"},
		{"replacing with more", `{{ $x := printf "%99s" "" }}{{ replace " " $x $x }}`, "makes more than 4096 bytes"},
		{"much output", `{{ $x := base64 (printf "%99s%99s%99s%99s%99s" "" "" "" "" "") }}` + strings.Repeat(`{{ $x }}`, 20), "makes more than 4096 bytes"},
		{"long", strings.Repeat("x", 4097), "longer than 4096 bytes"},
		{"random without a number", `{{ random }}`, "wrong number of args"},
		{"random of nothing", `{{ random 0 }}`, "takes 1 to 256"},
		{"random of much", `{{ random 257 }}`, "takes 1 to 256"},
		{"truncate to nothing", `{{ truncate 0 "a" }}`, "at least 1"},
		{"truncate of a negative", `{{ truncate -1 "a" }}`, "at least 1"},
		{"truncate_sha256 to the hash", `{{ truncate_sha256 8 "a" }}`, "at least 9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			problem, _ := Check(tt.template)
			if !strings.Contains(problem, tt.want) {
				t.Errorf("Check: %q, want %q in it", problem, tt.want)
			}
			if len(problem) > 310 || strings.HasPrefix(problem, "template:") {
				t.Errorf("Check: %q is not for people", problem)
			}
		})
	}
}

func TestUsernameTemplateWarnings(t *testing.T) {
	tests := []struct {
		name, template string
		want           []string
	}{
		{"the default", DefaultTemplate, nil},
		{"too long for STS", `{{ random 40 }}`, []string{"made a name of 40 characters for STS, which allows 32"}},
		{"too long for both", `{{ random 65 }}`, []string{"65 characters for IAM, which allows 64", "65 characters for STS, which allows 32"}},
		{"nothing for STS", `{{ if eq .Type "IAM" }}{{ random 20 }}{{ end }}`, []string{"0 characters for STS, which wants 2"}},
		{"always the same", `{{ if eq .Type "IAM" }}bob{{ else }}{{ uuid | truncate 30 }}{{ end }}`, []string{"the same name again for IAM"}},
		{"not shortened", `{{ if eq .Type "STS" }}{{ random 20 }}{{ else }}{{ .DisplayName }}{{ random 20 }}{{ end }}`, []string{"more than 64 characters for IAM when the display name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			problem, warnings := Check(tt.template)
			if problem != "" || len(warnings) != len(tt.want) {
				t.Fatalf("Check: problem %q, warnings %q, want %d", problem, warnings, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(warnings[i], want) {
					t.Errorf("warning %q, want %q in it", warnings[i], want)
				}
			}
		})
	}
}

// SPEC 7: "Generated username exceeds 64 characters (IAM) or 32 characters (STS): 500".
func TestGeneratedUsernameExceedsLimit(t *testing.T) {
	tests := []struct {
		name, template, kind string
		want                 string // "" is a good name
	}{
		{"IAM of 64 characters", `{{ random 64 }}`, IAM, ""},
		{"IAM exceeds 64 characters", `{{ random 65 }}`, IAM, "made a name of 65 characters for IAM, which allows 64"},
		{"STS of 32 characters", `{{ random 32 }}`, STS, ""},
		{"STS exceeds 32 characters", `{{ random 33 }}`, STS, "made a name of 33 characters for STS, which allows 32"},
		{"IAM of long display names", `{{ .DisplayName }}{{ random 20 }}`, IAM, "made a name of 65 characters for IAM, which allows 64"},
		{"one character", `x`, STS, "made a name of 1 characters for STS, which wants 2 at least"},
		{"none", ` {{ if false }}x{{ end }} `, IAM, "made a name of 0 characters for IAM"},
		{"a branch that fails", `{{ if eq .Type "STS" }}a{{ random 0 }}{{ end }}`, STS, "takes 1 to 256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := New(tt.template, tt.kind, strings.Repeat("d", 45), "r")
			if tt.want == "" {
				if err != nil || len(got) != maxNameChars[tt.kind] {
					t.Errorf("username = %q, %v", got, err)
				}
				return
			}
			var e *engines.Error
			if !errors.As(err, &e) || e.Kind != engines.KindFailed || !strings.Contains(e.Detail, tt.want) || got != "" {
				t.Errorf("username = %q, %v, want an internal error with %q", got, err, tt.want)
			}
		})
	}
}

// Characters outside letters, digits and +=,.@_- become _.
func TestUsernameCharacters(t *testing.T) {
	var in, want strings.Builder
	for c := rune(0x21); c < 0x250; c++ {
		in.WriteRune(c)
		if c < 0x7f && regexp.MustCompile(`[A-Za-z0-9+=,.@_-]`).MatchString(string(c)) {
			want.WriteRune(c)
		} else {
			want.WriteByte('_')
		}
	}
	got, err := render(`{{ .DisplayName }}`, nameInput{DisplayName: in.String()}, fixed)
	if err != nil || got != want.String() {
		t.Errorf("name = %q, %v, want %q", got, err, want.String())
	}
	if got, err := render(`a{{ .DisplayName }}b`, nameInput{DisplayName: "\xff\n\x00"}, fixed); err != nil || got != "a___b" {
		t.Errorf("name = %q, %v", got, err)
	}
}

func FuzzUsernameTemplate(f *testing.F) {
	for _, seed := range []string{
		"", DefaultTemplate, `{{ .DisplayName }}-{{ random 8 }}`, `{{ range 3 }}{{ end }}`, `{{ template "" . }}`,
		`{{ $x := print 1 2 }}{{ $x | replace "1" "aa" | truncate_sha256 9 }}`, `{{ if and (len .Type) nil }}{{ else with 1.5 }}{{ . }}{{ end }}`,
	} {
		f.Add(seed, "display", "role")
	}
	f.Fuzz(func(t *testing.T, template, display, role string) {
		for _, kind := range []string{IAM, STS} {
			name, err := render(template, nameInput{Type: kind, DisplayName: display, PolicyName: role}, fixed)
			if err != nil && name != "" {
				t.Errorf("%q with an error", name)
			}
			if len(name) > nametemplate.MaxBytes || strings.ContainsFunc(name, func(c rune) bool { return nameChar(c) != c }) {
				t.Errorf("%q is not a name", name)
			}
		}
	})
}
