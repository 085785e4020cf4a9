package role

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

// written returns the role as a write of body stores it.
func written(t *testing.T, body string) *Role {
	t.Helper()
	m := roleMount(t)
	m.Must(engines.Update, "role/dev", body)
	r, err := Get(t.Context(), m.Mount.Storage, "dev")
	if err != nil || r == nil {
		t.Fatalf("reading the role: %v", err)
	}
	return r
}

func subject(text string) Identity { return Identity{Subject: text} }

// wantAdmitted checks whom a role lets in.
func wantAdmitted(t *testing.T, r *Role, user Identity, want bool) {
	t.Helper()
	if err := r.Admits(user); (err == nil) != want {
		t.Errorf("%+v: admits = %v, want admitted %v", user, err, want)
	}
}

func TestRoleWithoutBoundsAdmitsEverybody(t *testing.T) {
	r := written(t, `{}`)
	wantAdmitted(t, r, subject("anybody"), true)
	wantAdmitted(t, r, Identity{Subject: "x", Attributes: map[string][]string{"a": {"b"}}}, true)
}

func TestBoundSubjectsString(t *testing.T) {
	for _, body := range []string{`{"bound_subjects":"ann,b*b"}`, `{"bound_subjects":["ann","b*b"],"bound_subjects_type":"string"}`} {
		r := written(t, body)
		for text, want := range map[string]bool{
			"ann": true, "b*b": true, "Ann": false, "ann ": false, "bob": false, "": false, "anna": false, "ann,b*b": false,
		} {
			wantAdmitted(t, r, subject(text), want)
		}
	}
}

func TestBoundSubjectsGlob(t *testing.T) {
	r := written(t, `{"bound_subjects":"*@example.com,adm-*-x","bound_subjects_type":"glob"}`)
	for text, want := range map[string]bool{
		"ann@example.com": true, "@example.com": true, "adm-1-x": true, "adm--x": true,
		"ann@example.org": false, "ann@example.com.evil": false, "ann@EXAMPLE.com": false, "adm-x": false, "xadm-1-x": false,
		"ann@exampleXcom": false, "ann@example.com\n": false,
	} {
		wantAdmitted(t, r, subject(text), want)
	}
}

func TestBoundAttributesString(t *testing.T) {
	r := written(t, `{"bound_attributes":{"groups":"dev,ops*"}}`)
	for _, tt := range []struct {
		groups []string
		want   bool
	}{
		{[]string{"dev"}, true}, {[]string{"x", "dev"}, true}, {[]string{"ops*"}, true},
		{[]string{"ops1"}, false}, {[]string{"Dev"}, false}, {[]string{"dev,ops*"}, false}, {[]string{""}, false}, {nil, false},
	} {
		wantAdmitted(t, r, Identity{Subject: "ann", Attributes: map[string][]string{"groups": tt.groups}}, tt.want)
	}
	wantAdmitted(t, r, Identity{Attributes: map[string][]string{"Groups": {"dev"}}}, false)
	wantAdmitted(t, r, Identity{Attributes: map[string][]string{"http://example.com/groups": {"dev"}}}, false)
	wantAdmitted(t, r, Identity{}, false)
}

func TestBoundAttributesGlob(t *testing.T) {
	r := written(t, `{"bound_attributes":{"groups":["team-*","CN=ops,*"]},"bound_attributes_type":"glob"}`)
	for group, want := range map[string]bool{
		"team-a": true, "team-": true, "CN=ops,OU=x": true, "Team-a": false, "a-team-b": false, "CN=ops": false,
	} {
		wantAdmitted(t, r, Identity{Attributes: map[string][]string{"groups": {"other", group}}}, want)
	}
	// A star is any value, but there has to be one.
	r = written(t, `{"bound_attributes":{"groups":"*"},"bound_attributes_type":"glob"}`)
	wantAdmitted(t, r, Identity{Attributes: map[string][]string{"groups": {"x"}}}, true)
	wantAdmitted(t, r, Identity{Attributes: map[string][]string{"groups": {}}}, false)
	wantAdmitted(t, r, Identity{Attributes: map[string][]string{"other": {"x"}}}, false)
}

func TestBoundAttributesAllMustMatch(t *testing.T) {
	r := written(t, `{"bound_attributes":{"groups":"dev,ops","dept":"it"}}`)
	for _, tt := range []struct {
		groups, dept []string
		want         bool
	}{
		{[]string{"dev"}, []string{"it"}, true},
		{[]string{"ops", "x"}, []string{"y", "it"}, true},
		{[]string{"dev"}, []string{"hr"}, false},
		{[]string{"x"}, []string{"it"}, false},
		{[]string{"dev", "ops"}, nil, false},
		{[]string{"it"}, []string{"dev"}, false},
	} {
		wantAdmitted(t, r, Identity{Attributes: map[string][]string{"groups": tt.groups, "dept": tt.dept}}, tt.want)
	}
}

func TestBoundSubjectsAndBoundAttributesMustBothMatch(t *testing.T) {
	r := written(t, `{"bound_subjects":"ann","bound_attributes":{"groups":"dev"}}`)
	dev, other := map[string][]string{"groups": {"dev"}}, map[string][]string{"groups": {"x"}}
	wantAdmitted(t, r, Identity{Subject: "ann", Attributes: dev}, true)
	wantAdmitted(t, r, Identity{Subject: "bob", Attributes: dev}, false)
	wantAdmitted(t, r, Identity{Subject: "ann", Attributes: other}, false)
	wantAdmitted(t, r, Identity{Subject: "bob", Attributes: other}, false)
}

func TestTypesOfSubjectsAndAttributesAreIndependent(t *testing.T) {
	r := written(t, `{"bound_subjects":"a*","bound_subjects_type":"glob","bound_attributes":{"groups":"d*"}}`)
	wantAdmitted(t, r, Identity{Subject: "ann", Attributes: map[string][]string{"groups": {"d*"}}}, true)
	wantAdmitted(t, r, Identity{Subject: "ann", Attributes: map[string][]string{"groups": {"dev"}}}, false)
}

func TestRefusedUsersAreNotToldWhatWouldBeRight(t *testing.T) {
	r := written(t, `{"bound_subjects":"hidden-subject","bound_attributes":{"groups":"hidden-group"}}`)
	for want, user := range map[string]Identity{
		`the subject is not one the role admits`:                              subject("bob"),
		`the attribute "groups" has none of the values that the role demands`: subject("hidden-subject"),
	} {
		if err := r.Admits(user); err == nil || err.Error() != want {
			t.Errorf("admits = %v, want %q", err, want)
		}
	}
}

func TestGroupsAttribute(t *testing.T) {
	many := make([]string, maxGroups+10)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	user := Identity{Subject: "ann", Attributes: map[string][]string{
		"groups": {"b", "a", "b", "", " ", " c ", "B"}, "none": {}, "many": many, "": {"x"},
	}}
	for attribute, want := range map[string][]string{
		"groups": {"b", "a", " c ", "B"}, "none": nil, "missing": nil, "Groups": nil, "": nil, "many": many,
	} {
		if got := (&Role{GroupsAttribute: attribute}).Groups(user); !reflect.DeepEqual(got, want) {
			t.Errorf("groups of %q = %q, want %q", attribute, got, want)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "ab", false},
		{"*", "", true}, {"*", "anything\nat all", true}, {"**", "x", true},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"ab*ba", "aba", false},
		{"*b*", "abc", true}, {"*b*", "ac", false}, {"a*b*c", "aXbYbZc", true}, {"a*b*c", "acb", false},
		{"*ab", "aab", true}, {"*aab", "aaaab", true}, {"a?c", "abc", false}, {"a.c", "abc", false}, {"[ab]", "a", false},
		{`\*`, "*", false}, {`\*`, `\x`, true}, {"é*", "école", true},
	} {
		if got := glob(tt.pattern, tt.text); got != tt.want {
			t.Errorf("glob(%q, %q) = %v, want %v", tt.pattern, tt.text, got, tt.want)
		}
	}
}

// byRegexp is what glob promises, by a regular expression.
func byRegexp(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`\A(?s:` + strings.Join(parts, ".*") + `)\z`).MatchString(text)
}

func TestGlobIsTheRegularExpression(t *testing.T) {
	const seed = 20261121
	random := rand.New(rand.NewPCG(seed, seed))
	word := func(letters string, most int) string {
		text := make([]byte, random.IntN(most+1))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		return string(text)
	}
	matched := 0
	for range 20_000 {
		pattern, text := word("aab*", 8), word("aab", 12)
		got := glob(pattern, text)
		if got != byRegexp(pattern, text) {
			t.Fatalf("glob(%q, %q) = %v", pattern, text, got)
		}
		if got {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d of the random texts match: nothing was compared", matched)
	}
}

func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"*@example.com", "ann@example.com"}, {"a*b*c", "abbc"}, {"**", ""}, {"a.c", "abc"}, {`\*`, `\*`},
		{"*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaa"}, {"é*", "é"}, {"a*a", "a"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		pattern, text = strings.ToValidUTF8(pattern, "?"), strings.ToValidUTF8(text, "?")
		if len(pattern) > 1000 {
			return // the reference's limit, not ours
		}
		if got := glob(pattern, text); got != byRegexp(pattern, text) {
			t.Errorf("glob(%q, %q) = %v", pattern, text, got)
		}
	})
}

func FuzzBoundAttributes(f *testing.F) {
	for _, seed := range []string{
		`{"groups":"a,b"}`, `{"memberOf":["CN=a,OU=b"]}`, `"groups=a"`, `["groups=a","groups=b"]`, `[]`, `""`, `{"a":{}}`, `{"a":[null]}`, `7`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		m := roleMount(t)
		if _, err := m.Do(engines.Update, "role/dev", `{"bound_attributes":`+value+`}`); err != nil {
			return
		}
		// What is accepted binds something, or is nothing; and what is read can be written again.
		read := readRoleData(t, m, "dev")["bound_attributes"]
		m.Must(engines.Update, "role/again", map[string]any{"bound_attributes": read})
		if again := readRoleData(t, m, "again")["bound_attributes"]; !reflect.DeepEqual(again, read) {
			t.Errorf("%s is read as %v, which is read as %v", value, read, again)
		}
		for name, values := range read.(map[string]any) {
			if len(values.([]any)) == 0 || name == "" {
				t.Errorf("%s binds %q to nothing", value, name)
			}
		}
	})
}
