package cloud1sm_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// verdict is the names of checks with + for those that hold, - for those that do not, and ? for those that are not known.
func verdict(checks []destination.Check) string {
	var all []string
	for _, c := range checks {
		sign := "-"
		switch {
		case c.OK:
			sign = "+"
		case c.Unknown:
			sign = "?"
		}
		all = append(all, sign+c.Name)
	}
	return strings.Join(all, " ")
}

func TestVerify(t *testing.T) {
	for _, test := range []struct {
		name   string
		denied []string
		want   string
	}{
		{"all allowed", nil, "+reachable +clock +credentials +read ?create +write +delete +tags"},
		{"no values", []string{"GetSecretValue"}, "+reachable +clock +credentials -read ?create +write +delete +tags"},
		{"no list", []string{"ListSecrets"}, "+reachable +clock +credentials -read ?create +write +delete +tags"},
		{"no put", []string{"PutSecretValue"}, "+reachable +clock +credentials +read ?create -write +delete +tags"},
		{"no labels", []string{"UpdateSecretVersionStage"}, "+reachable +clock +credentials +read ?create -write +delete +tags"},
		{"no recovery", []string{"RestoreSecret"}, "+reachable +clock +credentials +read ?create +write -delete +tags"},
		{"no tags", []string{"UntagResource"}, "+reachable +clock +credentials +read ?create +write +delete -tags"},
		{"other names", []string{"DescribeSecret", "GetSecretValue", "PutSecretValue", "UpdateSecretVersionStage", "DeleteSecret", "RestoreSecret",
			"TagResource", "UntagResource"}, "+reachable +clock +credentials ?read ?create ?write ?delete ?tags"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cloud1smtest.New(t)
			s.Deny(func(action, _ string) bool { return slices.Contains(test.denied, action) })
			d := open(t, s, destination.Env{}, nil)
			checks := d.Verify(t.Context())
			if got := verdict(checks); got != test.want {
				t.Errorf("verify says %s, want %s", got, test.want)
			}
			for _, c := range checks {
				if c.Text == "" || !c.OK && !c.Unknown && !strings.Contains(c.Text, "AWS does not allow this call") {
					t.Errorf("%s: %q", c.Name, c.Text)
				}
			}
			for _, c := range s.Calls() {
				if c.SecretID != "" && !strings.HasPrefix(c.SecretID, "vault/coffer-verify-") || c.Action == "CreateSecret" {
					t.Errorf("verify calls %+v", c)
				}
			}
		})
	}
}

func TestVerifyCredentials(t *testing.T) {
	s := cloud1smtest.New(t)
	for _, change := range []func(*cloud1sm.Config){
		func(c *cloud1sm.Config) { c.SecretAccessKey = "wrong" },
		func(c *cloud1sm.Config) { c.AccessKeyID = "AKIAIOSFODNN7EXAMPLE" },
		func(c *cloud1sm.Config) { c.RoleARN = "arn:aws:iam::123456789012:role/none" },
	} {
		d := open(t, s, destination.Env{}, change)
		if got, want := verdict(d.Verify(t.Context())), "+reachable +clock -credentials"; got != want {
			t.Errorf("verify says %s, want %s", got, want)
		}
	}
}

func TestVerifyClock(t *testing.T) {
	s := cloud1smtest.New(t)
	s.Advance(-time.Hour)
	d := open(t, s, destination.Env{}, nil)
	checks := d.Verify(t.Context())
	if got, want := verdict(checks), "+reachable -clock -credentials"; got != want {
		t.Errorf("verify says %s, want %s", got, want)
	}
	if !strings.Contains(checks[1].Text, "1h0m") {
		t.Errorf("it says %q", checks[1].Text)
	}
}

// TestNothingIsRepeated: who decides above counts the calls, those to STS, too.
func TestNothingIsRepeated(t *testing.T) {
	s := cloud1smtest.New(t)
	arn := s.STS.AddRole(awstest.Role{Name: "sync"})
	for _, fault := range []awstest.Fault{{Code: "Throttling"}, {Status: 503, Code: "ServiceUnavailable"}, {Drop: true}} {
		d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RoleARN = arn })
		s.STS.FailNext(9, "AssumeRole", fault)
		s.Actions()
		if _, err := d.Read(t.Context(), name); err == nil {
			t.Error("it succeeds without credentials")
		}
		did(t, s, "AssumeRole")
		s.STS.Fail(nil)
		s.FailNext(9, "DescribeSecret", fault)
		s.Actions()
		if _, err := d.Read(t.Context(), name); err == nil {
			t.Error("it succeeds without an answer")
		}
		if got := s.Actions(); len(got) == 0 || got[len(got)-1] != "DescribeSecret" || len(got) > 2 {
			t.Errorf("called %v", got)
		}
		s.Fail(nil)
	}
}

// TestCredentialsOfARoleEnd: those that soon do are replaced before they are rejected.
func TestCredentialsOfARoleEnd(t *testing.T) {
	s := cloud1smtest.New(t)
	arn := s.STS.AddRole(awstest.Role{Name: "sync"})
	left, forever := time.Hour, 0
	client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if end, ok := r.Context().Deadline(); !ok || time.Until(end) > time.Minute {
			forever++
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil || resp.Header.Get("Content-Type") == "application/x-amz-json-1.1" {
			return resp, err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		at := "<Expiration>" + time.Now().Add(left).UTC().Format(time.RFC3339) + "<"
		body = regexp.MustCompile("<Expiration>[^<]*<").ReplaceAll(body, []byte(at))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return resp, err
	})}
	for life, want := range map[time.Duration]int{time.Hour: 1, 4 * time.Minute: 2} {
		left = life
		d := open(t, s, destination.Env{Client: client}, func(c *cloud1sm.Config) { c.RoleARN = arn })
		s.Actions()
		read(t, d)
		read(t, d)
		if n := len(slices.DeleteFunc(s.Actions(), func(a string) bool { return a != "AssumeRole" })); n != want {
			t.Errorf("credentials for %v are asked for %d times", life, n)
		}
	}
	if forever > 0 {
		t.Errorf("%d calls have no end", forever)
	}
}

func TestRole(t *testing.T) {
	s := cloud1smtest.New(t)
	arn := s.STS.AddRole(awstest.Role{Name: "sync", ExternalID: "an-external-id"})
	d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RoleARN, c.ExternalID = arn, "an-external-id" })
	write(t, d, item("one"))
	read(t, d)
	did(t, s, "AssumeRole", "DescribeSecret", "CreateSecret", "DescribeSecret", "GetSecretValue")

	// Credentials that were taken back are not kept.
	s.Expire()
	_, err := d.Read(t.Context(), name)
	failed(t, err, destination.Client, destination.Denied, false)
	read(t, d)

	for _, id := range []string{"", "another-id"} {
		d = open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.RoleARN, c.ExternalID = arn, id })
		_, err = d.Write(t.Context(), item("two"), destination.Found{Name: name})
		e := failed(t, err, destination.Client, destination.Denied, false)
		if !strings.Contains(e.Text, "AssumeRole") {
			t.Errorf("the error says %q", e.Text)
		}
	}
	holds(t, s, "one")

	// STS may be elsewhere.
	d = open(t, s, destination.Env{AuthorityURL: s.STS.URL}, func(c *cloud1sm.Config) { c.RoleARN, c.ExternalID = arn, "an-external-id" })
	_, err = d.Read(t.Context(), name)
	failed(t, err, destination.Client, destination.Denied, false) // the fake does not see what was given there
	if calls := s.STS.Actions(); len(calls) != 5 {
		t.Errorf("STS was asked for %v", calls)
	}
}

func ExampleType() {
	fmt.Println(cloud1sm.Type.Name, cloud1sm.Type.Rules.MaxValue)
	// Output: cloud1-sm 65536
}
