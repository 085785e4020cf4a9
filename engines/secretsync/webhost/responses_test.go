package webhost_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

// Every answer that Vercel has, to a write and to a read.
func TestAnswers(t *testing.T) {
	date := time.Now().UTC().Truncate(time.Second)
	limit := func(reset any) string {
		return fmt.Sprintf(`{"error":{"code":"too_many_requests","message":"x","limit":{"remaining":0,"reset":%v,"total":60}}}`, reset)
	}
	tests := []struct {
		name    string
		status  int
		header  map[string]string
		body    string
		code    string
		class   destination.Class
		unknown bool // of a write
		after   time.Duration
	}{
		{name: "401", status: 401, body: `{"error":{"code":"unauthorized"}}`, code: destination.Denied, class: destination.Client},
		{name: "402", status: 402, body: `{"error":{"code":"payment_required"}}`, code: destination.Denied, class: destination.Client},
		{name: "403", status: 403, body: `{"error":{"code":"forbidden","message":"the-value"}}`, code: destination.Denied, class: destination.Client},
		{name: "404", status: 404, body: `{"error":{"code":"not_found"}}`, code: destination.NoLocation, class: destination.Client},
		{name: "409", status: 409, body: `{"error":{"code":"conflict"}}`, code: destination.Unavailable, class: destination.External},
		{name: "413", status: 413, code: destination.TooLarge, class: destination.Client},
		{name: "400", status: 400, body: `{"error":{"code":"the-value ` + webhosttest.Token + `","message":"the-value"}}`, code: destination.BadRequest, class: destination.Client},
		{name: "400 without sense", status: 400, body: `[[[`, code: destination.BadRequest, class: destination.Client},
		{name: "400 while it is changed", status: 400, body: `{"error":{"code":"bad_request","message":"an ongoing update env update is already happening"}}`, code: destination.Unavailable, class: destination.External},
		{name: "400 for its size", status: 400, body: `{"error":{"code":"bad_request","message":"project document is too large"}}`, code: destination.Quota, class: destination.Client},
		{name: "429 in seconds", status: 429, body: limit(date.Unix() + 90), code: destination.Throttled, class: destination.External, after: 90 * time.Second},
		{name: "429 in milliseconds", status: 429, body: limit(date.UnixMilli() + 90000), code: destination.Throttled, class: destination.External, after: 90 * time.Second},
		{name: "429 in the past", status: 429, body: limit(1), code: destination.Throttled, class: destination.External},
		{name: "429 without sense", status: 429, body: limit("1e300"), code: destination.Throttled, class: destination.External},
		{name: "429 by header", status: 429, header: map[string]string{"X-RateLimit-Reset": fmt.Sprint(date.Unix() + 8)}, code: destination.Throttled, class: destination.External, after: 8 * time.Second},
		{name: "429 with Retry-After", status: 429, header: map[string]string{"Retry-After": "99999999"}, body: limit(date.Unix() + 90), code: destination.Throttled, class: destination.External, after: 24 * time.Hour},
		{name: "429 with a date", status: 429, header: map[string]string{"Retry-After": date.Add(5 * time.Minute).Format(http.TimeFormat)}, code: destination.Throttled, class: destination.External, after: 5 * time.Minute},
		{name: "502", status: 502, body: "<html>", code: destination.Unavailable, class: destination.External, unknown: true},
		{name: "moved", status: 307, header: map[string]string{"Location": "http://evil.example/"}, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "200 without sense", status: 200, body: `<html>`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "200 of nothing", status: 200, body: `{}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "a record without an id", status: 200, body: `{"envs":[{"key":"A","updatedAt":1}],"created":{"id":"../x","key":"A","updatedAt":1},"failed":[]}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "another record", status: 200, body: `{"created":{"id":"x","key":"B","updatedAt":1},"failed":[]}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "failed for another reason", status: 201, body: `{"created":{},"failed":[{"error":{"code":"the-value of something","message":"the-value"}}]}`, code: "", class: destination.Client},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", date.Format(http.TimeFormat))
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer l.Close()
			env := desttest.At(l.URL + "/")
			d := openWith(t, project("production"), env)
			_, err := d.Write(t.Context(), item("A", "the-value"), destination.Found{Name: "A"})
			if tt.code == "" {
				if e := fails(t, err, destination.BadRequest); e.Class != tt.class {
					t.Errorf("%+v", e)
				}
				return
			}
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown != tt.unknown || e.RetryAfter != tt.after {
				t.Errorf("write: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
			_, err = d.Read(t.Context(), "A")
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown || e.RetryAfter != tt.after {
				t.Errorf("read: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
		})
	}
}

// The contract lets an edit answer without the record, and a list come in pages.
func TestOtherAnswers(t *testing.T) {
	one := `{"id":"a1","key":"A","type":"sensitive","target":"production","updatedAt":1.5e12,"comment":"` + webhost.CommentOf(mark) + `"}`
	two := `{"id":"b1","key":"B","type":"sensitive","target":["production"],"createdAt":1,"updatedAt":2}`
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			_, _ = w.Write([]byte(`{}`))
		case r.URL.Query().Get("until") == "7":
			_, _ = w.Write([]byte(`{"envs":[` + one + `],"pagination":{"count":1,"next":null,"prev":1}}`))
		default:
			_, _ = w.Write([]byte(`{"envs":[` + two + `],"pagination":{"count":1,"next":7,"prev":null}}`))
		}
	}))
	defer l.Close()
	d := openWith(t, project("production"), desttest.At(l.URL))
	held := write(t, d, "A", "the-value")
	if held != (destination.Held{ID: "a1", Version: "1.5e12"}) {
		t.Errorf("held %+v", held)
	}
	names := 0
	for f, err := range d.List(t.Context()) {
		if names++; err != nil || (f.OwnerTag == mark) != (f.Name == "A") {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if names != 2 {
		t.Errorf("%d names", names)
	}
}

// An address that must not be called is said to be that, by the client that we are given; the vendor's own is the default.
func TestBlocked(t *testing.T) {
	desttest.Blocked(t, func(env destination.Env) destination.Destination { return openWith(t, project("production"), env) },
		func(r *http.Request) bool {
			return r.URL.String() == "https://api.vercel.com/v10/projects/prj_1/env?teamId=team_1"
		}, webhosttest.Token)
}

func TestOpenNeedsAClient(t *testing.T) {
	c := project("production")
	_, err := webhost.Type.Open(&c, destination.Env{})
	fails(t, err, destination.Unexpected)
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"envs":[{"id":"a","key":"A","type":"plain","target":"production","updatedAt":1}]}`,
		`{"created":{"id":"a","key":"A","type":"sensitive","target":["preview"],"updatedAt":1.5e12},"failed":[]}`,
		`{"created":[],"failed":[{"error":{"code":"ENV_CONFLICT"}}]}`,
		`{"envs":[{"type":"system"}],"pagination":{"next":null}}`,
		`{"envs":[{"target":null,"updatedAt":""}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := webhost.Decode(data)
		b, again := webhost.Decode(data)
		if (err == nil) != (again == nil) || !slices.Equal(a, b) {
			t.Errorf("decoded to %v and %v", a, b)
		}
	})
}

// What can be known of a destination that is not reached is said.
func TestUnreachable(t *testing.T) {
	desttest.Unreachable(t, func(env destination.Env) destination.Destination { return openWith(t, project("production"), env) }, webhosttest.Token)
}
