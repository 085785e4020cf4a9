package aws_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

const readOnly = "arn:aws:iam::aws:policy/ReadOnlyAccess"

// connect returns a client of a provider, as the user of its root credentials.
func connect(t *testing.T, s *awstest.Server, change func(*aws.Options)) *aws.Client {
	t.Helper()
	key, secret := s.Root()
	return dial(t, s.URL, func(o *aws.Options) {
		o.AccessKey, o.SecretKey = key, engines.Sensitive(secret)
		if change != nil {
			change(o)
		}
	})
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUsers(t *testing.T) {
	s := awstest.New(t)
	boundary := s.AddPolicy("limits")
	s.AddGroup(awstest.Group{Name: "readers"})
	c := connect(t, s, nil)
	ctx := t.Context()

	tags := map[string]string{"team": "blue", "by": "coffer"}
	made := must[aws.User](t)(c.CreateUser(ctx, aws.NewUser{Name: "u", Path: "/a/", BoundaryARN: boundary, Tags: tags}))
	if made.Name != "u" || made.ID == "" || made.Path != "/a/" || !strings.HasSuffix(made.ARN, ":user/a/u") || made.CreatedAt.IsZero() {
		t.Errorf("CreateUser = %+v", made)
	}
	do(t, c.AttachUserPolicy(ctx, "u", readOnly))
	do(t, c.PutUserPolicy(ctx, "u", "own", document))
	do(t, c.AddUserToGroup(ctx, "u", "readers"))
	got, _ := s.User("u")
	if got.Boundary != boundary || !maps.Equal(got.Tags, tags) || !slices.Equal(got.Policies, []string{readOnly}) ||
		got.Inline["own"] != document || !slices.Equal(got.Groups, []string{"readers"}) {
		t.Errorf("the provider has %+v", got)
	}
	if found := must[aws.User](t)(c.GetUser(ctx, "u")); found.ID != made.ID || !maps.Equal(found.Tags, tags) {
		t.Errorf("GetUser = %+v, want %+v with tags", found, made)
	}
	if self := must[aws.User](t)(c.GetUser(ctx, "")); self.Name != "root-user" {
		t.Errorf("GetUser without a name = %+v, want the caller", self)
	}
	if _, err := c.CreateUser(ctx, aws.NewUser{Name: "U"}); aws.KindOf(err) != aws.Exists {
		t.Errorf("a second user fails with %v, want Exists", err)
	}
	if _, err := c.GetUser(ctx, "v"); aws.KindOf(err) != aws.NotFound {
		t.Errorf("GetUser of none fails with %v, want NotFound", err)
	}
	if err := c.PutUserPolicy(ctx, "u", "bad", "{}"); aws.KindOf(err) != aws.Invalid {
		t.Errorf("a malformed policy fails with %v, want Invalid", err)
	}
}

func TestKeys(t *testing.T) {
	for _, user := range []string{"u", ""} {
		t.Run(fmt.Sprintf("of %q", user), func(t *testing.T) {
			s := awstest.New(t, awstest.PageSize(1))
			s.AddUser("u")
			c := connect(t, s, nil)
			ctx := t.Context()
			before := must[[]aws.Key](t)(c.ListAccessKeys(ctx, user))

			s.Advance(time.Hour)
			made := must[aws.Credentials](t)(c.CreateAccessKey(ctx, user))
			if who, err := c.CallerIdentity(ctx, made); err != nil || !strings.HasPrefix(who, "arn:aws:iam::123456789012:user/") {
				t.Errorf("the key is of %q, %v", who, err)
			}
			if !made.ExpiresAt.IsZero() || made.SessionToken != "" {
				t.Error("the key looks like a temporary one")
			}
			if user == "u" {
				s.Advance(time.Hour)
				made = must[aws.Credentials](t)(c.CreateAccessKey(ctx, user))
			}
			keys := must[[]aws.Key](t)(c.ListAccessKeys(ctx, user))
			if len(keys) != 2 || len(before) > 1 || keys[1].ID != made.AccessKey || !keys[0].CreatedAt.Before(keys[1].CreatedAt) || !keys[0].Active {
				t.Errorf("ListAccessKeys = %+v, want two, the oldest first", keys)
			}
			if _, err := c.CreateAccessKey(ctx, user); aws.KindOf(err) != aws.Limit {
				t.Errorf("a third key fails with %v, want Limit", err)
			}
			s.Deactivate(made.AccessKey)
			if keys := must[[]aws.Key](t)(c.ListAccessKeys(ctx, user)); keys[1].Active || !keys[0].Active {
				t.Errorf("ListAccessKeys = %+v, want the second inactive", keys)
			}
			do(t, c.DeleteAccessKey(ctx, user, made.AccessKey))
			if err := c.DeleteAccessKey(ctx, user, made.AccessKey); aws.KindOf(err) != aws.NotFound {
				t.Errorf("deleting a key again fails with %v, want NotFound", err)
			}
			if _, err := c.CallerIdentity(ctx, made); aws.KindOf(err) != aws.Denied {
				t.Errorf("a deleted key is met by %v, want Denied", err)
			}
		})
	}
}

func TestGroupPolicies(t *testing.T) {
	other := strings.ReplaceAll(document, "ec2:DescribeInstances", "s3:Get*+%/ü")
	s := awstest.New(t, awstest.PageSize(1))
	s.AddGroup(awstest.Group{Name: "g", Policies: []string{readOnly, s.AddPolicy("own")}, Inline: map[string]string{"a": document, "b": other}})
	s.AddGroup(awstest.Group{Name: "empty"})
	c := connect(t, s, nil)
	documents, arns, err := c.GroupPolicies(t.Context(), "g")
	if err != nil || !slices.Equal(documents, []string{document, other}) || len(arns) != 2 || !slices.Contains(arns, readOnly) {
		t.Errorf("GroupPolicies = %q, %q, %v", documents, arns, err)
	}
	if documents, arns, err = c.GroupPolicies(t.Context(), "empty"); err != nil || len(documents)+len(arns) != 0 {
		t.Errorf("GroupPolicies of an empty group = %q, %q, %v", documents, arns, err)
	}
	if _, _, err = c.GroupPolicies(t.Context(), "none"); aws.KindOf(err) != aws.NotFound {
		t.Errorf("GroupPolicies of no group fails with %v, want NotFound", err)
	}
}

// An answer is lost, and the call is repeated.
func TestCreateUserAfterALostAnswer(t *testing.T) {
	lost := awstest.Fault{When: awstest.AfterCommit, Drop: true}
	mine := map[string]string{"request": "1"}
	tests := []struct {
		name  string
		fault awstest.Fault
		tags  map[string]string
		there bool // of another client
		want  aws.Kind
		ok    bool
	}{
		{name: "made by the first attempt", fault: lost, tags: mine, ok: true},
		{name: "made by an attempt that answers trouble", fault: awstest.Fault{When: awstest.AfterCommit, Status: 500, Code: "ServiceFailure"}, tags: mine, ok: true},
		{name: "not made by the first attempt", fault: awstest.Fault{Drop: true}, tags: mine, ok: true},
		{name: "made by another client", fault: awstest.Fault{Drop: true}, tags: mine, there: true, want: aws.Exists},
		{name: "nothing to tell by", fault: lost, want: aws.Unavailable},
		{name: "throttled, then another client's", fault: awstest.Fault{Code: "Throttling"}, there: true, want: aws.Exists},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := awstest.New(t)
			if test.there {
				s.AddUser("u")
			}
			c := connect(t, s, func(o *aws.Options) { o.MaxRetries = 2 })
			s.FailNext(1, "CreateUser", test.fault)
			got, err := c.CreateUser(t.Context(), aws.NewUser{Name: "u", Tags: test.tags})
			if test.ok {
				if there, _ := s.User("u"); err != nil || got.ID != there.ID {
					t.Errorf("CreateUser = %+v, %v, want the user %q", got, err, there.ID)
				}
			} else if aws.KindOf(err) != test.want {
				t.Errorf("CreateUser fails with %v, want kind %d", err, test.want)
			}
		})
	}
}

// The user may be there, whatever is said to a later attempt.
func TestCreateUserStaysUnsure(t *testing.T) {
	for _, code := range []string{"AccessDenied", "InvalidClientTokenId", "Throttling", "NoSuchEntity", "LimitExceeded", "InvalidInput"} {
		t.Run(code, func(t *testing.T) {
			s := awstest.New(t)
			c := connect(t, s, func(o *aws.Options) { o.MaxRetries = 3 })
			attempts := 0
			s.Fail(func(awstest.Call) awstest.Fault {
				if attempts++; attempts == 1 {
					return awstest.Fault{When: awstest.AfterCommit, Drop: true}
				}
				return awstest.Fault{Code: code}
			})
			if _, err := c.CreateUser(t.Context(), aws.NewUser{Name: "u"}); aws.KindOf(err) != aws.Unavailable {
				t.Errorf("CreateUser fails with %v, want Unavailable", err)
			}
		})
	}
}

func TestNoSecondKeyAfterALostAnswer(t *testing.T) {
	s := awstest.New(t)
	s.AddUser("u")
	c := connect(t, s, func(o *aws.Options) { o.MaxRetries = 5 })
	s.FailNext(1, "CreateAccessKey", awstest.Fault{When: awstest.AfterCommit, Drop: true})
	if _, err := c.CreateAccessKey(t.Context(), "u"); aws.KindOf(err) != aws.Unavailable {
		t.Errorf("CreateAccessKey fails with %v, want Unavailable", err)
	}
	if n := len(s.Keys("u")); n != 1 {
		t.Errorf("%d keys, want one", n)
	}
}
