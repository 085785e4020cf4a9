package aws_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

func TestTemporaryCredentials(t *testing.T) {
	s := awstest.New(t)
	role := s.AddRole(awstest.Role{Name: "r", MaxTTL: 4 * time.Hour, ExternalID: "outside"})
	serial, code := s.AddMFADevice("root-user", "")
	c := connect(t, s, nil)
	ctx := t.Context()
	tests := []struct {
		name string
		call func() (aws.Credentials, error)
		ttl  time.Duration
		arn  string
	}{
		{"assumed role", func() (aws.Credentials, error) {
			return c.AssumeRole(ctx, aws.AssumeRole{
				RoleARN: role, Session: "someone", ExternalID: "outside", Policy: document, PolicyARNs: []string{readOnly},
				Tags: map[string]string{"b": "2", "a": "1"}, TTL: 2 * time.Hour,
			})
		}, 2 * time.Hour, "assumed-role/r/someone"},
		{"assumed role, its own time", func() (aws.Credentials, error) {
			return c.AssumeRole(ctx, aws.AssumeRole{RoleARN: role, Session: "someone", ExternalID: "outside"})
		}, time.Hour, "assumed-role/r/someone"},
		{"federation", func() (aws.Credentials, error) {
			return c.GetFederationToken(ctx, aws.Federation{Name: "guest", Policy: document, PolicyARNs: []string{readOnly}, Tags: map[string]string{"a": "1"}, TTL: 2 * time.Hour})
		}, 2 * time.Hour, "federated-user/guest"},
		{"session", func() (aws.Credentials, error) { return c.GetSessionToken(ctx, 15*time.Minute, aws.MFA{}) }, 15 * time.Minute, "user/root-user"},
		{"session with MFA", func() (aws.Credentials, error) {
			return c.GetSessionToken(ctx, 15*time.Minute, aws.MFA{Serial: serial, Code: code})
		}, 15 * time.Minute, "user/root-user"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.call()
			if err != nil {
				t.Fatal(err)
			}
			if left := got.ExpiresAt.Sub(s.Now()); left > test.ttl || left < test.ttl-time.Minute {
				t.Errorf("they last %v, want %v", left, test.ttl)
			}
			if got.ARN != "" && !strings.HasSuffix(got.ARN, test.arn) || got.ARN == "" && !strings.HasPrefix(test.name, "session") {
				t.Errorf("they are of %q, want …%s", got.ARN, test.arn)
			}
			if who, err := c.CallerIdentity(ctx, got); err != nil || !strings.HasSuffix(who, test.arn) {
				t.Errorf("CallerIdentity = %q, %v, want …%s", who, err, test.arn)
			}
		})
	}
	if who, err := c.CallerIdentity(ctx, aws.Credentials{}); err != nil || !strings.HasSuffix(who, ":user/root-user") {
		t.Errorf("CallerIdentity of the client = %q, %v", who, err)
	}
	s.PackedLimit(10)
	if _, err := tests[0].call(); aws.KindOf(err) != aws.Invalid {
		t.Errorf("a session that is too large fails with %v, want Invalid", err)
	}
}

func TestAnAnswerWithoutCredentials(t *testing.T) {
	s := newScripted(t, func(w http.ResponseWriter, _ *http.Request, form url.Values) {
		result(w, form.Get("Action"), "<Credentials><AccessKeyId>ASIAXXXXXXXXXXXXXXXX</AccessKeyId></Credentials>")
	})
	c := dial(t, s.URL, nil)
	for _, action := range []string{"AssumeRole", "GetFederationToken", "GetSessionToken", "CreateAccessKey", "GetUser", "CreateUser"} {
		if err := calls()[action](t, c); aws.KindOf(err) != aws.Unavailable {
			t.Errorf("%s fails with %v, want Unavailable", action, err)
		}
	}
}

func TestRolesThatAreGoneThrough(t *testing.T) {
	s := awstest.New(t)
	other := s.In("222222222222")
	first := s.AddRole(awstest.Role{Name: "first", ExternalID: "outside"})
	second := other.AddRole(awstest.Role{Name: "second", Trusted: []string{first}})
	other.AddUser("u")
	c := connect(t, s, func(o *aws.Options) {
		o.AssumeRoles = []aws.AssumeRole{{RoleARN: first, ExternalID: "outside"}, {RoleARN: second, Session: "us"}}
	})
	ctx := t.Context()
	for range 2 {
		if u, err := c.GetUser(ctx, "u"); err != nil || !strings.Contains(u.ARN, other.ID) {
			t.Errorf("GetUser = %+v, %v, want one of the other account", u, err)
		}
		if who, err := c.CallerIdentity(ctx, aws.Credentials{}); err != nil || !strings.HasSuffix(who, "assumed-role/second/us") {
			t.Errorf("CallerIdentity = %q, %v", who, err)
		}
	}
	if n := count(s, "AssumeRole"); n != 2 {
		t.Errorf("%d calls of AssumeRole, want one for each role: they are kept", n)
	}

	t.Run("that refuse", func(t *testing.T) {
		c := connect(t, s, func(o *aws.Options) { o.MaxRetries, o.AssumeRoles = 3, []aws.AssumeRole{{RoleARN: first}} })
		s.Forget()
		_, err := c.GetUser(ctx, "u")
		check(t, "AssumeRole", err, aws.Denied, "AccessDenied")
		if n := count(s, "AssumeRole"); n != 1 {
			t.Errorf("%d calls of AssumeRole, want one", n)
		}
	})
	t.Run("with trouble", func(t *testing.T) {
		s.Forget()
		s.FailNext(1000, "AssumeRole", awstest.Fault{Code: "Throttling"})
		c := connect(t, s, func(o *aws.Options) { o.MaxRetries, o.AssumeRoles = 2, []aws.AssumeRole{{RoleARN: first}} })
		for _, action := range []string{"CreateAccessKey", "GetUser", "CreateUser", "GetCallerIdentity"} {
			s.Forget()
			check(t, "AssumeRole", calls()[action](t, c), aws.Throttled, "Throttling")
			if n := count(s, "AssumeRole"); n != 3 {
				t.Errorf("%d calls of AssumeRole for %s, want 3: retries do not multiply", n, action)
			}
		}
	})
}

// Many use a client at the same time, and find the roles and the endpoint that answers for one another.
func TestOneClientForMany(t *testing.T) {
	s := awstest.New(t)
	s.AddUser("u")
	role := s.AddRole(awstest.Role{Name: "r"})
	c := connect(t, s, func(o *aws.Options) {
		o.STSEndpoint, o.STSFallbacks = unreachable(), []aws.Endpoint{{URL: s.URL}}
		o.AssumeRoles = []aws.AssumeRole{{RoleARN: role}}
	})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			if _, err := c.GetUser(t.Context(), "u"); err != nil {
				t.Error(err)
			}
			if _, err := c.CallerIdentity(t.Context(), aws.Credentials{}); err != nil {
				t.Error(err)
			}
			name := fmt.Sprint("user", i)
			if _, err := c.CreateUser(t.Context(), aws.NewUser{Name: name}); err != nil {
				t.Error(err)
			}
			if err := c.RemoveUser(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(s, "AssumeRole"); n != 1 {
		t.Errorf("%d calls of AssumeRole, want one", n)
	}
}

// Credentials that end soon are replaced before they do.
func TestRolesThatAreGoneThroughAgain(t *testing.T) {
	assumed := 0
	s := newScripted(t, func(w http.ResponseWriter, _ *http.Request, form url.Values) {
		if form.Get("Action") == "AssumeRole" {
			assumed++
			ends := time.Now().Add(4 * time.Minute).UTC().Format(time.RFC3339)
			result(w, "AssumeRole", "<Credentials><AccessKeyId>ASIAXXXXXXXXXXXXXXXX</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>"+ends+"</Expiration></Credentials>")
			return
		}
		result(w, form.Get("Action"), "<Arn>a</Arn>")
	})
	c := dial(t, s.URL, func(o *aws.Options) { o.AssumeRoles = []aws.AssumeRole{{RoleARN: "arn:aws:iam::123456789012:role/r"}} })
	for range 3 {
		if _, err := c.CallerIdentity(t.Context(), aws.Credentials{}); err != nil {
			t.Fatal(err)
		}
	}
	if assumed != 3 {
		t.Errorf("the role is assumed %d times, want 3", assumed)
	}
}

func count(s *awstest.Server, action string) (n int) {
	for _, a := range s.Actions() {
		if a == action {
			n++
		}
	}
	return n
}

func TestFallbacks(t *testing.T) {
	tests := []struct {
		name   string
		answer script
		went   bool // on to the fallback
		want   aws.Kind
	}{
		{"trouble", refusing(500, "InternalFailure", "sorry"), true, aws.Other},
		{"a proxy's trouble", refusing(503, "", ""), true, aws.Other},
		{"a broken connection", broken, true, aws.Other},
		{"no answer", func(_ http.ResponseWriter, r *http.Request, _ url.Values) { <-r.Context().Done() }, true, aws.Other},
		{"throttled", refusing(400, "Throttling", "slow"), false, aws.Throttled},
		{"denied", refusing(403, "AccessDenied", "no"), false, aws.Denied},
		{"a bad policy", refusing(400, "MalformedPolicyDocument", "no"), false, aws.Invalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			first := newScripted(t, test.answer)
			s := awstest.New(t)
			role := s.AddRole(awstest.Role{Name: "r"})
			third := newScripted(t, broken)
			c := connect(t, s, func(o *aws.Options) {
				o.STSEndpoint, o.STSRegion, o.MaxRetries, o.Timeout = first.URL, "eu-west-2", 1, 200*time.Millisecond
				o.STSFallbacks = []aws.Endpoint{{URL: unreachable(), Region: "eu-west-3"}, {URL: s.URL, Region: "eu-north-1"}, {URL: third.URL, Region: "eu-south-1"}}
			})
			for range 2 {
				_, err := c.AssumeRole(t.Context(), aws.AssumeRole{RoleARN: role, Session: "us"})
				if test.went != (err == nil) || aws.KindOf(err) != test.want {
					t.Fatalf("AssumeRole: %v", err)
				}
			}
			asked := s.Calls()
			if !test.went {
				if len(asked) != 0 {
					t.Errorf("the fallback is asked: %v", s.Actions())
				}
				return
			}
			if len(asked) != 2 || asked[0].Region != "eu-north-1" || third.count("AssumeRole") != 0 {
				t.Errorf("the fallback is asked %+v", asked)
			}
			if n := first.count("AssumeRole"); n > 2 {
				t.Errorf("%d attempts at the first endpoint, want at most 2: the one that answered is asked first now", n)
			}
		})
	}
}

func TestNoFallbackAnswers(t *testing.T) {
	first, second := newScripted(t, refusing(503, "ServiceUnavailable", "first")), newScripted(t, refusing(503, "ServiceUnavailable", "second"))
	c := dial(t, first.URL, func(o *aws.Options) {
		o.MaxRetries, o.STSFallbacks = 1, []aws.Endpoint{{URL: second.URL, Region: "eu-west-3"}}
	})
	_, err := c.CallerIdentity(t.Context(), aws.Credentials{})
	if aws.KindOf(err) != aws.Unavailable || !strings.Contains(err.Error(), "first") {
		t.Errorf("CallerIdentity fails with %v, want what the first says", err)
	}
	if a, b := first.count("GetCallerIdentity"), second.count("GetCallerIdentity"); a != 2 || b != 2 {
		t.Errorf("%d and %d attempts, want 2 and 2", a, b)
	}
	if _, err := c.GetUser(t.Context(), "u"); aws.KindOf(err) != aws.Unavailable || second.count("GetUser") != 0 {
		t.Errorf("GetUser fails with %v, and is asked of the fallback of STS %d times", err, second.count("GetUser"))
	}
}
