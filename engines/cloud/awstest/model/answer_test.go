package model

import (
	"slices"
	"testing"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
)

// TestAnswersAreJudged: what the fake answers is held against the vendor's model as what it is asked is.
func TestAnswersAreJudged(t *testing.T) {
	models, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	key := func(status string, more ...query.Element) []query.Element {
		return []query.Element{query.Group("AccessKey", append(more, query.Text("UserName", "u"), query.Text("AccessKeyId", "AKIAAAAAAAAAAAAAAAAA"),
			query.Text("Status", status), query.Text("SecretAccessKey", "s"))...)}
	}
	for _, test := range []struct {
		name, action string
		result       []query.Element
		want         []string
	}{
		{"good", "CreateAccessKey", key("Active", query.Text("CreateDate", "2026-01-02T03:04:05Z")), nil},
		{"nothing", "DeleteUser", nil, nil},
		{"enumeration", "CreateAccessKey", key("Awake"), []string{"CreateAccessKey: /AccessKey/Status: not one of Active, Inactive"}},
		{"time", "CreateAccessKey", key("Active", query.Text("CreateDate", "today")), []string{"CreateAccessKey: /AccessKey/CreateDate: not a time"}},
		{"unknown", "CreateAccessKey", key("Active", query.Text("Colour", "red")), []string{"CreateAccessKey: /AccessKey/Colour: not in the model"}},
		{"missing", "CreateAccessKey", nil, []string{"CreateAccessKey: /AccessKey: required"}},
		{"too much", "DeleteUser", key("Active"), []string{"DeleteUser: has no result in the model"}},
		{"no member", "ListUserPolicies", []query.Element{query.Group("PolicyNames", query.Text("name", "p"))}, []string{"ListUserPolicies: /PolicyNames/name: not a member of a list"}},
	} {
		var got []string
		for _, v := range models.CheckAnswer("2010-05-08", test.action, test.result) {
			got = append(got, v.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	for action, code := range map[string]string{"DeleteUser": "DeleteConflict", "GetUser": "AccessDenied"} {
		if !models.Answers("2010-05-08", action, code) {
			t.Errorf("%s may fail with %s", action, code)
		}
	}
	if models.Answers("2010-05-08", "GetUser", "DeleteConflict") {
		t.Error("GetUser may not fail with DeleteConflict")
	}
}
