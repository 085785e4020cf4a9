package webhost_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

func hookedRig(t *testing.T, h desttest.Hook) (*webhosttest.Server, destination.Destination) {
	s := webhosttest.New(t)
	s.AddProject("prj_1", "team_1")
	return s, openWith(t, project("production"), desttest.Through(h, s.URL))
}

func answered(r *http.Request, body io.Reader) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body), Request: r}
}

// Without a connection nothing was written; half a response comes after a write.
func TestWritesWithoutAnAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		answer  func(r *http.Request) (*http.Response, error)
		unknown bool
	}{
		"not sent": {func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}, false},
		"half an answer": {func(r *http.Request) (*http.Response, error) {
			return answered(r, io.MultiReader(strings.NewReader(`{"created":`), broken{})), nil
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := hookedRig(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
				if r.Method == http.MethodPost {
					return tt.answer(r)
				}
				return next.RoundTrip(r)
			})
			_, err := d.Write(t.Context(), item("A", "the-value"), desttest.Read(t, d, "A"))
			if e := fails(t, err, destination.Unreachable); e.Unknown != tt.unknown {
				t.Errorf("unknown: %v", e.Unknown)
			}
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A response about another record than the one that was edited is none.
func TestAnotherRecordIsEdited(t *testing.T) {
	_, d := hookedRig(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPatch {
			return answered(r, strings.NewReader(`{"id":"other","key":"A","type":"sensitive","target":["production"],"updatedAt":1}`)), nil
		}
		return next.RoundTrip(r)
	})
	write(t, d, "A", "the-value")
	_, err := d.Write(t.Context(), item("A", "the-value-2"), desttest.Read(t, d, "A"))
	if e := fails(t, err, destination.Unexpected); !e.Unknown {
		t.Error("it may have been written")
	}
}

// Another client has added an environment to a record of ours: the next value does not go there.
func TestOtherEnvironmentsOfOurRecord(t *testing.T) {
	s, d := rig(t, "production")
	write(t, d, "A", "the-value")
	s.Change("prj_1", desttest.Read(t, d, "A").ID, func(v *webhosttest.Variable) {
		v.Custom, v.Target = []string{"env_1"}, []string{"production", "preview"}
	})
	write(t, d, "A", "the-value-2")
	vars := s.Variables("prj_1", "A")
	if len(vars) != 1 || len(vars[0].Custom) != 0 || len(vars[0].Target) != 1 || vars[0].Value != "the-value-2" {
		t.Errorf("left %+v", vars)
	}
}

func TestVerifyClock(t *testing.T) {
	for skew, want := range map[time.Duration]bool{0: true, 4 * time.Minute: true, -4 * time.Minute: true, 6 * time.Minute: false, -time.Hour: false} {
		_, d := hookedRig(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil {
				resp.Header.Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
			}
			return resp, err
		})
		checks := d.Verify(t.Context())
		if c := checks[len(checks)-1]; c.Name != "clock" || c.OK != want {
			t.Errorf("%v: %+v", skew, c)
		}
	}
}
