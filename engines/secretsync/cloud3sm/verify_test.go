package cloud3sm_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func without(permissions ...string) []string {
	return slices.DeleteFunc(slices.Clone(cloud3smtest.Permissions), func(p string) bool { return slices.Contains(permissions, p) })
}

// TestVerify: what each check says, as "+" for fine, "-" for not, "?" for unknown.
func TestVerify(t *testing.T) {
	tests := []struct {
		name    string
		ours    bool // there is a secret of ours
		theirs  bool // and one of another client
		prepare func(s *cloud3smtest.Server)
		want    string
		text    string // somewhere
	}{
		{name: "an empty project", want: "clock+ reachable+ credentials+ create? write? read? delete? tags?", text: "there is no secret yet"},
		{name: "all is granted", ours: true, want: "clock+ reachable+ credentials+ create? write+ read+ delete+ tags+"},
		{name: "all is granted on a secret of another client", theirs: true, want: "clock+ reachable+ credentials+ create? write+ read+ delete+ tags+"},
		{name: "versions cannot be added", ours: true, prepare: func(s *cloud3smtest.Server) { s.Grant(without("secretmanager.versions.add")...) },
			want: "clock+ reachable+ credentials+ create? write- read+ delete+ tags+", text: "grant the service account secretmanager.versions.add"},
		{name: "nothing but reading, and another client's", theirs: true, prepare: func(s *cloud3smtest.Server) { s.Grant("secretmanager.secrets.get", "secretmanager.secrets.list") },
			want: "clock+ reachable+ credentials+ create? write? read? delete? tags?", text: "will be needed on ours"},
		{name: "a secret of ours among others", ours: true, theirs: true, prepare: func(s *cloud3smtest.Server) { s.Grant(without("secretmanager.secrets.delete")...) },
			want: "clock+ reachable+ credentials+ create? write+ read+ delete- tags+"},
		{name: "no list", ours: true, prepare: func(s *cloud3smtest.Server) { s.Grant(without("secretmanager.secrets.list")...) },
			want: "clock+ reachable+ credentials+ create? list? write? read? delete? tags?", text: "secretmanager.secrets.list"},
		{name: "only names of ours can be read", ours: true, prepare: func(s *cloud3smtest.Server) {
			s.Hook("GetSecret", func(context.Context, any) error { return status.Error(codes.PermissionDenied, "by a condition") })
		}, want: "clock+ reachable+ credentials+ create? write+ read+ delete+ tags+"},
		{name: "nothing", ours: true, prepare: func(s *cloud3smtest.Server) { s.Grant() }, want: "clock+ reachable+ credentials-", text: "grant the service account secretmanager.secrets.get"},
		{name: "asking is not possible", ours: true, prepare: func(s *cloud3smtest.Server) {
			s.Hook("TestIamPermissions", func(context.Context, any) error { return status.Error(codes.Unavailable, "later") })
		}, want: "clock+ reachable+ credentials+ create? write? read? delete? tags?", text: "it cannot be asked"},
		{name: "the key is disabled", prepare: func(s *cloud3smtest.Server) { s.DisableKey() }, want: "reachable+ credentials- clock+", text: "disabled or deleted"},
		{name: "trouble", prepare: func(s *cloud3smtest.Server) {
			s.Hook("GetSecret", func(context.Context, any) error { return status.Error(codes.Unavailable, "later") })
			s.Hook("ListSecrets", func(context.Context, any) error { return status.Error(codes.Unavailable, "later") })
		}, want: "clock+ reachable-"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			if test.ours {
				desttest.Write(t, open(t, s, configured(nil)), item("ours", "v"))
			}
			if test.theirs {
				s.Put("theirs", "v")
			}
			d := open(t, s, configured(nil))
			if test.prepare != nil {
				test.prepare(s)
			}
			s.Calls()
			checks := d.Verify(t.Context())
			if got := marks(checks); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			texts := ""
			for _, c := range checks {
				if c.Text == "" {
					t.Errorf("check %s says nothing", c.Name)
				}
				texts += c.Text + "\n"
			}
			if !strings.Contains(texts, test.text) {
				t.Errorf("%q is not in %s", test.text, texts)
			}
			for _, call := range s.Calls() {
				if !slices.Contains([]string{"GetSecret", "ListSecrets", "TestIamPermissions"}, call) {
					t.Errorf("verify calls %s", call)
				}
			}
		})
	}
}

func marks(checks []destination.Check) string {
	var texts []string
	for _, c := range checks {
		mark := "-"
		switch {
		case c.OK:
			mark = "+"
		case c.Unknown:
			mark = "?"
		}
		texts = append(texts, c.Name+mark)
	}
	return strings.Join(texts, " ")
}

func TestVerifySeesTheClock(t *testing.T) {
	s := cloud3smtest.New(t)
	env := s.Env()
	env.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 400, Header: http.Header{"Date": {time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}},
			Body: io.NopCloser(strings.NewReader(`{"error":"invalid_grant"}`)),
		}, nil
	})}
	checks := openWith(t, env, configured(nil)).Verify(t.Context())
	if got := marks(checks); got != "reachable+ credentials- clock-" {
		t.Errorf("got %s", got)
	}
	if last := checks[len(checks)-1]; !strings.Contains(last.Text, "away from that of the token service") {
		t.Error(last.Text)
	}
}
