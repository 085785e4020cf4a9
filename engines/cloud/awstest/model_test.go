package awstest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	ststypes "github.com/aws/aws-sdk-go-v2/service/sts/types"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

func TestJudgeRefusesWhatTheVendorRefuses(t *testing.T) {
	s, violations := lenient(t)
	i, p := root(s)
	ctx := t.Context()
	s.AddUser("u")
	role := s.AddRole(awstest.Role{Name: "r"})
	eleven := make([]ststypes.PolicyDescriptorType, 11)
	for n := range eleven {
		eleven[n].Arn = aws.String(fmt.Sprint("arn:aws:iam::aws:policy/p", n))
	}
	user := func(name, path string, tags ...iamtypes.Tag) error {
		in := &iam.CreateUserInput{UserName: &name, Tags: tags}
		if path != "" {
			in.Path = &path
		}
		return second(i.CreateUser(ctx, in))
	}
	assume := func(session string, seconds int32, change func(*sts.AssumeRoleInput)) error {
		in := &sts.AssumeRoleInput{RoleArn: &role, RoleSessionName: &session, DurationSeconds: &seconds}
		if change != nil {
			change(in)
		}
		return second(p.AssumeRole(ctx, in))
	}
	federate := func(name, document string) error {
		return second(p.GetFederationToken(ctx, &sts.GetFederationTokenInput{Name: &name, Policy: &document}))
	}
	for _, test := range []struct {
		call func() error
		want string // the violation, "" for none
	}{
		{func() error { return user(strings.Repeat("n", 64), "/a/b/") }, ""},
		{func() error { return user(strings.Repeat("n", 65), "") }, "CreateUser: UserName: longer than 64"},
		{func() error { return user("a b", "") }, "CreateUser: UserName: does not match"},
		{func() error { return user("p", "no/slash") }, "CreateUser: Path: does not match"},
		{func() error {
			return user("q", "", iamtypes.Tag{Key: aws.String("a"), Value: aws.String("ä Ω_.:/=+-@")})
		}, ""},
		{func() error { return user("r", "", iamtypes.Tag{Key: aws.String("a*"), Value: aws.String("b")}) }, "CreateUser: Tags.member.1.Key: does not match"},
		{func() error {
			return user("s", "", iamtypes.Tag{Key: aws.String("a"), Value: aws.String(strings.Repeat("v", 257))})
		}, "CreateUser: Tags.member.1.Value: longer than 256"},
		{func() error {
			return second(i.UpdateAccessKey(ctx, &iam.UpdateAccessKeyInput{AccessKeyId: aws.String("AKIAAAAAAAAAAAAAAAAA"), Status: "Sleeping"}))
		}, "UpdateAccessKey: Status: not one of"},
		{func() error {
			return second(i.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: aws.String("u"), PolicyArn: aws.String("short")}))
		}, "AttachUserPolicy: PolicyArn: shorter than 20"},
		{func() error { return second(i.ListUsers(ctx, &iam.ListUsersInput{MaxItems: aws.Int32(1001)})) }, "ListUsers: MaxItems: more than 1000"},
		{func() error { return assume("s", 900, nil) }, "AssumeRole: RoleSessionName: shorter than 2"},
		{func() error { return assume(strings.Repeat("s", 65), 900, nil) }, "AssumeRole: RoleSessionName: longer than 64"},
		{func() error { return assume("ok", 899, nil) }, "AssumeRole: DurationSeconds: less than 900"},
		{func() error { return assume("ok", 43201, nil) }, "AssumeRole: DurationSeconds: more than 43200"},
		{func() error {
			return assume("ok", 900, func(in *sts.AssumeRoleInput) { in.ExternalId = aws.String("ex ternal") })
		}, "AssumeRole: ExternalId: does not match"},
		{func() error {
			return assume("ok", 900, func(in *sts.AssumeRoleInput) {
				in.Tags = make([]ststypes.Tag, 51)
				for n := range in.Tags {
					in.Tags[n] = ststypes.Tag{Key: aws.String(fmt.Sprint("k", n)), Value: aws.String("")}
				}
			})
		}, "AssumeRole: Tags: more than 50 members"},
		{func() error { return federate(strings.Repeat("f", 32), policy) }, ""},
		{func() error { return federate(strings.Repeat("f", 33), policy) }, "GetFederationToken: Name: longer than 32"},
		{func() error { return federate("fed", strings.Repeat(" ", 2049)) }, "GetFederationToken: Policy: longer than 2048"},
	} {
		err, found := test.call(), violations()
		switch {
		case test.want == "" && (len(found) > 0 || err != nil):
			t.Errorf("a good request: %q, %v", found, err)
		case test.want != "" && (len(found) == 0 || !strings.HasPrefix(found[0], test.want)):
			t.Errorf("the judge says %q, want %q", found, test.want)
		case test.want != "" && code(err) != "ValidationError":
			t.Errorf("%s: answered with %q", test.want, code(err))
		}
	}
}
