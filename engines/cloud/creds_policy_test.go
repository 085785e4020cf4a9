package cloud

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/role"
)

func TestIdentityTemplates(t *testing.T) {
	r := newRig(t, nil)
	one := r.aws.AddRole(awstest.Role{Name: "one"})
	own := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"arn:aws:s3:::b/{{identity.entity.name}}/*"}]}`
	r.role("tpl", fields{
		"credential_type": role.AssumedRole, "role_arns": one, "policy_document": own,
		"session_tags": "who={{identity.entity.name}}", "session_name": "of-{{ identity.entity.name }}",
	})
	r.aws.Forget()
	r.wantSession(r.Must(engines.Read, "creds/tpl", nil), time.Hour, "arn:aws:sts::"+r.aws.ID+":assumed-role/one/of-bob")
	p := r.aws.Calls()[0].Params
	if !strings.Contains(p["Policy"], `"arn:aws:s3:::b/bob/*"`) || p["Tags.member.1.Value"] != "bob" {
		t.Errorf("asked for %v", p)
	}
	r.role("wild", fields{"credential_type": role.IAMUser, "policy_document": strings.ReplaceAll(own, "entity.name", "entity.metadata.wild")})
	r.role("gone", fields{"credential_type": role.IAMUser, "policy_document": strings.ReplaceAll(own, "entity.name", "entity.metadata.gone")})
	for _, name := range []string{"wild", "gone"} {
		if text := r.Fails(engines.KindInvalid, engines.Read, "creds/"+name, nil); !strings.Contains(text, "identity.entity.metadata."+name) {
			t.Error(text)
		}
	}
	r.Caller.Identity = nil
	r.Fails(engines.KindInvalid, engines.Read, "creds/tpl", nil)
	r.nothingLeft("templates without a value")
}

// TestGroupPoliciesAreCombined: for assumed_role and federation_token, the group policies are combined with policy_document
// and policy_arns in the cloud call.
func TestGroupPoliciesAreCombined(t *testing.T) {
	r := newRig(t, nil)
	inline := func(action string) string {
		return `{"Version":"2012-10-17","Statement":{"Sid":"A","Effect":"Allow","Action":"` + action + `","Resource":"*"}}`
	}
	r.aws.AddGroup(awstest.Group{Name: "devs", Policies: []string{somePolicies}, Inline: map[string]string{"a": inline("sqs:*"), "b": inline("sns:*")}})
	r.aws.AddGroup(awstest.Group{Name: "more", Policies: []string{somePolicies}})
	r.aws.AddGroup(awstest.Group{Name: "bare"})
	one := r.aws.AddRole(awstest.Role{Name: "one"})
	role := func(groups string) fields {
		return fields{"credential_type": role.AssumedRole, "role_arns": one, "iam_groups": groups}
	}
	both := role("devs,more")
	both["policy_document"] = somePolicy
	r.role("both", both)
	r.role("bare", role("bare"))
	r.role("none", role("none"))

	r.aws.Forget()
	r.Must(engines.Read, "creds/both", nil)
	calls := r.aws.Calls()
	p := calls[len(calls)-1].Params
	var sent struct {
		Version   string
		Statement []struct{ Sid, Action string }
	}
	if err := json.Unmarshal([]byte(p["Policy"]), &sent); err != nil {
		t.Fatal(err)
	}
	if len(sent.Statement) != 3 || sent.Version != newestVersion || sent.Statement[0].Action != "s3:GetObject" || sent.Statement[1].Sid != "" {
		t.Errorf("asked for %s", p["Policy"])
	}
	if _, twice := p["PolicyArns.member.2.arn"]; twice || p["PolicyArns.member.1.arn"] != somePolicies {
		t.Errorf("asked for %v", p)
	}
	if text := r.Fails(engines.KindInvalid, engines.Read, "creds/bare", nil); !strings.Contains(text, "no policies") {
		t.Error(text)
	}
	if text := r.Fails(engines.KindInvalid, engines.Read, "creds/none", nil); !strings.Contains(text, "NoSuchEntity") {
		t.Error(text)
	}
	r.aws.AddGroup(awstest.Group{Name: "long", Inline: map[string]string{"a": inline(strings.Repeat("x", 1000)), "b": inline(strings.Repeat("y", 1000))}})
	r.role("long", role("long"))
	if text := r.Fails(engines.KindInvalid, engines.Read, "creds/long", nil); !strings.Contains(text, "2048") {
		t.Error(text)
	}
}

func TestMerge(t *testing.T) {
	const statement = `{"Effect":"Allow","Action":"a&b:*","Resource":"${x}"}`
	old, now := `{"Version":"2008-10-17","Statement":`, `{"Version":"2012-10-17","Statement":`
	tests := []struct {
		name string
		in   []string
		want string // "": refused
	}{
		{"one, as a list", []string{now + "[" + statement + "]}"}, now + `[{"Action":"a&b:*","Effect":"Allow","Resource":"${x}"}]}`},
		{"two", []string{now + statement + "}", now + "[{}]}"}, now + `[{"Action":"a&b:*","Effect":"Allow","Resource":"${x}"},{}]}`},
		{"without a version", []string{`{"Statement":{}}`, `{"Statement":{}}`}, `{"Statement":[{},{}]}`},
		{"two versions", []string{old + "{}}", now + statement + "}"}, now + `[{},{"Action":"a&b:*","Effect":"Allow","Resource":"${x}"}]}`},
		{"two versions that mean something else", []string{old + statement + "}", now + "{}}"}, ""},
		{"no JSON", []string{"x"}, ""},
		{"no statements", []string{`{"Version":"2012-10-17"}`}, ""},
		{"a null statement", []string{`{"Statement":[null]}`}, ""},
		{"a text", []string{`{"Statement":"x"}`}, ""},
	}
	for _, tt := range tests {
		got, err := merge(tt.in)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
	}
}
