package model_test

import (
	"net/url"
	"slices"
	"testing"

	"github.com/coffer-project/coffer/engines/cloud/awstest/model"
)

func TestCheck(t *testing.T) {
	models, err := model.Load()
	if err != nil {
		t.Fatal(err)
	}
	const iamVersion, stsVersion = "2010-05-08", "2011-06-15"
	for _, test := range []struct {
		name string
		form string
		want []string
	}{
		{"good", "Action=GetUser&Version=" + iamVersion, nil},
		{"unknown version", "Action=GetUser&Version=1999-01-01", []string{"GetUser: unknown version of the API"}},
		{"action of the other service", "Action=GetUser&Version=" + stsVersion, []string{"GetUser: unknown action"}},
		{"missing", "Action=CreateUser&Version=" + iamVersion, []string{"CreateUser: UserName: required"}},
		{"missing inside", "Action=TagUser&UserName=u&Tags.member.1.Key=k&Version=" + iamVersion, []string{"TagUser: Tags.member.1.Value: required"}},
		{"empty", "Action=DeleteUser&UserName=&Version=" + iamVersion, []string{"DeleteUser: UserName: does not match [\\w+=,.@-]+", "DeleteUser: UserName: shorter than 1"}},
		{"empty list", "Action=CreateUser&UserName=u&Tags=&Version=" + iamVersion, nil},
		{"gap in a list", "Action=UntagUser&UserName=u&TagKeys.member.1=a&TagKeys.member.3=b&Version=" + iamVersion, []string{"UntagUser: TagKeys.member.3: not in the model"}},
		{"not in the model", "Action=GetUser&Colour=red&Version=" + iamVersion, []string{"GetUser: Colour: not in the model"}},
		{"twice", "Action=GetUser&UserName=a&UserName=b&Version=" + iamVersion, []string{"GetUser: UserName: given more than once"}},
		{"not a number", "Action=ListUsers&MaxItems=ten&Version=" + iamVersion, []string{"ListUsers: MaxItems: not a whole number"}},
		{"not a boolean", "Action=UpdateLoginProfile&UserName=u&PasswordResetRequired=1&Version=" + iamVersion, []string{"UpdateLoginProfile: PasswordResetRequired: neither true nor false"}},
		{"more than the Basic Multilingual Plane", "Action=GetFederationToken&Name=ab&PolicyArns.member.1.arn=arn:aws:iam::aws:policy/" + url.QueryEscape("😀") + "&Version=" + stsVersion, nil},
	} {
		form, err := url.ParseQuery(test.form)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range models.Check(form) {
			got = append(got, v.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestPatternsAreUnderstood: a pattern that Go cannot say would be a rule that is not checked.
func TestPatternsAreUnderstood(t *testing.T) {
	unsaid, err := model.UnsaidPatterns()
	if err != nil {
		t.Fatal(err)
	}
	if len(unsaid) > 0 {
		t.Errorf("patterns that are not checked: %q", unsaid)
	}
}
