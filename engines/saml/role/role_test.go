package role

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// only is an engine with the paths of roles and no others.
type only struct{ router *engines.Router }

func (o only) Router() *engines.Router { return o.router }

func roleMount(t testing.TB) *enginetest.Mount {
	build := func(engines.Mount) (engines.Engine, error) {
		o := only{engines.NewRouter()}
		Routes(o.router)
		return o, nil
	}
	return enginetest.New(t, build, enginetest.Options{Type: "saml", Path: "auth/saml/"})
}

// readRoleData returns what a read of the role answers, as decoded JSON.
func readRoleData(t *testing.T, m *enginetest.Mount, name string) map[string]any {
	t.Helper()
	return m.Data(m.Must(engines.Read, "role/"+name, nil))
}

// wantFields compares some fields of data with JSON text.
func wantFields(t *testing.T, data map[string]any, want string) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(want), &fields); err != nil {
		t.Fatal(err)
	}
	for name, text := range fields {
		got, err := json.Marshal(data[name])
		if err != nil {
			t.Fatal(err)
		}
		if _, there := data[name]; !there || string(got) != string(text) {
			t.Errorf("%s = %s, want %s", name, got, text)
		}
	}
}

func TestRoles(t *testing.T) {
	m := roleMount(t)
	m.Fails(engines.KindNotFound, engines.List, "role", nil)
	if text := m.Fails(engines.KindNotFound, engines.Read, "role/dev", nil); text != "" {
		t.Errorf("a missing role is explained: %q", text)
	}
	if m.Exists("role/dev") {
		t.Error("the role exists before it is written")
	}
	if resp := m.Must(engines.Update, "role/Dev", `{"bound_subjects":"a"}`); resp != nil {
		t.Errorf("a write without anything odd answers %+v, want 204", resp)
	}
	if !m.Exists("role/DEV") {
		t.Error("the role does not exist after it was written")
	}
	m.Must(engines.Update, "role/admin", `{"bound_subjects":"b"}`)
	m.Must(engines.Update, "role/b-2", `{"bound_subjects":"b"}`)
	if got := m.Data(m.Must(engines.List, "role/", nil))["keys"]; !reflect.DeepEqual(got, []any{"admin", "b-2", "dev"}) {
		t.Errorf("list = %v", got)
	}
	if got := m.Data(m.Must(engines.List, "role?after=admin&limit=1", nil))["keys"]; !reflect.DeepEqual(got, []any{"b-2"}) {
		t.Errorf("a part of the list = %v", got)
	}
	m.Must(engines.Delete, "role/DEV", nil)
	if resp := m.Must(engines.Delete, "role/dev", nil); resp != nil {
		t.Errorf("deleting a missing role answers %+v, want 204", resp)
	}
	m.Fails(engines.KindNotFound, engines.Read, "role/dev", nil)
}

func TestRoleReadHasEveryField(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/bare", `{}`)
	data := readRoleData(t, m, "bare")
	want := `{"bound_subjects":[],"bound_subjects_type":"string","bound_attributes":{},"bound_attributes_type":"string",
		"groups_attribute":"","alias_metadata":{},"require_same_address":false,"confirm":"cli","authn_context_class_refs":[],
		"token_bound_cidrs":[],"token_explicit_max_ttl":0,"token_max_ttl":0,"token_no_default_policy":false,"token_num_uses":0,
		"token_period":0,"token_policies":[],"token_ttl":0,"token_type":"default"}`
	wantFields(t, data, want)
	var fields map[string]any
	if err := json.Unmarshal([]byte(want), &fields); err != nil {
		t.Fatal(err)
	}
	if len(data) != len(fields) {
		t.Errorf("the fields are %v, want those of %v only", slices.Sorted(maps.Keys(data)), slices.Sorted(maps.Keys(fields)))
	}

	const full = `{"bound_subjects":["b@example.com","a@example.com"],"bound_subjects_type":"glob","bound_attributes":{"groups":["z","a"],"memberOf":["CN=a,OU=b"]},
		"bound_attributes_type":"glob","groups_attribute":"groups","alias_metadata":{"team":"x"},"require_same_address":true,"confirm":"always","authn_context_class_refs":["urn:x:mfa"],
		"token_bound_cidrs":["10.0.0.0/8"],"token_explicit_max_ttl":7200,"token_max_ttl":3600,"token_no_default_policy":true,"token_num_uses":3,
		"token_period":60,"token_policies":["a","b"],"token_ttl":1800,"token_type":"service"}`
	m.Must(engines.Update, "role/full", full)
	var compact map[string]json.RawMessage
	if err := json.Unmarshal([]byte(full), &compact); err != nil {
		t.Fatal(err)
	}
	wantFields(t, readRoleData(t, m, "full"), full)
}

func TestRoleWritesArePartial(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"a*","bound_subjects_type":"glob","bound_attributes":{"groups":"x"},"bound_attributes_type":"glob",
		"groups_attribute":"groups","alias_metadata":{"k":"v"},"require_same_address":true,"token_ttl":"1h","token_policies":"p"}`)
	before := readRoleData(t, m, "dev")
	m.Must(engines.Update, "role/dev", `{"token_num_uses":2}`)
	before["token_num_uses"] = json.Number("2")
	if got := readRoleData(t, m, "dev"); !reflect.DeepEqual(got, before) {
		t.Errorf("after a partial write: %v, want %v", got, before)
	}
	// What is given as nothing is unset.
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"","bound_subjects_type":"","bound_attributes":{},"bound_attributes_type":"","groups_attribute":"",
		"alias_metadata":{},"require_same_address":false,"token_ttl":0,"token_policies":[]}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"bound_subjects":[],"bound_subjects_type":"string","bound_attributes":{},"bound_attributes_type":"string",
		"groups_attribute":"","alias_metadata":{},"require_same_address":false,"token_ttl":0,"token_policies":[],"token_num_uses":2}`)
}

func TestTokenPoliciesAreSortedLowerCaseEachOnce(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"token_policies":"Zeta, alpha,alpha"}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_policies":["alpha","zeta"]}`)
}

func TestPoliciesIsDeprecatedForTokenPolicies(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"policies":"b,A"}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_policies":["a","b"],"policies":["a","b"]}`)
	m.Must(engines.Update, "role/dev", `{"token_num_uses":1}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_policies":["a","b"],"policies":["a","b"]}`)
	// The newer name wins, and takes over.
	m.Must(engines.Update, "role/dev", `{"token_policies":["c"],"policies":["d"]}`)
	data := readRoleData(t, m, "dev")
	wantFields(t, data, `{"token_policies":["c"]}`)
	if _, there := data["policies"]; there {
		t.Error("policies is still answered after token_policies was written")
	}
}

func TestOlderNamesOfLifetimes(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"ttl":"1h","max_ttl":7200}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_ttl":3600,"token_max_ttl":7200}`)
	m.Must(engines.Update, "role/dev", `{"ttl":"1h","token_ttl":"2h"}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_ttl":7200,"token_max_ttl":7200}`)
	m.Fails(engines.KindInvalid, engines.Update, "role/dev", `{"ttl":"3h"}`)
}

func TestUnknownRoleFieldsAreIgnoredWithAWarning(t *testing.T) {
	m := roleMount(t)
	resp := m.Must(engines.Update, "role/dev", `{"bound_subjects":"a","colour":"red","name":"other"}`)
	if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], `"colour"`) {
		t.Errorf("unknown fields answer %+v, want one warning about colour", resp)
	}
	readRoleData(t, m, "dev")
}

func TestTokenTypeOfRoles(t *testing.T) {
	m := roleMount(t)
	for _, kind := range []string{"default", "service", "batch"} {
		m.Must(engines.Update, "role/dev", `{"token_type":"`+kind+`"}`)
		wantFields(t, readRoleData(t, m, "dev"), `{"token_type":"`+kind+`"}`)
	}
	m.Must(engines.Update, "role/dev", `{"token_type":""}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"token_type":"default"}`)
	for _, kind := range []string{"default-service", "default-batch", "other"} {
		if text := m.Fails(engines.KindInvalid, engines.Update, "role/dev", `{"token_type":"`+kind+`"}`); !strings.Contains(text, `field "token_type"`) {
			t.Errorf("%s: %q does not name the field", kind, text)
		}
	}
}

func TestRefusedRoles(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"a"}`)
	long := func(n int) string { return strings.Repeat("x", n) }
	many := func(n int) string {
		return `["x"` + strings.Repeat(`,"x"`, n-1) + `]`
	}
	attributes := map[string]string{}
	for i := range maxBoundAttributes + 1 {
		attributes[strings.Repeat("a", i+1)] = "x"
	}
	tooMany, err := json.Marshal(map[string]any{"bound_attributes": attributes})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, body, text string }{
		{"role/-dev", `{}`, `field "name"`},
		{"role/dev.", `{}`, `field "name"`},
		{"role/d ev", `{}`, `field "name"`},
		{"role/dév", `{}`, `field "name"`},
		{"role/" + long(129), `{}`, `field "name"`},
		{"role/dev", `{"bound_subjects_type":"regex"}`, `field "bound_subjects_type"`},
		{"role/dev", `{"bound_attributes_type":"String"}`, `field "bound_attributes_type"`},
		{"role/dev", `{"bound_subjects":{"a":"b"}}`, `field "bound_subjects"`},
		{"role/dev", `{"bound_subjects":[""]}`, `field "bound_subjects": has blank values only`},
		{"role/dev", `{"bound_subjects":" "}`, `field "bound_subjects": has blank values only`},
		{"role/dev", `{"bound_subjects":","}`, `field "bound_subjects": has blank values only`},
		{"role/dev", `{"bound_subjects":` + many(257) + `}`, `field "bound_subjects"`},
		{"role/dev", `{"bound_subjects":["` + long(1025) + `"]}`, `field "bound_subjects"`},
		{"role/dev", `{"bound_attributes":7}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":"groups"}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":"=a"}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":["groups=a","x"]}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":[["groups=a"]]}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":"{\"groups\":\"a=b\"}"}`, `field "bound_attributes": must be an object`},
		{"role/dev", `{"bound_attributes":{"groups":{"a":"b"}}}`, `field "bound_attributes": each value must be`},
		{"role/dev", `{"bound_attributes":{"groups":null}}`, `field "bound_attributes": each value must be`},
		{"role/dev", `{"bound_attributes":{"groups":["a",null]}}`, `field "bound_attributes": each value must be`},
		{"role/dev", `{"bound_attributes":{"groups":""}}`, `field "bound_attributes": "groups" has no values`},
		{"role/dev", `{"bound_attributes":{"groups":" , "}}`, `field "bound_attributes": "groups" has no values`},
		{"role/dev", `{"bound_attributes":{"groups":[]}}`, `field "bound_attributes": "groups" has no values`},
		{"role/dev", `{"bound_attributes":"groups="}`, `field "bound_attributes": "groups" has no values`},
		{"role/dev", `{"bound_attributes":{"groups":["a"," "]}}`, `field "bound_attributes": "groups" has an empty value`},
		{"role/dev", `{"bound_attributes":{"":"a"}}`, `field "bound_attributes": a name is empty`},
		{"role/dev", `{"bound_attributes":{" groups":"a"}}`, `field "bound_attributes": a name begins`},
		{"role/dev", `{"bound_attributes":{"gro\u0000ups":"a"}}`, `field "bound_attributes": a name`},
		{"role/dev", `{"bound_attributes":{"` + long(513) + `":"a"}}`, `field "bound_attributes": a name is longer`},
		{"role/dev", `{"bound_attributes":{"groups":` + many(257) + `}}`, `field "bound_attributes": "groups" has more than 256 values`},
		{"role/dev", `{"bound_attributes":{"groups":"` + long(1025) + `"}}`, `field "bound_attributes": "groups" has a value`},
		{"role/dev", `{"bound_attributes":{"groups":"` + long(262144) + `"}}`, `field "bound_attributes": is longer`},
		{"role/dev", string(tooMany), `field "bound_attributes": has more than 64 attributes`},
		{"role/dev", `{"groups_attribute":"` + long(513) + `"}`, `field "groups_attribute"`},
		{"role/dev", `{"groups_attribute":"a\u0007b"}`, `field "groups_attribute"`},
		{"role/dev", `{"alias_metadata":{"` + long(129) + `":"v"}}`, `field "alias_metadata": each key`},
		{"role/dev", `{"alias_metadata":{"k":"` + long(513) + `"}}`, `field "alias_metadata": each value`},
		{"role/dev", `{"alias_metadata":{"k":"a\nb"}}`, `field "alias_metadata"`},
		{"role/dev", `{"token_ttl":"2h","token_max_ttl":"1h"}`, `field "token_ttl"`},
		{"role/dev", `{"token_num_uses":-1}`, `field "token_num_uses"`},
		{"role/dev", `{"token_bound_cidrs":"here"}`, `field "token_bound_cidrs"`},
		{"role/dev", `{"token_policies":"root"}`, `field "token_policies"`},
		{"role/dev", `{"policies":"root"}`, `field "token_policies"`},
		{"role/dev", `{"token_type":"batch","token_period":60}`, `field "token_period"`},
	} {
		if text := m.Fails(engines.KindInvalid, engines.Update, tt.path, tt.body); !strings.Contains(text, tt.text) {
			t.Errorf("%.60s %.80s: %q does not say %q", tt.path, tt.body, text, tt.text)
		}
	}
	for _, name := range []string{"a", "_", "a.b-c_d@example.com", "9", long(128)} {
		m.Must(engines.Update, "role/"+name, `{}`)
	}
}

func TestBoundSubjectsListOrText(t *testing.T) {
	m := roleMount(t)
	for body, want := range map[string]string{
		`{"bound_subjects":"b, a,,"}`:           `{"bound_subjects":["b","a"]}`,
		`{"bound_subjects":["b","a"]}`:          `{"bound_subjects":["b","a"]}`,
		`{"bound_subjects":["CN=a,OU=b"]}`:      `{"bound_subjects":["CN=a,OU=b"]}`,
		`{"bound_subjects":[ ]}`:                `{"bound_subjects":[]}`,
		`{"bound_subjects":"only@example.com"}`: `{"bound_subjects":["only@example.com"]}`,
	} {
		m.Must(engines.Update, "role/dev", body)
		wantFields(t, readRoleData(t, m, "dev"), want)
	}
}

func TestBoundAttributesForms(t *testing.T) {
	m := roleMount(t)
	for _, tt := range []struct{ in, want string }{
		{`{"groups":"b, a,,c"}`, `{"groups":["b","a","c"]}`},
		{`{"groups":["b"," a "],"dept":"x"}`, `{"dept":["x"],"groups":["b","a"]}`},
		{`{"memberOf":["CN=a,OU=b","CN=c,OU=d"]}`, `{"memberOf":["CN=a,OU=b","CN=c,OU=d"]}`},
		{`{"level":7,"staff":true,"both":[1,false]}`, `{"both":["1","false"],"level":["7"],"staff":["true"]}`},
		{`"groups=b,a"`, `{"groups":["b","a"]}`},
		{`["groups=b,a","dept=x"]`, `{"dept":["x"],"groups":["b","a"]}`},
		{`["groups=b","groups=a"]`, `{"groups":["b","a"]}`},
		{`["http://example.com/claims/groups=a=b"]`, `{"http://example.com/claims/groups":["a=b"]}`},
		{`{"a=b":"c"}`, `{"a=b":["c"]}`},
		{`""`, `{}`},
		{`[]`, `{}`},
		{`{}`, `{}`},
	} {
		m.Must(engines.Update, "role/dev", `{"bound_attributes":`+tt.in+`}`)
		wantFields(t, readRoleData(t, m, "dev"), `{"bound_attributes":`+tt.want+`}`)
	}
	m.Must(engines.Update, "role/dev", `{"bound_attributes":{"a":"b"}}`)
	m.Must(engines.Update, "role/dev", `{"bound_attributes":null}`)
	wantFields(t, readRoleData(t, m, "dev"), `{"bound_attributes":{"a":["b"]}}`)
}

func TestRoleWarnings(t *testing.T) {
	const everybody, literal, star, name, ttl = "every user that", "literal asterisk", "alone matches", "distinguished name", "token_max_ttl"
	for _, tt := range []struct {
		body string
		want []string
	}{
		{`{}`, []string{everybody}},
		{`{"bound_subjects":"a"}`, nil},
		{`{"bound_attributes":"a=b"}`, nil},
		{`{"bound_subjects":"a*"}`, []string{literal}},
		{`{"bound_subjects":"a*","bound_subjects_type":"glob"}`, nil},
		{`{"bound_subjects":"a,*","bound_subjects_type":"glob"}`, []string{star}},
		{`{"bound_subjects":"**","bound_subjects_type":"glob"}`, []string{star}},
		{`{"bound_subjects":"*"}`, []string{literal}},
		{`{"bound_attributes":{"a":"*x","b":"y"},"bound_subjects_type":"glob"}`, []string{literal}},
		{`{"bound_attributes":{"a":"*","b":"*"},"bound_attributes_type":"glob"}`, []string{star, star}},
		{`{"bound_subjects":"CN=ann,OU=people,DC=example"}`, []string{name}},
		{`{"bound_attributes":{"memberOf":"CN=ops,OU=groups"}}`, []string{name}},
		{`{"bound_attributes":{"memberOf":["CN=ops,OU=groups","CN=dev,OU=groups"]}}`, nil},
		{`{"bound_attributes":{"memberOf":["CN=ops"]}}`, nil},
		{`{"bound_subjects":"a","token_max_ttl":"48h"}`, []string{ttl}},
		{`{"bound_subjects":"a","max_ttl":"48h"}`, []string{ttl}},
	} {
		resp := roleMount(t).Must(engines.Update, "role/dev", tt.body)
		var got []string
		if resp != nil {
			got = resp.Warnings
		}
		if !slices.EqualFunc(got, tt.want, strings.Contains) {
			t.Errorf("%s: warnings %q, want %q", tt.body, got, tt.want)
		}
	}
	// What is odd is said again at each write, and by its field.
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_attributes":{"a":"*x"}}`)
	resp := m.Must(engines.Update, "role/dev", `{"token_ttl":60}`)
	if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], `bound_attributes of "a"`) || !strings.Contains(resp.Warnings[0], "bound_attributes_type=glob") {
		t.Errorf("the second write answers %+v", resp)
	}
}

// followed is the shared storage of a secondary cluster: writes are the primary's.
type followed struct{ storage.Store }

func (followed) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrPrimaryOnly
}

func TestDeletingARoleForgetsItsRefusal(t *testing.T) {
	m := roleMount(t)
	for _, name := range []string{"dev", "ops"} {
		m.Must(engines.Update, "role/"+name, `{"bound_subjects":"a"}`)
		putRejection(t, m, name, &LastRejection{Reason: "role"})
	}
	m.Must(engines.Delete, "role/Dev", nil)
	_, err := m.Mount.ClusterStorage.Get(t.Context(), RejectedPrefix+"dev")
	if !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the rejection is still there: %v", err)
	}

	// On a secondary cluster the request goes on to the primary, and this cluster's rejection is gone.
	m.Mount.Storage = followed{m.Mount.Storage}
	if _, err := m.Do(engines.Delete, "role/ops", nil); !errors.Is(err, storage.ErrPrimaryOnly) {
		t.Errorf("on a secondary: %v, want ErrPrimaryOnly", err)
	}
	if _, err := m.Mount.ClusterStorage.Get(t.Context(), RejectedPrefix+"ops"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the secondary's rejection is still there: %v", err)
	}
	readRoleData(t, m, "ops")
}

func TestGetRole(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"a"}`)
	for name, there := range map[string]bool{"dev": true, "DEV": true, "ops": false, "": false, "../config": false, "d/ev": false, "-": false} {
		r, err := Get(t.Context(), m.Mount.Storage, name)
		if err != nil || (r != nil) != there || there && r.Name != "dev" {
			t.Errorf("getRole(%q) = %+v, %v", name, r, err)
		}
	}
	batch := storage.Batch{Puts: []storage.Put{{Key: rolePrefix + "new", Value: []byte(`{"format":2}`)}}}
	if _, err := m.Mount.Storage.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if _, err := Get(t.Context(), m.Mount.Storage, "new"); err == nil {
		t.Error("a role of a later format is read as if it were known")
	}
}
