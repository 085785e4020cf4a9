package aws_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// Keys of the tests in which no provider checks them.
const (
	testKey    = "AKIAZZZZZZZZZZZZTEST"
	testSecret = "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"
)

// scripted is a service that answers as a test says, and remembers what it was asked.
type scripted struct {
	URL string

	mu    sync.Mutex
	asked []string
}

// script answers a request; it may also break the connection.
type script func(w http.ResponseWriter, r *http.Request, form url.Values)

func newScripted(t *testing.T, answer script) *scripted {
	t.Helper()
	s := &scripted{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			t.Errorf("the body of a request is no form: %v", err)
		}
		s.mu.Lock()
		s.asked = append(s.asked, form.Get("Action"))
		s.mu.Unlock()
		answer(w, r, form)
	}))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

func (s *scripted) count(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(s.asked), func(a string) bool { return a != action }))
}

// refusing answers everything with an error.
func refusing(status int, code, message string) script {
	return func(w http.ResponseWriter, _ *http.Request, _ url.Values) { refuse(w, status, code, message) }
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message><![CDATA[%s]]></Message></Error><RequestId>r</RequestId></ErrorResponse>`, code, message)
}

// result answers an action with some XML.
func result(w http.ResponseWriter, action, inside string) {
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>`, action, inside)
}

// broken ends the connection without an answer.
func broken(http.ResponseWriter, *http.Request, url.Values) { panic(http.ErrAbortHandler) }

// dial returns a client of services at one URL that never waits between attempts.
func dial(t *testing.T, url string, change func(*aws.Options)) *aws.Client {
	t.Helper()
	o := aws.Options{
		AccessKey: testKey, SecretKey: testSecret, Region: "eu-west-1", IAMEndpoint: url, STSEndpoint: url,
		MaxRetries: 0, Backoff: func(int) time.Duration { return 0 },
	}
	if change != nil {
		change(&o)
	}
	c, err := aws.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// calls are all methods of the API that call the provider, by the first action of each.
func calls() map[string]func(t *testing.T, c aws.API) error {
	return map[string]func(t *testing.T, c aws.API) error{
		"GetUser": func(t *testing.T, c aws.API) error { _, err := c.GetUser(t.Context(), "u"); return err },
		"CreateUser": func(t *testing.T, c aws.API) error {
			_, err := c.CreateUser(t.Context(), aws.NewUser{Name: "u"})
			return err
		},
		"AttachUserPolicy": func(t *testing.T, c aws.API) error {
			return c.AttachUserPolicy(t.Context(), "u", "arn:aws:iam::aws:policy/ReadOnlyAccess")
		},
		"PutUserPolicy":   func(t *testing.T, c aws.API) error { return c.PutUserPolicy(t.Context(), "u", "p", document) },
		"AddUserToGroup":  func(t *testing.T, c aws.API) error { return c.AddUserToGroup(t.Context(), "u", "g") },
		"CreateAccessKey": func(t *testing.T, c aws.API) error { _, err := c.CreateAccessKey(t.Context(), "u"); return err },
		"DeleteAccessKey": func(t *testing.T, c aws.API) error {
			return c.DeleteAccessKey(t.Context(), "u", "AKIAXXXXXXXXXXXXOTHR")
		},
		"ListAccessKeys": func(t *testing.T, c aws.API) error { _, err := c.ListAccessKeys(t.Context(), "u"); return err },
		"ListGroupPolicies": func(t *testing.T, c aws.API) error {
			_, _, err := c.GroupPolicies(t.Context(), "g")
			return err
		},
		"AssumeRole": func(t *testing.T, c aws.API) error {
			_, err := c.AssumeRole(t.Context(), aws.AssumeRole{RoleARN: "arn:aws:iam::123456789012:role/r", Session: "session", Policy: document})
			return err
		},
		"GetFederationToken": func(t *testing.T, c aws.API) error {
			_, err := c.GetFederationToken(t.Context(), aws.Federation{Name: "name", Policy: document})
			return err
		},
		"GetSessionToken": func(t *testing.T, c aws.API) error {
			_, err := c.GetSessionToken(t.Context(), time.Hour, aws.MFA{Serial: "GAHT12345678", Code: "123456"})
			return err
		},
		"GetCallerIdentity": func(t *testing.T, c aws.API) error {
			_, err := c.CallerIdentity(t.Context(), aws.Credentials{})
			return err
		},
	}
}

const document = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ec2:DescribeInstances","Resource":"*"}]}`

// endlessPages answers lists with empty pages, each of which says that there is one more.
func endlessPages(w http.ResponseWriter, _ *http.Request, form url.Values) {
	result(w, form.Get("Action"), "<IsTruncated>true</IsTruncated><Marker>more</Marker>")
}
