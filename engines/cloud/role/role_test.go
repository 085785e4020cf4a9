package role

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

const (
	devRole        = "arn:aws:iam::123456789012:role/dev"
	opsRole        = "arn:aws:iam::123456789012:role/teams/ops"
	readOnly       = "arn:aws:iam::aws:policy/ReadOnlyAccess"
	ownPolicy      = "arn:aws:iam::123456789012:policy/team/limits"
	document       = `{"Version":"2012-10-17","Statement":[]}`
	spacedDocument = "{ \"Version\": \"2012-10-17\",\n \"Statement\": [ ] }"
)

// only is an engine with the paths of roles and no others.
type only struct{ router *engines.Router }

func (o only) Router() *engines.Router { return o.router }

func rolesMount(t testing.TB) *enginetest.Mount {
	t.Helper()
	build := func(engines.Mount) (engines.Engine, error) {
		o := only{engines.NewRouter()}
		Routes(o.router)
		return o, nil
	}
	return enginetest.New(t, build, enginetest.Options{Type: "aws", Path: "aws/"})
}

// wantRole compares fields that a read of the role answers with JSON text; null is a field that is not there.
func wantRole(t *testing.T, m *enginetest.Mount, name, want string) {
	t.Helper()
	data := m.Data(m.Must(engines.Read, "roles/"+name, nil))
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(want), &fields); err != nil {
		t.Fatal(err)
	}
	for field, text := range fields {
		got, err := json.Marshal(data[field])
		if err != nil {
			t.Fatal(err)
		}
		if _, there := data[field]; there == (string(text) == "null") || string(got) != string(text) {
			t.Errorf("%s = %s, want %s", field, got, text)
		}
	}
}

func TestRolesAreReadListedAndDeleted(t *testing.T) {
	m := rolesMount(t)
	m.Fails(engines.KindNotFound, engines.List, "roles", nil)
	if m.Exists("roles/dev") {
		t.Error("the role exists before it is written")
	}
	for _, name := range []string{"dev", "Dev", "_a.b-c@d", "b"} {
		if resp := m.Must(engines.Update, "roles/"+name, `{"credential_type":"iam_user","policy_arns":"`+readOnly+`"}`); resp != nil {
			t.Errorf("%s: a write without anything odd answers %+v, want 204", name, resp)
		}
	}
	if !m.Exists("roles/dev") || m.Exists("roles/DEV") {
		t.Error("names of roles are compared as they are")
	}
	if got := m.Data(m.Must(engines.List, "roles/", nil))["keys"]; !reflect.DeepEqual(got, []any{"Dev", "_a.b-c@d", "b", "dev"}) {
		t.Errorf("list = %v", got)
	}
	if got := m.Data(m.Must(engines.List, "roles?after=Dev&limit=2", nil))["keys"]; !reflect.DeepEqual(got, []any{"_a.b-c@d", "b"}) {
		t.Errorf("a part of the list = %v", got)
	}
	if resp := m.Must(engines.Delete, "roles/dev", nil); resp != nil {
		t.Errorf("delete answers %+v, want 204", resp)
	}
	m.Fails(engines.KindNotFound, engines.Read, "roles/dev", nil)
	wantRole(t, m.Peer(), "Dev", `{"credential_type":"iam_user"}`)
}

func TestReadingARoleThatDoesNotExistIs404(t *testing.T) {
	if text := rolesMount(t).Fails(engines.KindNotFound, engines.Read, "roles/dev", nil); text != "" {
		t.Errorf("a missing role is explained: %q", text)
	}
}

func TestDeletingARoleThatDoesNotExistIs404(t *testing.T) {
	rolesMount(t).Fails(engines.KindNotFound, engines.Delete, "roles/dev", nil)
}

func TestRoleNames(t *testing.T) {
	m := rolesMount(t)
	for _, name := range []string{"-dev", "dev-", ".dev", "de v", "dév", "de+v", "\u212aelvin", strings.Repeat("a", 129)} {
		for _, op := range []engines.Operation{engines.Read, engines.Delete} {
			req := m.Request(op, "", nil)
			req.Path = "roles/" + name
			if _, err := m.Handle(t.Context(), req); err == nil || !strings.Contains(err.Error(), `field "name"`) {
				t.Errorf("%s %.20q: error %v, want one about the name", op, name, err)
			}
		}
	}
	m.Must(engines.Update, "roles/"+strings.Repeat("a", 128), `{"credential_type":"session_token"}`)
}

func TestRoleReadHasEveryField(t *testing.T) {
	m := rolesMount(t)
	m.Must(engines.Update, "roles/bare", `{"credential_type":"session_token"}`)
	want := map[string]any{
		"credential_type": "session_token", "credential_types": []any{"session_token"},
		"role_arns": []any{}, "assume_role_arns": []any{}, "policy_arns": []any{}, "iam_groups": []any{},
		"iam_tags": map[string]any{}, "session_tags": map[string]any{},
		"policy_document": "", "session_name": "", "external_id": "", "source_identity": "", "max_users": json.Number("0"), "user_path": "", "permissions_boundary_arn": "", "mfa_serial_number": "",
		"default_sts_ttl": json.Number("0"), "max_sts_ttl": json.Number("0"), "wait_until_valid": json.Number("0"),
	}
	if got := m.Data(m.Must(engines.Read, "roles/bare", nil)); !reflect.DeepEqual(got, want) {
		t.Errorf("read = %v, want %v", got, want)
	}

	m.Must(engines.Update, "roles/user", map[string]any{
		"credential_type": "iam_user", "policy_arns": readOnly + ", " + ownPolicy + "," + readOnly, "policy_document": spacedDocument,
		"iam_groups": []string{"a", "b"}, "iam_tags": []string{"team=x", "cost=a=b"}, "user_path": "/apps/", "permissions_boundary_arn": ownPolicy,
		"wait_until_valid": "30s", "assume_role_arns": []string{devRole, opsRole, devRole},
	})
	wantRole(t, m, "user", `{"credential_type":"iam_user","credential_types":["iam_user"],
		"policy_arns":["`+readOnly+`","`+ownPolicy+`"],"policy_document":"{\"Version\":\"2012-10-17\",\"Statement\":[]}",
		"iam_groups":["a","b"],"iam_tags":{"cost":"a=b","team":"x"},"user_path":"/apps/","permissions_boundary_arn":"`+ownPolicy+`",
		"wait_until_valid":30,"assume_role_arns":["`+devRole+`","`+opsRole+`","`+devRole+`"],"invalid_data":null}`)

	m.Must(engines.Update, "roles/session", map[string]any{
		"credential_type": "assumed_role", "role_arns": devRole + "," + opsRole, "external_id": "e/1", "default_sts_ttl": "30m", "max_sts_ttl": 7200,
		"session_tags": map[string]string{"who": "{{identity.entity.name}}"}, "session_name": "s-{{ identity.entity.id }}",
	})
	wantRole(t, m, "session", `{"role_arns":["`+devRole+`","`+opsRole+`"],"external_id":"e/1","default_sts_ttl":1800,"max_sts_ttl":7200,
		"session_tags":{"who":"{{identity.entity.name}}"},"session_name":"s-{{ identity.entity.id }}"}`)

	m.Must(engines.Update, "roles/mfa", `{"credential_type":"session_token","mfa_serial_number":"arn:aws:iam::123456789012:mfa/root","max_sts_ttl":"36h"}`)
	wantRole(t, m, "mfa", `{"mfa_serial_number":"arn:aws:iam::123456789012:mfa/root","max_sts_ttl":129600}`)
}

func TestTagsComeAsListOrMapOrOneText(t *testing.T) {
	m := rolesMount(t)
	for _, tags := range []string{`["a=b"]`, `{"a":"b"}`, `"a=b"`} {
		m.Must(engines.Update, "roles/dev", `{"credential_type":"iam_user","policy_arns":"`+readOnly+`","iam_tags":`+tags+`}`)
		wantRole(t, m, "dev", `{"iam_tags":{"a":"b"}}`)
	}
}

func TestWritesOfRolesKeepWhatTheyLeaveOut(t *testing.T) {
	m := rolesMount(t)
	m.Must(engines.Update, "roles/dev", `{"credential_type":"assumed_role","role_arns":"`+devRole+`","policy_arns":"`+readOnly+`","max_sts_ttl":3600,"external_id":"ext"}`)
	m.Must(engines.Update, "roles/dev", `{"default_sts_ttl":900}`)
	wantRole(t, m, "dev", `{"credential_type":"assumed_role","role_arns":["`+devRole+`"],"policy_arns":["`+readOnly+`"],"default_sts_ttl":900,"max_sts_ttl":3600,"external_id":"ext"}`)
	// Fields are emptied by an empty value, and by null as Terraform sends it for lists.
	m.Must(engines.Update, "roles/dev", `{"policy_arns":null,"max_sts_ttl":0,"external_id":""}`)
	wantRole(t, m, "dev", `{"credential_type":"assumed_role","role_arns":["`+devRole+`"],"policy_arns":[],"default_sts_ttl":900,"max_sts_ttl":0,"external_id":""}`)
}

func TestAnotherCredentialTypeChecksTheWholeRoleAgain(t *testing.T) {
	m := rolesMount(t)
	m.Must(engines.Update, "roles/dev", `{"credential_type":"assumed_role","role_arns":"`+devRole+`","default_sts_ttl":900}`)
	text := m.Fails(engines.KindInvalid, engines.Update, "roles/dev", `{"credential_type":"iam_user"}`)
	for _, field := range []string{"role_arns", "default_sts_ttl", "policy_document"} {
		if !strings.Contains(text, `field "`+field+`"`) {
			t.Errorf("%q does not name %s", text, field)
		}
	}
	m.Must(engines.Update, "roles/dev", `{"credential_type":"iam_user","role_arns":[],"default_sts_ttl":0,"policy_document":"{}"}`)
	wantRole(t, m, "dev", `{"credential_types":["iam_user"],"role_arns":[],"policy_document":"{}"}`)
}

// refusal is a role that is refused, and the fields that the refusal names, in any order.
type refusal struct {
	name   string
	body   string
	fields string // with blanks between them
}

func TestRefusedRoles(t *testing.T) {
	user := func(more string) string {
		return `{"credential_type":"iam_user","policy_arns":"` + readOnly + `",` + more + `}`
	}
	assumed := func(more string) string {
		return `{"credential_type":"assumed_role","role_arns":"` + devRole + `",` + more + `}`
	}
	federated := func(more string) string {
		return `{"credential_type":"federation_token","policy_document":"{}",` + more + `}`
	}
	session := func(more string) string { return `{"credential_type":"session_token",` + more + `}` }
	list := func(n int, element func(int) string) string {
		var elements []string
		for i := range n {
			elements = append(elements, element(i))
		}
		text, err := json.Marshal(elements)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text := func(s string) string {
		quoted, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(quoted)
	}
	arns := func(kind string) func(int) string {
		return func(i int) string { return fmt.Sprintf("arn:aws:iam::123456789012:%s/n%d", kind, i) }
	}
	groups := func(i int) string { return fmt.Sprint("g", i) }
	tags := func(i int) string { return fmt.Sprintf("k%d=v", i) }
	long := func(n int) string { return strings.Repeat("x", n) }

	tests := []refusal{
		{"credential_type is required", `{}`, "credential_type"},
		{"credential_type empty", `{"credential_type":""}`, "credential_type"},
		{"credential_type unknown", `{"credential_type":"other"}`, "credential_type"},
		{"credential_type in another case", `{"credential_type":"IAM_User","policy_arns":"` + readOnly + `"}`, "credential_type"},

		{"role_arns is required for assumed_role", `{"credential_type":"assumed_role"}`, "role_arns"},
		{"role_arns is prohibited for iam_user", user(`"role_arns":"` + devRole + `"`), "role_arns"},
		{"role_arns is prohibited for federation_token", federated(`"role_arns":"` + devRole + `"`), "role_arns"},
		{"role_arns is prohibited for session_token", session(`"role_arns":"` + devRole + `"`), "role_arns"},
		{"role_arns must be roles", assumed(`"role_arns":["` + devRole + `","` + readOnly + `"]`), "role_arns"},
		{"role_arns must be whole ARNs", assumed(`"role_arns":["dev"]`), "role_arns"},
		{"role_arns are of an account", assumed(`"role_arns":["arn:aws:iam::aws:role/dev"]`), "role_arns"},
		{"role_arns name nothing twice", assumed(`"role_arns":["` + devRole + ` ` + devRole + `"]`), "role_arns"},
		{"role_arns have a limit", assumed(`"role_arns":` + list(maxRoleARNs+1, arns("role"))), "role_arns"},
		{"assume_role_arns must be roles", assumed(`"assume_role_arns":"` + readOnly + `"`), "assume_role_arns"},
		{"assume_role_arns have a limit", assumed(`"assume_role_arns":` + list(maxAssumeRoleARNs+1, arns("role"))), "assume_role_arns"},
		{"assume_role_arns with federation_token", federated(`"assume_role_arns":"` + devRole + `"`), "assume_role_arns"},
		{"assume_role_arns with session_token", session(`"assume_role_arns":"` + devRole + `"`), "assume_role_arns"},

		{"iam_user needs policy_arns or policy_document", `{"credential_type":"iam_user"}`, "policy_document"},
		{"federation_token needs policy_arns or policy_document", `{"credential_type":"federation_token"}`, "policy_document"},
		{"iam_groups alone is not enough for iam_user", `{"credential_type":"iam_user","iam_groups":"a"}`, "policy_document"},
		{"iam_groups alone is not enough for federation_token", `{"credential_type":"federation_token","iam_groups":"a"}`, "policy_document"},
		{"policies are prohibited for session_token", session(`"policy_arns":"` + readOnly + `","policy_document":"{}","iam_groups":"a"`), "policy_arns policy_document iam_groups"},
		{"policy_arns must be policies", user(`"policy_arns":["` + devRole + `"]`), "policy_arns"},
		{"policy_arns have a limit for users", user(`"policy_arns":` + list(maxUserPolicies+1, arns("policy"))), "policy_arns"},
		{"policy_arns have a limit for sessions", assumed(`"policy_arns":` + list(MaxSessionPolicies+1, arns("policy"))), "policy_arns"},
		{"policy_document must be JSON", user(`"policy_document":"{\"a\":"`), "policy_document"},
		{"policy_document must be an object", user(`"policy_document":"[]"`), "policy_document"},
		{"policy_document must not be null", user(`"policy_document":"null"`), "policy_document"},
		{"policy_document has a limit", user(`"policy_document":` + text(`{"a":"`+long(MaxDocumentChars-7)+`"}`)), "policy_document"},
		{"policy_document with long templates", user(`"policy_document":` + text(`{"a":"{{identity.`+long(maxDocumentBytes)+`}}"}`)), "policy_document"},
		{"policy_document of other characters", user(`"policy_document":"{\"a\":\"\u0100\"}"`), "policy_document"},
		{"policy_document with a template of nothing", user(`"policy_document":"{\"a\":\"{{}}\"}"`), "policy_document"},
		{"iam_groups must be names", user(`"iam_groups":["a b"]`), "iam_groups"},
		{"iam_groups have a limit", user(`"iam_groups":` + list(maxGroups+1, groups)), "iam_groups"},

		{"iam_tags must be characters of tags", user(`"iam_tags":["a=<b>"]`), "iam_tags"},
		{"iam_tags hold no templates", user(`"iam_tags":["a={{identity.entity.name}}"]`), "iam_tags"},
		{"iam_tags must not begin with aws:", user(`"iam_tags":["AWS:a=b"]`), "iam_tags"},
		{"iam_tags have keys in one case", user(`"iam_tags":["team=b","Team=c"]`), "iam_tags"},
		{"iam_tags must not hold ours", user(`"iam_tags":["Coffer-Credential=b"]`), "iam_tags"},
		{"iam_tags have short keys", user(`"iam_tags":` + text(long(129)+"=b")), "iam_tags"},
		{"iam_tags have short values", user(`"iam_tags":` + text("a="+long(257))), "iam_tags"},
		{"iam_tags have a limit", user(`"iam_tags":` + list(MaxTags+1, tags)), "iam_tags"},
		{"iam_tags without =", user(`"iam_tags":["a"]`), "iam_tags"},
		{"session_tags with iam_user", user(`"session_tags":["a=b"]`), "session_tags"},
		{"session_tags with federation_token", federated(`"session_tags":["a=b"]`), "session_tags"},
		{"session_tags with an open template", assumed(`"session_tags":["a={{identity.entity.name"]`), "session_tags"},
		{"session_tags with a template of nothing known", assumed(`"session_tags":["a={{entity.name}}"]`), "session_tags"},
		{"session_tags around a template", assumed(`"session_tags":["a=<{{identity.entity.name}}>"]`), "session_tags"},
		{"session_name with iam_user", user(`"session_name":"abc"`), "session_name"},
		{"session_name of a character", assumed(`"session_name":"a"`), "session_name"},
		{"session_name of lines", assumed(`"session_name":"a\nb"`), "session_name"},
		{"session_name with an open template", assumed(`"session_name":"a{{"`), "session_name"},
		{"session_name has a limit", assumed(`"session_name":` + text(long(maxSessionName+1))), "session_name"},
		{"external_id with iam_user", user(`"external_id":"abc"`), "external_id"},
		{"external_id of a character", assumed(`"external_id":"a"`), "external_id"},
		{"external_id of other characters", assumed(`"external_id":"a b"`), "external_id"},
		{"external_id has a limit", assumed(`"external_id":` + text(long(maxExternalID+1))), "external_id"},

		{"default_sts_ttl is not valid for iam_user", user(`"default_sts_ttl":3600`), "default_sts_ttl"},
		{"max_sts_ttl is not valid for iam_user", user(`"max_sts_ttl":3600`), "max_sts_ttl"},
		{"default_sts_ttl greater than max_sts_ttl", assumed(`"default_sts_ttl":3601,"max_sts_ttl":3600`), "default_sts_ttl"},
		{"default_sts_ttl below the provider's", assumed(`"default_sts_ttl":899`), "default_sts_ttl"},
		{"max_sts_ttl below the provider's", federated(`"max_sts_ttl":899`), "max_sts_ttl"},
		{"max_sts_ttl above the provider's for assumed_role", assumed(`"max_sts_ttl":43201`), "max_sts_ttl"},
		{"max_sts_ttl above the provider's for federation_token", federated(`"max_sts_ttl":129601`), "max_sts_ttl"},
		{"max_sts_ttl above the provider's for session_token", session(`"max_sts_ttl":129601`), "max_sts_ttl"},
		{"max_sts_ttl above the provider's for roles through roles", assumed(`"assume_role_arns":"` + opsRole + `","max_sts_ttl":3601`), "max_sts_ttl"},

		{"user_path with assumed_role", assumed(`"user_path":"/"`), "user_path"},
		{"user_path with federation_token", federated(`"user_path":"/a/"`), "user_path"},
		{"user_path without / at the start", user(`"user_path":"a/"`), "user_path"},
		{"user_path without / at the end", user(`"user_path":"/a"`), "user_path"},
		{"user_path with a blank", user(`"user_path":"/a b/"`), "user_path"},
		{"user_path beyond ASCII", user(`"user_path":"/ä/"`), "user_path"},
		{"user_path has a limit", user(`"user_path":` + text("/"+long(511)+"/")), "user_path"},
		{"permissions_boundary_arn with assumed_role", assumed(`"permissions_boundary_arn":"` + readOnly + `"`), "permissions_boundary_arn"},
		{"permissions_boundary_arn must be a policy", user(`"permissions_boundary_arn":"` + devRole + `"`), "permissions_boundary_arn"},
		{"mfa_serial_number with assumed_role", assumed(`"mfa_serial_number":"GAHT12345678"`), "mfa_serial_number"},
		{"mfa_serial_number must be one", session(`"mfa_serial_number":"GAHT"`), "mfa_serial_number"},
		{"wait_until_valid with assumed_role", assumed(`"wait_until_valid":10`), "wait_until_valid"},
		{"wait_until_valid beyond a minute", user(`"wait_until_valid":61`), "wait_until_valid"},

		{
			"everything at once",
			`{"credential_type":"iam_user","role_arns":"x","policy_document":"x","iam_groups":"a b","iam_tags":"a=<","default_sts_ttl":7200,"max_sts_ttl":3600,
			"user_path":"x","permissions_boundary_arn":"x","external_id":"x","mfa_serial_number":"x","wait_until_valid":"2m","session_tags":"a={{","session_name":"x"}`,
			"role_arns policy_document iam_groups iam_tags default_sts_ttl max_sts_ttl user_path permissions_boundary_arn external_id mfa_serial_number wait_until_valid session_tags session_name",
		},
		{
			"everything at once with an unknown type",
			`{"credential_type":"x","role_arns":"x","policy_arns":"x","default_sts_ttl":7200,"max_sts_ttl":3600,"user_path":"x"}`,
			"credential_type role_arns policy_arns default_sts_ttl user_path",
		},

		{"policy is JSON", `{"policy":"` + readOnly + `"}`, "policy"},
		{"policy is an object", `{"policy":"[]"}`, "policy"},
		{"policy has a limit", `{"policy":` + text(`{"a":"`+long(MaxDocumentChars)+`"}`) + `}`, "policy"},
		{"arn is of a policy or role", `{"arn":"arn:aws:iam::123456789012:user/a"}`, "arn"},
		{"arn is an ARN", `{"arn":"{}"}`, "arn"},
		{"policy and arn", `{"policy":"{}","arn":"` + readOnly + `"}`, "arn"},
		{"policy mixed with credential_type", `{"policy":"{}","credential_type":"session_token"}`, "credential_type"},
		{"arn mixed with any current field", `{"arn":"` + readOnly + `","iam_groups":"a","max_sts_ttl":3600,"wait_until_valid":1}`, "iam_groups max_sts_ttl wait_until_valid"},
		{
			"legacy and current, everything at once", `{"policy":"x","arn":"x","credential_type":"x","user_path":"x"}`,
			"policy arn credential_type user_path",
		},
	}
	m := rolesMount(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := m.Fails(engines.KindInvalid, engines.Update, "roles/dev", tt.body)
			if got, want := fieldsOf(text), strings.Fields(tt.fields); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("%q names %v, want %v", text, got, want)
			}
			if strings.Contains(text, "xxx") || strings.Contains(text, "<") {
				t.Errorf("%q repeats a value", text)
			}
		})
	}
}

// fieldsOf returns the names of the fields that a message is about, each once.
func fieldsOf(text string) []string {
	fields := map[string]bool{}
	for part := range strings.SplitSeq(text, "; ") {
		if name, _, ok := strings.Cut(strings.TrimPrefix(part, `field "`), `": `); ok && name != part {
			fields[name] = true
		}
	}
	return slices.Sorted(maps.Keys(fields))
}

func TestRolesAtTheLimits(t *testing.T) {
	m := rolesMount(t)
	for name, body := range map[string]map[string]any{
		"user": {
			"credential_type": "iam_user", "policy_document": `{"a":"` + strings.Repeat("x", MaxDocumentChars-8) + `"}`,
			"user_path": "/" + strings.Repeat("x", 510) + "/", "wait_until_valid": "1m", "iam_tags": map[string]string{strings.Repeat("é", 128): strings.Repeat("é", 256), "empty": ""},
		},
		"root path":        {"credential_type": "iam_user", "policy_arns": ownPolicy, "user_path": "/"},
		"other partition":  {"credential_type": "assumed_role", "role_arns": "arn:aws-us-gov:iam::123456789012:role/a+b"},
		"policies as ARNs": {"credential_type": "federation_token", "policy_arns": "arn:aws-cn:iam::aws:policy/job-function/Billing"},
		"no policies":      {"credential_type": "assumed_role", "role_arns": []string{devRole}, "max_sts_ttl": "12h", "default_sts_ttl": "15m"},
		"groups":           {"credential_type": "assumed_role", "role_arns": []string{devRole}, "iam_groups": "a,b"},
		"federation":       {"credential_type": "federation_token", "policy_document": document, "max_sts_ttl": "36h"},
		"through roles":    {"credential_type": "assumed_role", "role_arns": []string{devRole}, "assume_role_arns": opsRole, "max_sts_ttl": "1h"},
		"nested document":  {"credential_type": "iam_user", "policy_document": `{"a":{"b":{"c":"{{identity.entity.name}}"}}}`},
		"zeros": {
			"credential_type": "iam_user", "policy_document": document, "role_arns": []string{}, "default_sts_ttl": 0, "max_sts_ttl": "0",
			"external_id": "", "session_tags": map[string]string{}, "policy": "", "arn": "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if resp := m.Must(engines.Update, "roles/"+strings.ReplaceAll(name, " ", "-"), body); resp != nil {
				t.Errorf("it answers %+v, want 204", resp)
			}
		})
	}
}

func TestTagsOfUsersAreAskedAboutElsewhere(t *testing.T) {
	m := rolesMount(t)
	resp := m.Must(engines.Update, "roles/dev", `{"credential_type":"session_token","iam_tags":"a=b"}`)
	if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "iam_tags") {
		t.Errorf("iam_tags without users answer %+v, want a warning", resp)
	}
}

func TestLegacyParametersMakeRoles(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"policy", `{"policy":" { } "}`, `{"credential_type":"iam_user,federation_token","credential_types":["iam_user","federation_token"],"policy_document":"{}","policy_arns":[],"role_arns":[]}`},
		{"ARN of a policy", `{"arn":"` + readOnly + `"}`, `{"credential_type":"iam_user","credential_types":["iam_user"],"policy_document":"","policy_arns":["` + readOnly + `"],"role_arns":[]}`},
		{"ARN of a role", `{"arn":"` + devRole + `"}`, `{"credential_type":"assumed_role","credential_types":["assumed_role"],"policy_document":"","policy_arns":[],"role_arns":["` + devRole + `"]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := rolesMount(t)
			m.Must(engines.Update, "roles/dev", `{"credential_type":"assumed_role","role_arns":"`+opsRole+`","max_sts_ttl":900}`)
			resp := m.Must(engines.Update, "roles/dev", tt.body)
			if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "backward compatibility") {
				t.Errorf("a legacy parameter answers %+v, want a warning", resp)
			}
			wantRole(t, m, "dev", tt.want)
			wantRole(t, m, "dev", `{"max_sts_ttl":0,"invalid_data":null}`)
		})
	}
}

func TestLegacyRolesBecomeCurrentOnesWithACredentialType(t *testing.T) {
	m := rolesMount(t)
	m.Must(engines.Update, "roles/dev", `{"policy":"{}"}`)
	if text := m.Fails(engines.KindInvalid, engines.Update, "roles/dev", `{"iam_groups":"a"}`); !strings.Contains(text, `field "credential_type"`) {
		t.Errorf("%q does not ask for a credential_type", text)
	}
	if resp := m.Must(engines.Update, "roles/dev", `{"credential_type":"iam_user","iam_groups":"a"}`); resp != nil {
		t.Errorf("the write answers %+v, want 204", resp)
	}
	wantRole(t, m, "dev", `{"credential_types":["iam_user"],"iam_groups":["a"],"policy_document":"{}"}`)
	m.Must(engines.Update, "roles/dev", `{"iam_groups":"b"}`)
}

func TestInvalidDataOfEarlierVersions(t *testing.T) {
	broken, err := json.Marshal(&Role{Format: 1, Types: []string{AssumedRole}, MaxSTSTTL: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, stored, want string }{
		{"neither policy nor ARN", "arn:aws:iam::123456789012:user/a", `{"credential_types":[],"invalid_data":"arn:aws:iam::123456789012:user/a"}`},
		{"JSON that is no policy", `[1]`, `{"credential_types":[],"invalid_data":"[1]"}`},
		{"nothing", ``, `{"invalid_data":"(nothing)"}`},
		{"bytes", "\xff", `{"invalid_data":"` + "\uFFFD" + `"}`},
		{"a role that is not valid any more", string(broken), `{"credential_types":["assumed_role"],
			"invalid_data":"field \"role_arns\": is required with the credential_type assumed_role; field \"max_sts_ttl\": must be between 15m0s and 12h0m0s, as the provider has it for this role"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := rolesMount(t)
			store(t, m, "role/dev", tt.stored)
			wantRole(t, m, "dev", tt.want)
			if !m.Exists("roles/dev") {
				t.Error("the role does not exist")
			}
			m.Fails(engines.KindInvalid, engines.Update, "roles/dev", `{"iam_groups":"a"}`)
			resp := m.Must(engines.Update, "roles/dev", `{"credential_type":"assumed_role","role_arns":"`+devRole+`","max_sts_ttl":900}`)
			if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "cleared") {
				t.Errorf("clearing it answers %+v, want a warning", resp)
			}
			wantRole(t, m, "dev", `{"credential_types":["assumed_role"],"invalid_data":null}`)
		})
	}
}

func TestRolesOfEarlierVersionsThatAreValid(t *testing.T) {
	m := rolesMount(t)
	store(t, m, "role/policy", "{ \"Statement\": [] }\n")
	store(t, m, "role/arn", readOnly)
	wantRole(t, m, "policy", `{"credential_types":["iam_user","federation_token"],"policy_document":"{\"Statement\":[]}","invalid_data":null}`)
	wantRole(t, m, "arn", `{"credential_types":["iam_user"],"policy_arns":["`+readOnly+`"],"invalid_data":null}`)
}

func TestRolesOfLaterVersionsAreNotRead(t *testing.T) {
	m := rolesMount(t)
	store(t, m, "role/dev", `{"format":2}`)
	for _, op := range []engines.Operation{engines.Read, engines.Update} {
		if _, err := m.Do(op, "roles/dev", `{"credential_type":"session_token"}`); err == nil || !strings.Contains(err.Error(), "unknown format") {
			t.Errorf("%s: error %v, want one about the format", op, err)
		}
	}
}

func store(t *testing.T, m *enginetest.Mount, key storage.Key, value string) {
	t.Helper()
	if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}}); err != nil {
		t.Fatal(err)
	}
}
