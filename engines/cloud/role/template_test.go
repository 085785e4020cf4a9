package role

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

func TestFill(t *testing.T) {
	upper := func(name string) (string, error) {
		if name == "identity.none" {
			return "", errors.New("nothing")
		}
		return strings.ToUpper(name), nil
	}
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{"}} alone}}", "}} alone}}"},
		{`{"a":{"b":"{{identity.x}}"}}`, `{"a":{"b":"IDENTITY.X"}}`},
		{"{{ identity.a b }}-{{identity.c}}", "IDENTITY.A B-IDENTITY.C"},
		{"{{identity.a", ""},
		{"{{}}", ""},
		{"{{name}}", ""},
		{`{{identity."a}}`, ""},
		{"{{identity.{{identity.a}}}}", ""},
		{"{{identity.none}}", ""},
	} {
		got, err := fill(tt.in, upper)
		if got != tt.want || (err == nil) != (tt.want != "" || tt.in == "") {
			t.Errorf("fill(%q) = %q, error %v, want %q", tt.in, got, err, tt.want)
		}
	}
}

func templated() *Role {
	return &Role{
		Types: []string{AssumedRole}, RoleARNs: engines.StringList{devRole},
		PolicyDocument: `{"Resource":"arn:aws:s3:::home/{{identity.entity.name}}/*"}`,
		SessionTags:    map[string]string{"who": "{{identity.entity.name}}", "team": "a-{{identity.entity.metadata.team}}"},
		SessionName:    "{{identity.entity.name}}",
	}
}

func caller(values map[string]string) engines.Caller {
	return engines.Caller{Identity: func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}}
}

func TestTemplatesStandForTheCaller(t *testing.T) {
	r := templated()
	f, err := r.Filled(caller(map[string]string{"identity.entity.name": "al:ice", "identity.entity.metadata.team": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	if f.PolicyDocument != `{"Resource":"arn:aws:s3:::home/al:ice/*"}` || f.SessionTags["who"] != "al:ice" || f.SessionTags["team"] != "a-x" {
		t.Errorf("filled in: %+v", f)
	}
	if g, err := f.Grant(Wish{Path: "sts"}, 0); err != nil || g.SessionName != "al_ice" {
		t.Errorf("the session is %q, error %v", g.SessionName, err)
	}
	if r.SessionTags["who"] != "{{identity.entity.name}}" {
		t.Error("the role itself was changed")
	}
}

func TestTemplatesInPoliciesAreTexts(t *testing.T) {
	r := templated()
	r.SessionTags, r.SessionName = nil, ""
	for _, name := range []string{`a","Effect":"Allow\`, "Łukasz", "\U0001F600\t}}"} {
		f, err := r.Filled(caller(map[string]string{"identity.entity.name": name}))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(f.PolicyDocument), &got); err != nil || len(got) != 1 || got["Resource"] != "arn:aws:s3:::home/"+name+"/*" {
			t.Errorf("the policy is %s, error %v, want one text with %q", f.PolicyDocument, err, name)
		}
	}
}

func TestCallersThatTemplatesRefuse(t *testing.T) {
	names := func(name, team string) map[string]string {
		return map[string]string{"identity.entity.name": name, "identity.entity.metadata.team": team}
	}
	for _, tt := range []struct {
		name   string
		caller engines.Caller
		fields string
	}{
		{"nobody", engines.Caller{}, "policy_document session_name session_tags"},
		{"without a team", caller(map[string]string{"identity.entity.name": "alice"}), "session_tags"},
		{"any number of characters", caller(names("a*", "x")), "policy_document session_tags"},
		{"any character", caller(names("a?", "x")), "policy_document session_tags"},
		{"a variable", caller(names("${aws:username}", "x")), "policy_document session_tags"},
		{"a long policy", caller(names(strings.Repeat("a", 2048), "x")), "policy_document session_tags"},
		{"a tag that is no tag", caller(names("alice", "<")), "session_tags"},
		{"a template", caller(names("{{", "x")), "policy_document session_tags"},
	} {
		_, err := templated().Filled(tt.caller)
		if !isInvalid(err) {
			t.Errorf("%s: error %v, want one of KindInvalid", tt.name, err)
			continue
		}
		_, text, _ := strings.Cut(err.Error(), ": ")
		if got := strings.Join(fieldsOf(text), " "); got != tt.fields {
			t.Errorf("%s: %v names %v, want %v", tt.name, err, got, tt.fields)
		}
	}
}

func TestRolesWithInvalidDataGiveNothing(t *testing.T) {
	for _, r := range []*Role{{InvalidData: "x"}, {Types: []string{AssumedRole}}, {}} {
		if _, err := r.Filled(engines.Caller{}); !isInvalid(err) || !strings.Contains(err.Error(), "invalid_data") {
			t.Errorf("%+v: error %v, want one about invalid_data", r, err)
		}
	}
}
