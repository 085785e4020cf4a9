package aws_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/cloud/aws"
)

func TestKinds(t *testing.T) {
	tests := []struct {
		status int
		code   string
		want   aws.Kind
	}{
		{404, "NoSuchEntity", aws.NotFound},
		{409, "EntityAlreadyExists", aws.Exists},
		{409, "LimitExceeded", aws.Limit},
		{400, "LimitExceededException", aws.Limit},
		{403, "AccessDenied", aws.Denied},
		{403, "AccessDeniedException", aws.Denied},
		{403, "403", aws.Denied},
		{403, "InvalidClientTokenId", aws.Denied},
		{403, "SignatureDoesNotMatch", aws.Denied},
		{403, "ExpiredToken", aws.Denied},
		{400, "ExpiredTokenException", aws.Denied},
		{400, "ValidationError", aws.Invalid},
		{400, "ValidationException", aws.Invalid},
		{400, "MalformedPolicyDocument", aws.Invalid},
		{400, "InvalidInput", aws.Invalid},
		{400, "PackedPolicyTooLarge", aws.Invalid},
		{400, "Throttling", aws.Throttled},
		{400, "ThrottlingException", aws.Throttled},
		{503, "RequestLimitExceeded", aws.Throttled},
		{429, "TooManyRequests", aws.Throttled},
		{429, "Odd", aws.Throttled},
		{409, "DeleteConflict", aws.Conflict},
		{409, "ConcurrentModification", aws.Conflict},
		{409, "EntityTemporarilyUnmodifiable", aws.Conflict},
		{500, "ServiceFailure", aws.Unavailable},
		{503, "ServiceUnavailable", aws.Unavailable},
		{502, "Odd", aws.Unavailable},
		{400, "Odd", aws.Other},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d %s", test.status, test.code), func(t *testing.T) {
			c := dial(t, newScripted(t, refusing(test.status, test.code, "some words")).URL, nil)
			for action, call := range calls() {
				if action == "ListAccessKeys" || action == "CreateUser" || action == "AssumeRole" { // the others are alike
					check(t, action, call(t, c), test.want, strings.TrimSuffix(test.code, "Exception"))
				}
			}
		})
	}
}

// check looks at an error of a call.
func check(t *testing.T, action string, err error, want aws.Kind, code string) {
	t.Helper()
	e, ok := err.(*aws.Error)
	if !ok {
		t.Fatalf("%s fails with %T %v, want *aws.Error", action, err, err)
	}
	if e.Kind != want || e.Action != action || e.Code != code || e.Text == "" {
		t.Errorf("%s fails with %+v, want kind %d and code %q", action, e, want, code)
	}
	if aws.KindOf(fmt.Errorf("around it: %w", err)) != want {
		t.Errorf("KindOf does not see through what is around an error of %s", action)
	}
}

func TestEveryCallSaysWhatFailed(t *testing.T) {
	c := dial(t, newScripted(t, refusing(404, "NoSuchEntity", "The user with name u cannot be found.")).URL, nil)
	for action, call := range calls() {
		err := call(t, c)
		check(t, action, err, aws.NotFound, "NoSuchEntity")
		if want := action + ": NoSuchEntity: The user with name u cannot be found."; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
}

func TestNoProviderThere(t *testing.T) {
	gone := newScripted(t, broken)
	tests := []struct {
		name   string
		answer script
		want   aws.Kind
	}{
		{"a page of a proxy", func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html><body>Bad gateway<br></body>")
		}, aws.Unavailable},
		{"a login page", func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			fmt.Fprint(w, "<html><body>Welcome<br></body>")
		}, aws.Unavailable},
		{"a refusing proxy", func(w http.ResponseWriter, _ *http.Request, _ url.Values) { w.WriteHeader(http.StatusForbidden) }, aws.Denied},
		{"a broken connection", broken, aws.Unavailable},
		{"an empty answer", func(http.ResponseWriter, *http.Request, url.Values) {}, aws.Unavailable},
		{"a redirect", func(w http.ResponseWriter, r *http.Request, _ url.Values) {
			http.Redirect(w, r, gone.URL, http.StatusTemporaryRedirect)
		}, aws.Other},
		{"a redirect to a page", func(w http.ResponseWriter, r *http.Request, _ url.Values) {
			http.Redirect(w, r, gone.URL, http.StatusFound)
		}, aws.Other},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := dial(t, newScripted(t, test.answer).URL, nil)
			for _, action := range []string{"GetUser", "CreateAccessKey", "AssumeRole"} {
				err := calls()[action](t, c)
				if aws.KindOf(err) != test.want {
					t.Errorf("%s fails with %v, want kind %d", action, err, test.want)
				}
			}
		})
	}
	if n := gone.count("GetUser") + gone.count(""); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	for size, want := range map[int]aws.Kind{1 << 10: aws.Other, 1 << 20: aws.Unavailable} {
		c := dial(t, newScripted(t, func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			fmt.Fprint(w, "<GetUserResponse><GetUserResult>", strings.Repeat(" ", size), "<User><UserName>u</UserName></User></GetUserResult></GetUserResponse>")
		}).URL, nil)
		if _, err := c.GetUser(t.Context(), "u"); aws.KindOf(err) != want || (err == nil) != (want == aws.Other) {
			t.Errorf("an answer of %d bytes: %v", size, err)
		}
	}
}

func TestTimeouts(t *testing.T) {
	stop := make(chan struct{})
	s := newScripted(t, func(_ http.ResponseWriter, r *http.Request, _ url.Values) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(stop) })
	t.Run("of an attempt", func(t *testing.T) {
		c := dial(t, s.URL, func(o *aws.Options) { o.Timeout = 20 * time.Millisecond })
		for _, action := range []string{"GetUser", "AssumeRole"} {
			if err := calls()[action](t, c); aws.KindOf(err) != aws.Unavailable {
				t.Errorf("%s fails with %v, want Unavailable", action, err)
			}
		}
	})
	t.Run("of the caller", func(t *testing.T) {
		c := dial(t, s.URL, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.GetUser(ctx, "u")
		if aws.KindOf(err) != aws.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GetUser fails with %v, want Unavailable and context.DeadlineExceeded", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		c := dial(t, s.URL, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.GetUser(ctx, "u")
		if aws.KindOf(err) != aws.Unavailable || !errors.Is(err, context.Canceled) {
			t.Errorf("GetUser fails with %v, want Unavailable and context.Canceled", err)
		}
	})
}

// A provider that says back everything it was told, as some do with refused signatures and values.
func TestNoSecretsInErrors(t *testing.T) {
	const session = "FwoGZXIvYXdzEJr//////////wEaDHNlY3JldHNlc3Npb250b2tlbg=="
	secrets := []string{testKey, testSecret, session, "AKIAXXXXXXXXXXXXOTHR", "DescribeInstances", "123456", "secret-of-the-answer"}
	echo := func(form url.Values, r *http.Request) string { return fmt.Sprint(form, r.Header) }
	answers := map[string]script{
		"validation": func(w http.ResponseWriter, r *http.Request, form url.Values) {
			text := fmt.Sprintf("2 validation errors detected: Value '%v' at 'policyDocument' failed to satisfy constraint; Value '%s' at 'tokenCode' failed", form, form.Get("TokenCode"))
			refuse(w, 400, "ValidationError", text)
		},
		"signature": func(w http.ResponseWriter, r *http.Request, form url.Values) {
			refuse(w, 403, "SignatureDoesNotMatch", "The signature does not match.\n\nThe Canonical String for this request should have been\n'"+echo(form, r)+"'")
		},
		"key": func(w http.ResponseWriter, _ *http.Request, form url.Values) {
			refuse(w, 404, "NoSuchEntity", "The Access Key with id AKIAXXXXXXXXXXXXOTHR and secret "+testSecret+" of "+testKey+" cannot be found with token "+session)
		},
		"unreadable": func(w http.ResponseWriter, _ *http.Request, form url.Values) {
			result(w, form.Get("Action"), "<AccessKey><SecretAccessKey>secret-of-the-answer</AccessKey>")
		},
		"unreadable error": func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "<ErrorResponse><SecretAccessKey>secret-of-the-answer</AccessKey>")
		},
		"code": func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			refuse(w, 400, "secret-of-the-answer in a code\n", "no")
		},
		"broken": broken,
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			c := dial(t, newScripted(t, answer).URL, nil)
			var errs []error
			for _, call := range calls() {
				errs = append(errs, call(t, c))
			}
			_, err := c.CallerIdentity(t.Context(), aws.Credentials{AccessKey: "AKIAXXXXXXXXXXXXOTHR", SecretKey: testSecret, SessionToken: session})
			errs = slices.DeleteFunc(append(errs, err), func(err error) bool { return err == nil })
			if len(errs) < 8 { // some ignore what is in an answer
				t.Fatalf("only %d calls fail", len(errs))
			}
			for _, err := range errs {
				shown := fmt.Sprintf("%v %+v %#v", err, err, err)
				for e := err; e != nil; e = errors.Unwrap(e) {
					text, _ := json.Marshal(e)
					shown += fmt.Sprintf("%#v %s", e, text)
				}
				for i, secret := range secrets {
					if strings.Contains(shown, secret) {
						t.Errorf("secret %d is in an error: %s", i, shown)
					}
				}
			}
		})
	}
}

func TestTextIsBounded(t *testing.T) {
	c := dial(t, newScripted(t, refusing(400, "InvalidInput", strings.Repeat("ä b\u202e ", 1000))).URL, nil)
	_, err := c.GetUser(t.Context(), "u")
	var e *aws.Error
	if !errors.As(err, &e) || len(e.Text) > 410 || !utf8.ValidString(e.Text) || strings.Contains(e.Text, "\u202e") {
		t.Errorf("the text is %q", err)
	}
}

func TestTextStaysUseful(t *testing.T) {
	tests := []struct{ said, want string }{
		{"The user with name coffer-token-ci-deploy-1763760000-Xk2pQ9aZr4LmN8bVc7Ty cannot be found.", ""},
		{"User: arn:aws:iam::123456789012:user/ops is not authorized to perform: iam:CreateUser on resource: arn:aws:iam::123456789012:user/coffer-x because no identity-based policy allows it", ""},
		{"1 validation error detected: Value at 'userName' failed to satisfy constraint: Member must have length less than or equal to 64", ""},
		{"1 validation error detected: Value 'a secret' at 'policyDocument' failed", "1 validation error detected: Value at 'policyDocument' failed"},
		{"The Access Key with id AKIAXXXXXXXXXXXXOTHR cannot be found.", "The Access Key with id [hidden] cannot be found."},
		{"The token eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJhIn0.WYwQM0ywx-uFuv_a is not one.", "The token [hidden] is not one."},
		{"Cannot exceed quota for AccessKeysPerUser: 2", ""},
	}
	for _, test := range tests {
		c := dial(t, newScripted(t, refusing(400, "InvalidInput", test.said)).URL, nil)
		_, err := c.GetUser(t.Context(), "u")
		if want := "GetUser: InvalidInput: " + cmp.Or(test.want, test.said); err == nil || err.Error() != want {
			t.Errorf("%q becomes %q, want %q", test.said, err, want)
		}
	}
}
