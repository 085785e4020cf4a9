package awstest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	ststypes "github.com/aws/aws-sdk-go-v2/service/sts/types"
	"github.com/aws/smithy-go"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/awstest/model"
)

const policy = `{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}]}`

// config is how the vendor's SDK reaches a server, without retries.
func config(url, key, secret, token string) aws.Config {
	return aws.Config{
		Region: "eu-west-1", BaseEndpoint: aws.String(url), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(key, secret, token),
	}
}

func iamAs(s *awstest.Server, key, secret, token string) *iam.Client {
	return iam.NewFromConfig(config(s.URL, key, secret, token))
}

func stsAs(s *awstest.Server, key, secret, token string) *sts.Client {
	return sts.NewFromConfig(config(s.URL, key, secret, token))
}

func root(s *awstest.Server) (*iam.Client, *sts.Client) {
	key, secret := s.Root()
	return iamAs(s, key, secret, ""), stsAs(s, key, secret, "")
}

// code is the provider's word for an error, "" for none, and the error's text if it has no code.
func code(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func wantCode(t *testing.T, what string, err error, want string) {
	t.Helper()
	if got := code(err); got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// lenient is a server whose judge only takes notes.
func lenient(t *testing.T, opts ...awstest.Option) (*awstest.Server, func() []string) {
	seen := make(chan string, 1000)
	s := awstest.New(t, append(opts, awstest.Judge(func(v model.Violation) { seen <- v.String() }))...)
	return s, func() (all []string) {
		for len(seen) > 0 {
			all = append(all, <-seen)
		}
		return all
	}
}

func TestUserHasAllItIsMadeWith(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	boundary := s.AddPolicy("boundary")
	made := must[*iam.CreateUserOutput](t)(c.CreateUser(ctx, &iam.CreateUserInput{
		UserName: aws.String("Anna"), Path: aws.String("/team/"), PermissionsBoundary: &boundary,
		Tags: []iamtypes.Tag{{Key: aws.String("cost"), Value: aws.String("42")}, {Key: aws.String("by"), Value: aws.String("")}},
	}))
	got := must[*iam.GetUserOutput](t)(c.GetUser(ctx, &iam.GetUserInput{UserName: aws.String("Anna")}))
	u := got.User
	if *u.Arn != "arn:aws:iam::123456789012:user/team/Anna" || *u.Path != "/team/" || *u.UserId != *made.User.UserId ||
		u.PermissionsBoundary == nil || *u.PermissionsBoundary.PermissionsBoundaryArn != boundary || len(u.Tags) != 2 {
		t.Errorf("the user is %+v", u)
	}
	seen, ok := s.User("Anna")
	if !ok || seen.Tags["cost"] != "42" || seen.Boundary != boundary || seen.ID != *u.UserId {
		t.Errorf("User(Anna) = %+v, %v", seen, ok)
	}
	_, err := c.CreateUser(ctx, &iam.CreateUserInput{UserName: aws.String("ANNA")})
	wantCode(t, "the same name in capitals", err, "EntityAlreadyExists")
	_, err = c.GetUser(ctx, &iam.GetUserInput{UserName: aws.String("bert")})
	if _, ok := errors.AsType[*iamtypes.NoSuchEntityException](err); !ok {
		t.Errorf("GetUser without a name: %v", err)
	}
	_, err = c.CreateUser(ctx, &iam.CreateUserInput{UserName: aws.String("bert"), PermissionsBoundary: aws.String("arn:aws:iam::123456789012:policy/none")})
	wantCode(t, "a boundary that is not there", err, "NoSuchEntity")
	self := must[*iam.GetUserOutput](t)(c.GetUser(ctx, &iam.GetUserInput{}))
	if *self.User.UserName != "root-user" {
		t.Errorf("the caller is %s", *self.User.UserName)
	}
}

func TestUserIsRemovedLast(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	name := aws.String("u")
	s.AddUser("u")
	s.AddGroup(awstest.Group{Name: "g"})
	key := s.AddKey("u")
	s.AddLoginProfile("u")
	serial, _ := s.AddMFADevice("u", "")
	cert, ssh, service := s.AddCertificate("u"), s.AddSSHKey("u"), s.AddServiceCredential("u")
	arn := s.AddPolicy("p")
	for _, err := range []error{
		second(c.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: name, PolicyArn: &arn})),
		second(c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: name, PolicyName: aws.String("in"), PolicyDocument: aws.String(policy)})),
		second(c.AddUserToGroup(ctx, &iam.AddUserToGroupInput{UserName: name, GroupName: aws.String("g")})),
	} {
		wantCode(t, "setting up", err, "")
	}
	certs := must[*iam.ListSigningCertificatesOutput](t)(c.ListSigningCertificates(ctx, &iam.ListSigningCertificatesInput{UserName: name}))
	keys := must[*iam.ListSSHPublicKeysOutput](t)(c.ListSSHPublicKeys(ctx, &iam.ListSSHPublicKeysInput{UserName: name}))
	services := must[*iam.ListServiceSpecificCredentialsOutput](t)(c.ListServiceSpecificCredentials(ctx, &iam.ListServiceSpecificCredentialsInput{UserName: name}))
	devices := must[*iam.ListMFADevicesOutput](t)(c.ListMFADevices(ctx, &iam.ListMFADevicesInput{UserName: name}))
	groups := must[*iam.ListGroupsForUserOutput](t)(c.ListGroupsForUser(ctx, &iam.ListGroupsForUserInput{UserName: name}))
	attached := must[*iam.ListAttachedUserPoliciesOutput](t)(c.ListAttachedUserPolicies(ctx, &iam.ListAttachedUserPoliciesInput{UserName: name}))
	if *certs.Certificates[0].CertificateId != cert || *keys.SSHPublicKeys[0].SSHPublicKeyId != ssh ||
		*services.ServiceSpecificCredentials[0].ServiceSpecificCredentialId != service || *devices.MFADevices[0].SerialNumber != serial ||
		*groups.Groups[0].GroupName != "g" || *attached.AttachedPolicies[0].PolicyArn != arn || *attached.AttachedPolicies[0].PolicyName != "p" {
		t.Error("a list does not hold what was set up")
	}
	_, err := c.DeleteVirtualMFADevice(ctx, &iam.DeleteVirtualMFADeviceInput{SerialNumber: &serial})
	wantCode(t, "deleting a device in use", err, "DeleteConflict")
	steps := []struct {
		what string
		do   func() error
	}{
		{"key", func() error {
			return second(c.DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{UserName: name, AccessKeyId: &key.ID}))
		}},
		{"policy", func() error {
			return second(c.DetachUserPolicy(ctx, &iam.DetachUserPolicyInput{UserName: name, PolicyArn: &arn}))
		}},
		{"inline policy", func() error {
			return second(c.DeleteUserPolicy(ctx, &iam.DeleteUserPolicyInput{UserName: name, PolicyName: aws.String("in")}))
		}},
		{"group", func() error {
			return second(c.RemoveUserFromGroup(ctx, &iam.RemoveUserFromGroupInput{UserName: name, GroupName: aws.String("g")}))
		}},
		{"login profile", func() error {
			return second(c.DeleteLoginProfile(ctx, &iam.DeleteLoginProfileInput{UserName: name}))
		}},
		{"device", func() error {
			return second(c.DeactivateMFADevice(ctx, &iam.DeactivateMFADeviceInput{UserName: name, SerialNumber: &serial}))
		}},
		{"certificate", func() error {
			return second(c.DeleteSigningCertificate(ctx, &iam.DeleteSigningCertificateInput{UserName: name, CertificateId: &cert}))
		}},
		{"SSH key", func() error {
			return second(c.DeleteSSHPublicKey(ctx, &iam.DeleteSSHPublicKeyInput{UserName: name, SSHPublicKeyId: &ssh}))
		}},
		{"service credential", func() error {
			return second(c.DeleteServiceSpecificCredential(ctx, &iam.DeleteServiceSpecificCredentialInput{UserName: name, ServiceSpecificCredentialId: &service}))
		}},
	}
	for _, step := range steps {
		_, err := c.DeleteUser(ctx, &iam.DeleteUserInput{UserName: name})
		wantCode(t, "DeleteUser before its "+step.what, err, "DeleteConflict")
		wantCode(t, "removing its "+step.what, step.do(), "")
		wantCode(t, "removing its "+step.what+" again", step.do(), "NoSuchEntity")
	}
	_, err = c.DeleteUser(ctx, &iam.DeleteUserInput{UserName: name})
	wantCode(t, "DeleteUser", err, "")
	if _, ok := s.User("u"); ok {
		t.Error("the user is still there")
	}
	if left := s.VirtualDevices(); len(left) != 1 {
		t.Errorf("virtual devices left: %q", left)
	}
	_, err = c.DeleteVirtualMFADevice(ctx, &iam.DeleteVirtualMFADeviceInput{SerialNumber: &serial})
	wantCode(t, "deleting a device without a user", err, "")
}

func second[T any](_ T, err error) error { return err }

func TestAccessKeys(t *testing.T) {
	s := awstest.New(t)
	ctx := t.Context()
	s.AddUser("u")
	s.Allow("u")
	first := s.AddKey("u")
	c := iamAs(s, first.ID, first.Secret, "")
	s.Advance(time.Hour)
	made := must[*iam.CreateAccessKeyOutput](t)(c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{})) // of the caller
	if *made.AccessKey.UserName != "u" || made.AccessKey.CreateDate.Sub(first.Created) < 59*time.Minute {
		t.Errorf("the key is of %s, made at %v", *made.AccessKey.UserName, made.AccessKey.CreateDate)
	}
	_, err := c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: aws.String("u")})
	wantCode(t, "a third key", err, "LimitExceeded")
	list := must[*iam.ListAccessKeysOutput](t)(c.ListAccessKeys(ctx, &iam.ListAccessKeysInput{}))
	if len(list.AccessKeyMetadata) != 2 {
		t.Errorf("%d keys are listed", len(list.AccessKeyMetadata))
	}
	next := stsAs(s, *made.AccessKey.AccessKeyId, *made.AccessKey.SecretAccessKey, "")
	who := must[*sts.GetCallerIdentityOutput](t)(next.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}))
	if *who.Arn != "arn:aws:iam::123456789012:user/u" || *who.Account != "123456789012" {
		t.Errorf("the new key is of %s", *who.Arn)
	}
	status := func(to iamtypes.StatusType) {
		t.Helper()
		_, err := c.UpdateAccessKey(ctx, &iam.UpdateAccessKeyInput{AccessKeyId: made.AccessKey.AccessKeyId, Status: to})
		wantCode(t, "UpdateAccessKey", err, "")
	}
	status(iamtypes.StatusTypeInactive)
	_, err = next.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	wantCode(t, "an inactive key", err, "InvalidClientTokenId")
	status(iamtypes.StatusTypeActive)
	_, err = next.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	wantCode(t, "an active key", err, "")
	other := s.AddUser("other")
	_, err = c.DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{UserName: &other.Name, AccessKeyId: &first.ID})
	wantCode(t, "a key of another user", err, "NoSuchEntity")
	_, err = iamAs(s, *made.AccessKey.AccessKeyId, *made.AccessKey.SecretAccessKey, "").DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{AccessKeyId: &first.ID})
	wantCode(t, "DeleteAccessKey", err, "")
	_, err = c.GetUser(ctx, &iam.GetUserInput{})
	wantCode(t, "a deleted key", err, "InvalidClientTokenId")
	if keys := s.Keys("u"); len(keys) != 1 || keys[0].Secret != *made.AccessKey.SecretAccessKey {
		t.Errorf("%d keys are left", len(keys))
	}
}

func TestSignatures(t *testing.T) {
	s := awstest.New(t)
	key, secret := s.Root()
	in := &sts.GetCallerIdentityInput{}
	for _, test := range []struct{ name, key, secret, token, want string }{
		{"right", key, secret, "", ""},
		{"wrong secret", key, secret + "x", "", "SignatureDoesNotMatch"},
		{"unknown key", "AKIAAAAAAAAAAAAAAAAA", secret, "", "InvalidClientTokenId"},
		{"token of nothing", key, secret, "token", "InvalidClientTokenId"},
	} {
		_, err := stsAs(s, test.key, test.secret, test.token).GetCallerIdentity(t.Context(), in)
		wantCode(t, test.name, err, test.want)
	}
	anonymous := config(s.URL, "", "", "")
	anonymous.Credentials = aws.AnonymousCredentials{}
	_, err := sts.NewFromConfig(anonymous).GetCallerIdentity(t.Context(), in)
	wantCode(t, "no signature", err, "MissingAuthenticationToken")
}

// bend changes requests after they have been signed.
type bend func(*http.Request)

func (f bend) RoundTrip(r *http.Request) (*http.Response, error) {
	f(r)
	return http.DefaultTransport.RoundTrip(r)
}

func TestBentRequestsAreRefused(t *testing.T) {
	s := awstest.New(t)
	key, secret := s.Root()
	call := func(f bend) error {
		c := config(s.URL, key, secret, "")
		c.HTTPClient = &http.Client{Transport: f}
		return second(sts.NewFromConfig(c).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{}))
	}
	for _, test := range []struct {
		name string
		f    bend
		want string
	}{
		{"as it is", func(*http.Request) {}, ""},
		{"another path", func(r *http.Request) { r.URL.Path = "/x" }, "SignatureDoesNotMatch"},
		{"another date", func(r *http.Request) { r.Header.Set("X-Amz-Date", "20200101T000000Z") }, "SignatureDoesNotMatch"},
		{"another content type", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, "SignatureDoesNotMatch"},
		{"for another service", func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "/sts/", "/iam/", 1))
		}, "SignatureDoesNotMatch"},
		{"half a header", func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x") }, "IncompleteSignature"},
	} {
		wantCode(t, test.name, call(test.f), test.want)
	}
}

func TestPolicies(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	s.AddUser("u")
	put := func(name, document string) error {
		return second(c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: aws.String("u"), PolicyName: &name, PolicyDocument: &document}))
	}
	statement := func(s string) string { return `{"Version":"2012-10-17","Statement":` + s + `}` }
	for document, want := range map[string]string{
		policy: "",
		statement(`{"Effect":"Deny","NotAction":["a:b"],"NotResource":"*","Sid":"x","Condition":{}}`): "",
		`{`:             "MalformedPolicyDocument",
		`"text"`:        "MalformedPolicyDocument",
		`{}`:            "MalformedPolicyDocument",
		statement(`[]`): "MalformedPolicyDocument",
		statement(`[{"Effect":"Perhaps","Action":"*","Resource":"*"}]`):                                   "MalformedPolicyDocument",
		statement(`[{"Effect":"Allow","Resource":"*"}]`):                                                  "MalformedPolicyDocument",
		statement(`[{"Effect":"Allow","Action":"*"}]`):                                                    "MalformedPolicyDocument",
		statement(`[{"Effect":"Allow","Action":"*","Resource":"*","Principal":"*"}]`):                     "MalformedPolicyDocument",
		`{"Version":"2020-01-01","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`:           "MalformedPolicyDocument",
		`{"Version":"2012-10-17","Other":1,"Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`: "MalformedPolicyDocument",
		policy + policy: "MalformedPolicyDocument",
	} {
		wantCode(t, document, put("p", document), want)
	}
	got := must[*iam.GetUserPolicyOutput](t)(c.GetUserPolicy(ctx, &iam.GetUserPolicyInput{UserName: aws.String("u"), PolicyName: aws.String("p")}))
	if text, err := url.QueryUnescape(*got.PolicyDocument); err != nil || text == *got.PolicyDocument || !strings.Contains(text, `"Version"`) {
		t.Errorf("the document is answered as %s", *got.PolicyDocument)
	}
	sized := func(n int) string {
		return statement(`{"Effect":"Allow","Action":"` + strings.Repeat("a", n) + `","Resource":"*"}`)
	}
	base := len(sized(0))
	if _, err := c.DeleteUserPolicy(ctx, &iam.DeleteUserPolicyInput{UserName: aws.String("u"), PolicyName: aws.String("p")}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "2,048 characters and white space", put("big", strings.Repeat(" ", 100)+sized(2048-base)), "")
	wantCode(t, "2,049 characters", put("big", sized(2049-base)), "LimitExceeded")
	wantCode(t, "a second policy", put("more", policy), "LimitExceeded")

	attach := func(arn string) error {
		return second(c.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: aws.String("u"), PolicyArn: &arn}))
	}
	wantCode(t, "no such policy", attach("arn:aws:iam::123456789012:policy/none"), "NoSuchEntity")
	wantCode(t, "no ARN", attach("a policy without an ARN"), "InvalidInput")
	for i := range 10 {
		wantCode(t, "attaching", attach(s.AddPolicy(fmt.Sprint("p", i))), "")
	}
	wantCode(t, "an eleventh policy", attach("arn:aws:iam::aws:policy/ReadOnlyAccess"), "LimitExceeded")
	wantCode(t, "one of the ten again", attach("arn:aws:iam::123456789012:policy/p3"), "")

	s.AddGroup(awstest.Group{Name: "g", Policies: []string{"arn:aws:iam::aws:policy/ReadOnlyAccess"}, Inline: map[string]string{"in": policy}})
	names := must[*iam.ListGroupPoliciesOutput](t)(c.ListGroupPolicies(ctx, &iam.ListGroupPoliciesInput{GroupName: aws.String("g")}))
	doc := must[*iam.GetGroupPolicyOutput](t)(c.GetGroupPolicy(ctx, &iam.GetGroupPolicyInput{GroupName: aws.String("g"), PolicyName: aws.String("in")}))
	arns := must[*iam.ListAttachedGroupPoliciesOutput](t)(c.ListAttachedGroupPolicies(ctx, &iam.ListAttachedGroupPoliciesInput{GroupName: aws.String("g")}))
	if text, _ := url.PathUnescape(*doc.PolicyDocument); !slices.Equal(names.PolicyNames, []string{"in"}) || text != policy || len(arns.AttachedPolicies) != 1 {
		t.Errorf("the group has %q, %s, %d attached", names.PolicyNames, text, len(arns.AttachedPolicies))
	}
	_, err := c.AddUserToGroup(ctx, &iam.AddUserToGroupInput{UserName: aws.String("u"), GroupName: aws.String("none")})
	wantCode(t, "no such group", err, "NoSuchEntity")
}

func TestLists(t *testing.T) {
	s := awstest.New(t, awstest.PageSize(2))
	c, _ := root(s)
	for i := range 5 {
		s.AddUser(fmt.Sprint("u", i))
	}
	pages := iam.NewListUsersPaginator(c, &iam.ListUsersInput{})
	var names []string
	for pages.HasMorePages() {
		page := must[*iam.ListUsersOutput](t)(pages.NextPage(t.Context()))
		if len(page.Users) > 2 {
			t.Errorf("a page of %d", len(page.Users))
		}
		for _, u := range page.Users {
			names = append(names, *u.UserName)
			if *u.UserName != "root-user" {
				s.DropUser(*u.UserName) // does not hide what follows
			}
		}
	}
	if want := []string{"root-user", "u0", "u1", "u2", "u3", "u4"}; !slices.Equal(names, want) {
		t.Errorf("the users are %q, want %q", names, want)
	}
}

func TestAssumeRole(t *testing.T) {
	s := awstest.New(t)
	_, c := root(s)
	ctx := t.Context()
	near := s.AddRole(awstest.Role{Name: "near", MaxTTL: 2 * time.Hour})
	far := s.In("222222222222").AddRole(awstest.Role{Name: "far", ExternalID: "pass", Trusted: []string{near}, MaxTTL: 12 * time.Hour})
	s.In("222222222222").AddUser("there")
	assume := func(c *sts.Client, arn string, change func(*sts.AssumeRoleInput)) (*sts.AssumeRoleOutput, error) {
		in := &sts.AssumeRoleInput{RoleArn: &arn, RoleSessionName: aws.String("me")}
		change(in)
		return c.AssumeRole(ctx, in)
	}
	nothing := func(*sts.AssumeRoleInput) {}
	got := must[*sts.AssumeRoleOutput](t)(assume(c, near, nothing))
	if *got.AssumedRoleUser.Arn != "arn:aws:sts::123456789012:assumed-role/near/me" || !strings.HasSuffix(*got.AssumedRoleUser.AssumedRoleId, ":me") {
		t.Errorf("assumed as %+v", got.AssumedRoleUser)
	}
	if d := got.Credentials.Expiration.Sub(s.Now()); d < 59*time.Minute || d > time.Hour {
		t.Errorf("it expires in %v", d)
	}
	for name, test := range map[string]struct {
		arn    string
		change func(*sts.AssumeRoleInput)
		want   string
	}{
		"no such role": {"arn:aws:iam::123456789012:role/none", nothing, "AccessDenied"},
		"not trusted":  {far, func(in *sts.AssumeRoleInput) { in.ExternalId = aws.String("pass") }, "AccessDenied"},
		"longest":      {near, func(in *sts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(7200) }, ""},
		"longer":       {near, func(in *sts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(7201) }, "ValidationError"},
		"malformed":    {near, func(in *sts.AssumeRoleInput) { in.Policy = aws.String("{}") }, "MalformedPolicyDocument"},
		"limited":      {near, func(in *sts.AssumeRoleInput) { in.Policy = aws.String(policy) }, ""},
		"tagged": {near, func(in *sts.AssumeRoleInput) {
			in.Tags = []ststypes.Tag{{Key: aws.String("a"), Value: aws.String("b")}}
		}, ""},
		"with a tag of aws": {near, func(in *sts.AssumeRoleInput) {
			in.Tags = []ststypes.Tag{{Key: aws.String("aws:a"), Value: aws.String("b")}}
		}, "ValidationError"},
	} {
		_, err := assume(c, test.arn, test.change)
		wantCode(t, name, err, test.want)
	}
	s.PackedLimit(60)
	_, err := assume(c, near, func(in *sts.AssumeRoleInput) { in.Policy = aws.String(policy) })
	wantCode(t, "too large when packed", err, "PackedPolicyTooLarge")
	s.PackedLimit(4096)

	// Through one role into another account.
	chained := stsAs(s, *got.Credentials.AccessKeyId, *got.Credentials.SecretAccessKey, *got.Credentials.SessionToken)
	_, err = assume(chained, far, nothing)
	wantCode(t, "without the external id", err, "AccessDenied")
	_, err = assume(chained, far, func(in *sts.AssumeRoleInput) { in.ExternalId, in.DurationSeconds = aws.String("pass"), aws.Int32(3601) })
	wantCode(t, "an hour is the most when chained", err, "ValidationError")
	there := must[*sts.AssumeRoleOutput](t)(assume(chained, far, func(in *sts.AssumeRoleInput) { in.ExternalId = aws.String("pass") }))
	remote := iamAs(s, *there.Credentials.AccessKeyId, *there.Credentials.SecretAccessKey, *there.Credentials.SessionToken)
	u := must[*iam.GetUserOutput](t)(remote.GetUser(ctx, &iam.GetUserInput{UserName: aws.String("there")}))
	if *u.User.Arn != "arn:aws:iam::222222222222:user/there" {
		t.Errorf("the user there is %s", *u.User.Arn)
	}
	_, err = remote.GetUser(ctx, &iam.GetUserInput{})
	wantCode(t, "a role asks for itself", err, "ValidationError")
	_, err = chained.GetFederationToken(ctx, &sts.GetFederationTokenInput{Name: aws.String("fed")})
	wantCode(t, "a role federates", err, "AccessDenied")
	s.Advance(time.Hour + time.Second)
	_, err = chained.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	wantCode(t, "after they have expired", err, "ExpiredToken")
}

func TestFederationAndSessionTokens(t *testing.T) {
	s := awstest.New(t)
	_, c := root(s)
	ctx := t.Context()
	as := func(k *ststypes.Credentials) (*iam.Client, *sts.Client) {
		return iamAs(s, *k.AccessKeyId, *k.SecretAccessKey, *k.SessionToken), stsAs(s, *k.AccessKeyId, *k.SecretAccessKey, *k.SessionToken)
	}
	fed := must[*sts.GetFederationTokenOutput](t)(c.GetFederationToken(ctx, &sts.GetFederationTokenInput{Name: aws.String("fed"), Policy: aws.String(policy), DurationSeconds: aws.Int32(900)}))
	i, p := as(fed.Credentials)
	who := must[*sts.GetCallerIdentityOutput](t)(p.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}))
	if *who.Arn != "arn:aws:sts::123456789012:federated-user/fed" || *who.Arn != *fed.FederatedUser.Arn {
		t.Errorf("the federated user is %s", *who.Arn)
	}
	_, err := i.ListUsers(ctx, &iam.ListUsersInput{})
	wantCode(t, "a federated user calls IAM", err, "InvalidClientTokenId")
	_, err = p.GetSessionToken(ctx, &sts.GetSessionTokenInput{})
	wantCode(t, "a federated user calls GetSessionToken", err, "AccessDenied")

	plain := must[*sts.GetSessionTokenOutput](t)(c.GetSessionToken(ctx, &sts.GetSessionTokenInput{}))
	i, p = as(plain.Credentials)
	who = must[*sts.GetCallerIdentityOutput](t)(p.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}))
	if *who.Arn != "arn:aws:iam::123456789012:user/root-user" {
		t.Errorf("the session is of %s", *who.Arn)
	}
	_, err = i.ListUsers(ctx, &iam.ListUsersInput{})
	wantCode(t, "a session without MFA calls IAM", err, "InvalidClientTokenId")
	serial, code := s.AddMFADevice("root-user", "")
	_, err = c.GetSessionToken(ctx, &sts.GetSessionTokenInput{SerialNumber: &serial, TokenCode: aws.String("000000")})
	wantCode(t, "a wrong code", err, "AccessDenied")
	strong := must[*sts.GetSessionTokenOutput](t)(c.GetSessionToken(ctx, &sts.GetSessionTokenInput{SerialNumber: &serial, TokenCode: &code}))
	i, _ = as(strong.Credentials)
	_, err = i.ListUsers(ctx, &iam.ListUsersInput{})
	wantCode(t, "a session with MFA calls IAM", err, "")
	for _, call := range s.Calls() {
		if call.Params["TokenCode"] == code {
			t.Error("a code is in the record of calls")
		}
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	s := awstest.New(t)
	ctx := t.Context()
	s.AddUser("u")
	k := s.AddKey("u")
	c := iamAs(s, k.ID, k.Secret, "")
	list := func() error { return second(c.ListUsers(ctx, &iam.ListUsersInput{})) }
	wantCode(t, "nothing allowed", list(), "AccessDenied")
	s.Allow("u")
	wantCode(t, "allowed", list(), "")
	s.Deny("u")
	wantCode(t, "denied", list(), "AccessDenied")
	s.Attach("u", "arn:aws:iam::aws:policy/AdministratorAccess")
	wantCode(t, "an administrator", list(), "")
}

func TestFaults(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	create := func(name string) error {
		return second(c.CreateUser(t.Context(), &iam.CreateUserInput{UserName: &name}))
	}
	there := func(name string) bool { _, ok := s.User(name); return ok }

	s.FailNext(1, "CreateUser", awstest.Fault{Code: "Throttling", RetryAfter: time.Second})
	wantCode(t, "throttled", create("a"), "Throttling")
	wantCode(t, "the next one", create("a"), "")

	s.FailNext(1, "CreateUser", awstest.Fault{Status: 503, Code: "ServiceUnavailable", When: awstest.AfterCommit})
	wantCode(t, "lost answer", create("b"), "ServiceUnavailable")
	if !there("b") {
		t.Error("AfterCommit did not commit")
	}
	s.FailNext(1, "CreateUser", awstest.Fault{Drop: true})
	if err := create("c"); err == nil || there("c") {
		t.Errorf("dropped before commit: %v, there: %v", err, there("c"))
	}
	var seen atomic.Bool // by Then
	s.FailNext(1, "CreateUser", awstest.Fault{Drop: true, When: awstest.AfterCommit, Then: func() { seen.Store(there("c")) }})
	if err := create("c"); err == nil || !there("c") || !seen.Load() {
		t.Errorf("dropped after commit: %v, there: %v, when Then ran: %v", err, there("c"), seen.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.Fail(func(awstest.Call) awstest.Fault { cancel(); return awstest.Fault{Delay: time.Hour} })
	if _, err := c.CreateUser(ctx, &iam.CreateUserInput{UserName: aws.String("d")}); err == nil {
		t.Error("a request with a delay of an hour was answered")
	}
	s.Fail(nil)
	if got := s.Actions(); len(got) != 6 {
		t.Errorf("the calls are %q", got)
	}
	last := s.Calls()[5]
	key, _ := s.Root()
	if last.Service != "iam" || last.Params["UserName"] != "d" || last.AccessKey != key || last.Region != "eu-west-1" || last.Endpoint != s.URL {
		t.Errorf("the last call is %+v", last)
	}
}

func TestPropagation(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	s.Propagation(10 * time.Second)
	name := aws.String("u")
	must[*iam.CreateUserOutput](t)(c.CreateUser(ctx, &iam.CreateUserInput{UserName: name}))
	_, err := c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: name})
	wantCode(t, "too early for a key", err, "NoSuchEntity")
	_, err = c.CreateUser(ctx, &iam.CreateUserInput{UserName: name})
	wantCode(t, "the name is taken at once", err, "EntityAlreadyExists")
	s.Advance(10 * time.Second)
	k := must[*iam.CreateAccessKeyOutput](t)(c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: name})).AccessKey
	as := stsAs(s, *k.AccessKeyId, *k.SecretAccessKey, "")
	_, err = as.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	wantCode(t, "a new key", err, "InvalidClientTokenId")
	s.Advance(10 * time.Second)
	_, err = as.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	wantCode(t, "ten seconds later", err, "")
}

func TestTrustIsEnoughToAssume(t *testing.T) {
	s := awstest.New(t)
	ctx := t.Context()
	who := s.AddUser("u")
	k := s.AddKey("u")
	hub := s.AddRole(awstest.Role{Name: "hub", Powerless: true, Trusted: []string{who.ARN}})
	spoke := s.In("222222222222").AddRole(awstest.Role{Name: "spoke", Trusted: []string{hub}})
	open := s.AddRole(awstest.Role{Name: "open"})
	c := stsAs(s, k.ID, k.Secret, "")
	assume := func(arn string) (*sts.AssumeRoleOutput, error) {
		return c.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &arn, RoleSessionName: aws.String("me")})
	}
	wantCode(t, "a role that trusts no user by name", second(assume(open)), "AccessDenied")
	wantCode(t, "a role that trusts another role", second(assume(spoke)), "AccessDenied")
	got := must[*sts.AssumeRoleOutput](t)(assume(hub)).Credentials
	_, err := iamAs(s, *got.AccessKeyId, *got.SecretAccessKey, *got.SessionToken).ListUsers(ctx, &iam.ListUsersInput{})
	wantCode(t, "a powerless role", err, "AccessDenied")
	c = stsAs(s, *got.AccessKeyId, *got.SecretAccessKey, *got.SessionToken)
	wantCode(t, "through the role", second(assume(spoke)), "")
}

func TestCredentialsEndWithTheirUser(t *testing.T) {
	s := awstest.New(t)
	_, c := root(s)
	got := must[*sts.GetSessionTokenOutput](t)(c.GetSessionToken(t.Context(), &sts.GetSessionTokenInput{})).Credentials
	s.DropUser("root-user")
	_, err := c.GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
	wantCode(t, "the key of a removed user", err, "InvalidClientTokenId")
	_, err = stsAs(s, *got.AccessKeyId, *got.SecretAccessKey, *got.SessionToken).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
	wantCode(t, "the session of a removed user", err, "InvalidClientTokenId")
}

// TestMismatchEchoesWhatWasSigned: clients have to expect their session token in an error.
func TestMismatchEchoesWhatWasSigned(t *testing.T) {
	s := awstest.New(t)
	_, c := root(s)
	got := must[*sts.GetSessionTokenOutput](t)(c.GetSessionToken(t.Context(), &sts.GetSessionTokenInput{})).Credentials
	_, err := stsAs(s, *got.AccessKeyId, "wrong", *got.SessionToken).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
	wantCode(t, "a wrong secret", err, "SignatureDoesNotMatch")
	if err == nil || !strings.Contains(err.Error(), *got.SessionToken) {
		t.Error("the token is not echoed")
	}
}

func BenchmarkUser(b *testing.B) {
	s := awstest.New(b, awstest.Unrecorded())
	c, _ := root(s)
	for n := 0; b.Loop(); n++ {
		name := aws.String(fmt.Sprint("u", n))
		if _, err := c.CreateUser(b.Context(), &iam.CreateUserInput{UserName: name}); err != nil {
			b.Fatal(err)
		}
		if _, err := c.DeleteUser(b.Context(), &iam.DeleteUserInput{UserName: name}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestFurtherAddress(t *testing.T) {
	s := awstest.New(t)
	key, secret := s.Root()
	second := s.Listen()
	if _, err := sts.NewFromConfig(config(second, key, secret, "")).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{}); err != nil {
		t.Fatal(err)
	}
	if got := s.Calls()[0].Endpoint; got != second || got == s.URL {
		t.Errorf("the call came to %s, want %s", got, second)
	}
}

func TestPagesOfServiceCredentials(t *testing.T) {
	s := awstest.New(t, awstest.PageSize(1))
	c, _ := root(s)
	s.AddUser("u")
	want := []string{s.AddServiceCredential("u"), s.AddServiceCredential("u"), s.AddServiceCredential("u")}
	slices.Sort(want)
	var got []string
	in := &iam.ListServiceSpecificCredentialsInput{UserName: aws.String("u")}
	for more := true; more; {
		page := must[*iam.ListServiceSpecificCredentialsOutput](t)(c.ListServiceSpecificCredentials(t.Context(), in))
		for _, one := range page.ServiceSpecificCredentials {
			got = append(got, *one.ServiceSpecificCredentialId)
		}
		in.Marker, more = page.Marker, page.IsTruncated
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d credentials are listed, want 3", len(got))
	}
}

func TestWatchPassesOnWhatIsSigned(t *testing.T) {
	s := awstest.New(t)
	key, secret := s.Root()
	seen := make(chan string, 10)
	url := model.Watch(t, s.URL, func(v model.Violation) { seen <- v.String() })
	c := iam.NewFromConfig(config(url, key, secret, ""))
	_, err := c.GetUser(t.Context(), &iam.GetUserInput{})
	wantCode(t, "through the proxy", err, "")
	if len(seen) > 0 {
		t.Errorf("the judge says %q", <-seen)
	}

	other, violations := lenient(t)
	url = model.Watch(t, other.URL, func(v model.Violation) { seen <- v.String() })
	key, secret = other.Root()
	_, err = iam.NewFromConfig(config(url, key, secret, "")).ListUsers(t.Context(), &iam.ListUsersInput{MaxItems: aws.Int32(5000)})
	wantCode(t, "too many through the proxy", err, "ValidationError")
	want := []string{"ListUsers: MaxItems: more than 1000"}
	if got := violations(); !slices.Equal(got, want) || len(seen) != 1 || <-seen != want[0] {
		t.Errorf("the server saw %q, want %q, and the proxy the same", got, want)
	}
}

// TestJudgeFailsTheTest: without the option Judge a bad request is the failure of the test that made it.
func TestJudgeFailsTheTest(t *testing.T) {
	inner := &failing{TB: t}
	s := awstest.New(inner)
	c, _ := root(s)
	secretName := "no such/name"
	_, _ = c.GetUser(t.Context(), &iam.GetUserInput{UserName: &secretName})
	inner.mu.Lock()
	defer inner.mu.Unlock()
	if len(inner.said) != 1 || !strings.Contains(inner.said[0], "GetUser: UserName: does not match") || strings.Contains(inner.said[0], secretName) {
		t.Errorf("the test was told %q", inner.said)
	}
}

// failing keeps what a test would fail with.
type failing struct {
	testing.TB
	mu   sync.Mutex
	said []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func TestTagsAndNamesAreListed(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	name := aws.String("u")
	s.AddUser("u")
	tag := func(from, to int) error {
		in := &iam.TagUserInput{UserName: name}
		for n := from; n < to; n++ {
			in.Tags = append(in.Tags, iamtypes.Tag{Key: aws.String(fmt.Sprintf("k%02d", n)), Value: aws.String("v")})
		}
		return second(c.TagUser(ctx, in))
	}
	wantCode(t, "50 tags", tag(0, 50), "")
	wantCode(t, "one of them again", tag(49, 50), "")
	wantCode(t, "one more", tag(50, 51), "LimitExceeded")
	tags := must[*iam.ListUserTagsOutput](t)(c.ListUserTags(ctx, &iam.ListUserTagsInput{UserName: name})).Tags
	if len(tags) != 50 || *tags[7].Key != "k07" {
		t.Errorf("%d tags are listed", len(tags))
	}
	_, err := c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: name, PolicyName: aws.String("in"), PolicyDocument: aws.String(policy)})
	wantCode(t, "PutUserPolicy", err, "")
	names := must[*iam.ListUserPoliciesOutput](t)(c.ListUserPolicies(ctx, &iam.ListUserPoliciesInput{UserName: name})).PolicyNames
	if !slices.Equal(names, []string{"in"}) {
		t.Errorf("the inline policies are %q", names)
	}
	login := func() error { return second(c.GetLoginProfile(ctx, &iam.GetLoginProfileInput{UserName: name})) }
	wantCode(t, "no login profile", login(), "NoSuchEntity")
	s.AddLoginProfile("u")
	wantCode(t, "a login profile", login(), "")
}

func TestWhatTestsMayDo(t *testing.T) {
	s := awstest.New(t)
	c, _ := root(s)
	ctx := t.Context()
	s.AddUser("u")
	first, next := s.AddKey("u"), s.AddKey("u")
	s.AddKey("u") // above the quota
	valid := func(k awstest.Key) error {
		return second(stsAs(s, k.ID, k.Secret, "").GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}))
	}
	wantCode(t, "a key", valid(first), "")
	for _, k := range []struct {
		awstest.Key
		used bool
	}{{first, true}, {next, false}} {
		last := must[*iam.GetAccessKeyLastUsedOutput](t)(c.GetAccessKeyLastUsed(ctx, &iam.GetAccessKeyLastUsedInput{AccessKeyId: &k.ID}))
		if *last.UserName != "u" || (last.AccessKeyLastUsed.LastUsedDate != nil) != k.used {
			t.Errorf("the key is of %s, last used %v", *last.UserName, last.AccessKeyLastUsed.LastUsedDate)
		}
	}
	s.Deactivate(first.ID)
	s.DropKey(next.ID)
	wantCode(t, "an inactive key", valid(first), "InvalidClientTokenId")
	wantCode(t, "a dropped key", valid(next), "InvalidClientTokenId")
	list := must[*iam.ListAccessKeysOutput](t)(c.ListAccessKeys(ctx, &iam.ListAccessKeysInput{UserName: aws.String("u")})).AccessKeyMetadata
	inactive := slices.IndexFunc(list, func(k iamtypes.AccessKeyMetadata) bool { return k.Status == iamtypes.StatusTypeInactive })
	if len(list) != 2 || inactive < 0 || *list[inactive].AccessKeyId != first.ID {
		t.Errorf("%d keys are listed, the inactive one is number %d", len(list), inactive)
	}
	if users := s.Users(); len(users) != 2 || users[1].Name != "u" || len(users[1].Keys) != 2 {
		t.Errorf("%d users", len(users))
	}
	s.Forget()
	if calls := s.Calls(); len(calls) != 0 {
		t.Errorf("%d calls after Forget", len(calls))
	}
	s.KeyPropagation(time.Hour)
	must[*iam.CreateUserOutput](t)(c.CreateUser(ctx, &iam.CreateUserInput{UserName: aws.String("w")}))
	k := must[*iam.CreateAccessKeyOutput](t)(c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: aws.String("w")})).AccessKey
	wantCode(t, "a new key", valid(awstest.Key{ID: *k.AccessKeyId, Secret: *k.SecretAccessKey}), "InvalidClientTokenId")
}
