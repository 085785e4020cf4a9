package role

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// putRejection stores the last rejected login of a role, a minute ago if it does not say when.
func putRejection(t *testing.T, m *enginetest.Mount, name string, r *LastRejection) {
	t.Helper()
	if r.At.IsZero() {
		r.At = time.Now().Add(-time.Minute)
	}
	_, err := storage.Update(t.Context(), m.Mount.ClusterStorage, func(txn *storage.Txn) error {
		return engines.PutRecord(txn, RejectedPrefix+storage.Key(name), r)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func explained(t *testing.T, m *enginetest.Mount, body string) map[string]any {
	t.Helper()
	return m.Data(m.Must(engines.Update, "role/dev/explain", body))
}

// checksOf returns the checks of an answer.
func checksOf(t *testing.T, data map[string]any) []check {
	t.Helper()
	text, err := json.Marshal(data["checks"])
	if err != nil {
		t.Fatal(err)
	}
	var checks []check
	if err := json.Unmarshal(text, &checks); err != nil {
		t.Fatal(err)
	}
	return checks
}

func TestExplainGivenAttributes(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"*@example.com","bound_subjects_type":"glob","bound_attributes":{"groups":["dev","ops"],"dept":"it"},
		"groups_attribute":"groups","token_policies":"p"}`)
	data := explained(t, m, `{"subject":"ann@example.com","attributes":{"groups":["ops","x"],"dept":"it"}}`)
	wantFields(t, data, `{"admitted":true,"subject":"ann@example.com","attributes":{"dept":["it"],"groups":["ops","x"]},"groups":["ops","x"],"policies":["default","p"],
		"checks":[{"bound":"subject","expected":["*@example.com"],"given":["ann@example.com"],"hint":"","name":"","passed":true,"type":"glob"},{"bound":"attribute","expected":["it"],"given":["it"],"hint":"","name":"dept","passed":true,"type":"string"},{"bound":"attribute","expected":["dev","ops"],"given":["ops","x"],"hint":"","name":"groups","passed":true,"type":"string"}]}`)
	if _, there := data["refused"]; there {
		t.Error("an answer about given attributes tells of a rejected login")
	}

	// All checks are made, also behind one that failed; a user who is not admitted gets no policies.
	data = explained(t, m, `{"subject":"bob@example.org","attributes":{"groups":"x"}}`)
	wantFields(t, data, `{"admitted":false,"groups":["x"],"policies":[]}`)
	var failed []string
	for _, c := range checksOf(t, data) {
		if !c.Passed {
			failed = append(failed, c.Bound+c.Name)
		}
	}
	if !slices.Equal(failed, []string{"subject", "attributedept", "attributegroups"}) {
		t.Errorf("failed checks: %v", failed)
	}
	data = explained(t, m, `{"subject":"bob@example.org"}`)
	wantFields(t, data, `{"admitted":false,"attributes":{},"groups":[],"policies":[]}`)
	data = explained(t, m, `{"attributes":{"dept":"it"}}`)
	wantFields(t, data, `{"admitted":false,"subject":"","attributes":{"dept":["it"]}}`)
}

func TestExplainAgreesWithLogins(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"ann,bob","bound_attributes":"groups=dev","token_no_default_policy":true}`)
	r, err := Get(t.Context(), m.Mount.Storage, "dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []Identity{
		{Subject: "ann", Attributes: map[string][]string{"groups": {"dev"}}},
		{Subject: "ann", Attributes: map[string][]string{"groups": {"ops"}}},
		{Subject: "bob"},
		{Subject: "eve", Attributes: map[string][]string{"groups": {"dev"}}},
	} {
		data := m.Data(m.Must(engines.Update, "role/dev/explain", user))
		if data["admitted"] != (r.Admits(user) == nil) {
			t.Errorf("%+v: explained as %v, a login gets %v", user, data["admitted"], r.Admits(user))
		}
		wantFields(t, data, `{"policies":[]}`)
	}
}

func TestExplainAttributesAreNotSplit(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_attributes":{"memberOf":["CN=ops,OU=x"]}}`)
	for _, attributes := range []string{
		`{"memberOf":"CN=ops,OU=x"}`, `{"memberOf":["CN=ops,OU=x"]}`, `"memberOf=CN=ops,OU=x"`, `["memberOf=a","memberOf=CN=ops,OU=x"]`,
	} {
		wantFields(t, explained(t, m, `{"attributes":`+attributes+`}`), `{"admitted":true}`)
	}
	wantFields(t, explained(t, m, `{"attributes":{"memberOf":[" CN=ops,OU=x"]}}`), `{"admitted":false,"attributes":{"memberOf":[" CN=ops,OU=x"]}}`)
}

func TestExplainLastRefusedLogin(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"ann","token_policies":"p"}`)
	m.Must(engines.Update, "role/other", `{}`)
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	putRejection(t, m, "dev", &LastRejection{At: at, Reason: "role", Detail: "the subject is not one the role admits", Address: "192.0.2.7",
		User: &Identity{Subject: "Ann", Attributes: map[string][]string{"groups": {"x"}}}})
	refused := `"refused":{"address":"192.0.2.7","at":"` + at.Format(time.RFC3339) + `","detail":"the subject is not one the role admits","reason":"role"}`
	for _, body := range []string{``, `{}`, `{"subject":"","attributes":{}}`} {
		data := m.Data(m.Must(engines.Update, "role/Dev/explain", body))
		wantFields(t, data, `{"admitted":false,"subject":"Ann","attributes":{"groups":["x"]},`+refused+`}`)
		if checks := checksOf(t, data); len(checks) != 1 || !strings.Contains(checks[0].Hint, "case") {
			t.Errorf("checks = %+v", checks)
		}
	}
	// The role is held against the user as it is now.
	m.Must(engines.Update, "role/dev", `{"bound_subjects":"Ann"}`)
	wantFields(t, explained(t, m, `{}`), `{"admitted":true,"policies":["default","p"],`+refused+`}`)
	// Another node of the cluster answers the same.
	wantFields(t, explained(t, m.Peer(), `{}`), `{"admitted":true,`+refused+`}`)
	m.Fails(engines.KindNotFound, engines.Update, "role/other/explain", `{}`)
}

func TestExplainAnAnswerThatWasNotBelieved(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{}`)
	putRejection(t, m, "dev", &LastRejection{Reason: "audience", Detail: "it is for another service"})
	data := explained(t, m, `{}`)
	wantFields(t, data, `{"admitted":false,"subject":"","attributes":{},"groups":[],"policies":[],"checks":[]}`)
	if reason := data["refused"].(map[string]any)["reason"]; reason != "audience" {
		t.Errorf("reason = %v", reason)
	}
}

func TestExplainErrors(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{}`)
	putRejection(t, m, "gone", &LastRejection{Reason: "role"})
	m.Fails(engines.KindNotFound, engines.Update, "role/gone/explain", `{}`)
	m.Fails(engines.KindNotFound, engines.Update, "role/gone/explain", `{"subject":"ann"}`)
	if text := m.Fails(engines.KindNotFound, engines.Update, "role/dev/explain", `{}`); !strings.Contains(text, "24 hours") {
		t.Errorf("without a rejected login: %q", text)
	}
	putRejection(t, m, "dev", &LastRejection{Reason: "role", At: time.Now().Add(-rejectionTTL - time.Minute)})
	m.Fails(engines.KindNotFound, engines.Update, "role/dev/explain", `{}`)
	for body, want := range map[string]string{
		`{"attributes":7}`:             `field "attributes": must be an object`,
		`{"attributes":"groups"}`:      `field "attributes": must be an object`,
		`{"attributes":{"groups":{}}}`: `field "attributes": each value must be`,
		`{"subject":["a"]}`:            `field "subject"`,
		`{"attributes":{"a":[` + strings.TrimSuffix(strings.Repeat("1,", maxGivenValues+1), ",") + `]}}`: `field "attributes": has more than 1000 values`,
	} {
		if text := m.Fails(engines.KindInvalid, engines.Update, "role/dev/explain", body); !strings.Contains(text, want) {
			t.Errorf("%.60s: %q does not say %q", body, text, want)
		}
	}
	m.Fails(engines.KindInvalid, engines.Update, "role/-dev/explain", `{"subject":"a"}`)
}

func TestExplainHints(t *testing.T) {
	const long = "http://schemas.example.com/claims/groups"
	for name, tt := range map[string]struct{ role, user, want string }{
		"case of a subject":       {`{"bound_subjects":"ann"}`, `{"subject":"Ann"}`, `case and blanks count`},
		"blanks of a subject":     {`{"bound_subjects":"ann lee"}`, `{"subject":"ann lee "}`, `case and blanks count`},
		"no subject":              {`{"bound_subjects":"ann"}`, `{"attributes":{"a":"b"}}`, `no subject is given`},
		"glob of type string":     {`{"bound_subjects":"*@example.com"}`, `{"subject":"ann@example.com"}`, `bound_subjects_type is string`},
		"case in a glob":          {`{"bound_subjects":"*@example.com","bound_subjects_type":"glob"}`, `{"subject":"ann@Example.com"}`, `case and blanks count`},
		"attribute glob":          {`{"bound_attributes":{"a":"x*"}}`, `{"attributes":{"a":"xy"}}`, `bound_attributes_type is string`},
		"case of a value":         {`{"bound_attributes":{"a":"x,dev"}}`, `{"attributes":{"a":["y","DEV"]}}`, `expected is "dev", given is "DEV"`},
		"values between blanks":   {`{"bound_attributes":{"a":"dev ops"}}`, `{"attributes":{"a":"ops"}}`, `looks like several`},
		"values in one element":   {`{"bound_attributes":{"a":["dev,ops"]}}`, `{"attributes":{"a":"ops"}}`, `looks like several`},
		"values sent as one":      {`{"bound_attributes":{"a":"ops"}}`, `{"attributes":{"a":"dev;ops"}}`, `sends "dev;ops" as one value`},
		"name that was split":     {`{"bound_attributes":{"a":"CN=ops,OU=x"}}`, `{"attributes":{"a":"CN=ops, OU=x"}}`, `split at its commas`},
		"case of a name":          {`{"bound_attributes":{"groups":"dev"}}`, `{"attributes":{"Groups":"dev"}}`, `there is "Groups"`},
		"last part of a claim":    {`{"bound_attributes":{"Groups":"dev"}}`, `{"attributes":{"` + long + `":"dev"}}`, `there is "` + long + `": attributes are known by their whole name`},
		"claim for a short name":  {`{"bound_attributes":{"` + long + `":"dev"}}`, `{"attributes":{"groups":"dev"}}`, `there is "groups"`},
		"object identifier":       {`{"bound_attributes":{"eduPersonAffiliation":"dev"}}`, `{"attributes":{"urn:oid:1.3.6.1.4.1.5923.1.1.1.1":"dev"}}`, `there is "urn:oid:1.3.6.1.4.1.5923.1.1.1.1"`},
		"attribute without value": {`{"bound_attributes":{"a":"dev"}}`, `{"subject":"x","attributes":{"a":[]}}`, `came without a value`},
		"no such attribute":       {`{"bound_attributes":{"a":"dev"}}`, `{"attributes":{"b":"dev"}}`, `no attribute of this name`},
		"no attributes":           {`{"bound_attributes":{"a":"dev"}}`, `{"subject":"ann"}`, `no attributes at all`},
		"nothing to say":          {`{"bound_attributes":{"a":"dev"}}`, `{"attributes":{"a":"ops"}}`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			m := roleMount(t)
			m.Must(engines.Update, "role/dev", tt.role)
			checks := checksOf(t, explained(t, m, tt.user))
			if len(checks) != 1 || checks[0].Passed {
				t.Fatalf("checks = %+v, want one that failed", checks)
			}
			if got := checks[0].Hint; !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("hint = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestExplainAnswersListsNeverNull(t *testing.T) {
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", `{"bound_attributes":{"a":"b"}}`)
	putRejection(t, m, "dev", &LastRejection{Reason: "role", User: &Identity{Subject: "ann"}})
	data := explained(t, m, `{}`)
	for _, name := range slices.Sorted(maps.Keys(data)) {
		if data[name] == nil {
			t.Errorf("%s is null", name)
		}
	}
	if checks := checksOf(t, data); checks[0].Given == nil || checks[0].Expected == nil {
		t.Errorf("checks = %+v", checks)
	}
}
