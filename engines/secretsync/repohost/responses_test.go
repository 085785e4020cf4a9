package repohost_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

// Every answer that GitHub has, to a write and to a read.
func TestAnswers(t *testing.T) {
	date := time.Now().UTC().Truncate(time.Second)
	tests := []struct {
		name    string
		status  int
		header  map[string]string
		body    string
		code    string
		class   destination.Class
		unknown bool // of a write
		after   time.Duration
		only    bool // writes
	}{
		{name: "a write is quoted", status: 403, body: `{"message":"the-value"}`, code: destination.Denied, class: destination.Client, only: true},
		{name: "bad credentials", status: 401, body: `{"message":"Bad credentials"}`, code: destination.Denied, class: destination.Client},
		{name: "forbidden", status: 403, body: `{"message":"Must have admin rights to Repository."}`, code: destination.Denied, class: destination.Client},
		{name: "primary limit", status: 403, header: map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": fmt.Sprint(date.Unix() + 90)},
			body: `{"message":"API rate limit exceeded"}`, code: destination.Throttled, class: destination.External, after: 90 * time.Second},
		{name: "primary limit, reset in the past", status: 429, header: map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, code: destination.Throttled, class: destination.External},
		{name: "secondary limit", status: 403, header: map[string]string{"Retry-After": "61"}, body: `{"message":"You have exceeded a secondary rate limit"}`,
			code: destination.Throttled, class: destination.External, after: 61 * time.Second},
		{name: "secondary limit by its page", status: 403, body: `{"documentation_url":"https://docs.github.com/rest/using-the-rest-api#secondary-rate-limits"}`,
			code: destination.Throttled, class: destination.External, after: time.Minute},
		{name: "secondary limit with calls left", status: 429, header: map[string]string{"X-RateLimit-Remaining": "4000", "X-RateLimit-Reset": fmt.Sprint(date.Unix() + 3000)},
			code: destination.Throttled, class: destination.External, after: time.Minute},
		{name: "429", status: 429, header: map[string]string{"Retry-After": "99999999"}, code: destination.Throttled, class: destination.External, after: 24 * time.Hour},
		{name: "429 with a date", status: 429, header: map[string]string{"Retry-After": date.Add(5 * time.Minute).Format(http.TimeFormat)}, code: destination.Throttled, class: destination.External, after: 5 * time.Minute},
		{name: "502", status: 502, body: "<html>", code: destination.Unavailable, class: destination.External, unknown: true},
		{name: "503 with a time", status: 503, header: map[string]string{"Retry-After": "3"}, code: destination.Unavailable, class: destination.External, unknown: true, after: 3 * time.Second},
		{name: "422", status: 422, body: `{"message":"the-value ` + repohosttest.Token + `"}`, code: destination.BadRequest, class: destination.Client},
		{name: "422 without sense", status: 422, body: `[[[`, code: destination.BadRequest, class: destination.Client},
		{name: "413", status: 413, code: destination.TooLarge, class: destination.Client},
		{name: "moved", status: 307, header: map[string]string{"Location": "http://127.0.0.1:1/"}, code: destination.NoLocation, class: destination.Client},
		{name: "moved to another host", status: 301, header: map[string]string{"Location": "http://evil.example/"}, code: destination.NoLocation, class: destination.Client},
		{name: "202", status: 202, body: `{}`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "200 for a write", status: 200, body: `<html>`, code: destination.Unexpected, class: destination.External, unknown: true},
		{name: "409", status: 409, body: `{"message":"Conflict"}`, code: destination.BadRequest, class: destination.Client},
		{name: "304 unasked", status: 304, code: destination.NoLocation, class: destination.Client},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := repohosttest.New(t)
			s.AddRepository("octo", "app")
			all := false
			l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !all && r.Method == http.MethodGet {
					s.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Date", date.Format(http.TimeFormat))
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer l.Close()
			env := desttest.At(s.URL)
			env.URL = l.URL + repohosttest.Prefix + "/"
			d := openWith(t, repo(), env)
			was := desttest.Read(t, d, "A")
			_, err := d.Write(t.Context(), item("A", "the-value"), was)
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown != tt.unknown || e.RetryAfter != tt.after {
				t.Errorf("write: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
			if tt.only {
				return
			}
			all = true
			_, err = d.Read(t.Context(), "A")
			if e := fails(t, err, tt.code); e.Class != tt.class || e.Unknown || e.RetryAfter != tt.after {
				t.Errorf("read: class %q, unknown %v, after %v (%s)", e.Class, e.Unknown, e.RetryAfter, e.Text)
			}
		})
	}
}

// An address that must not be called is said to be that, by the client that we are given.
func TestBlocked(t *testing.T) {
	desttest.Blocked(t, func(env destination.Env) destination.Destination { return openWith(t, repo(), env) },
		func(r *http.Request) bool { return r.URL.Host == "api.github.com" && r.URL.Scheme == "https" }, repohosttest.Token)
}

func TestOpenNeedsAClient(t *testing.T) {
	c := repo()
	_, err := repohost.Type.Open(&c, destination.Env{})
	fails(t, err, destination.Unexpected)
}

// What is no key is not sealed to: padded, or cut, it would be an unknown key.
func TestDecodeKey(t *testing.T) {
	key := func(n int) string { return base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n))) }
	for _, bad := range []struct{ id, key string }{{"1", ""}, {"1", key(31)}, {"1", key(33)}, {"1", key(32)[1:]}, {"1", "?"}, {"", key(32)}} {
		if _, err := repohost.DecodeKey(bad.id, bad.key); err == nil {
			t.Errorf("%+v is a key", bad)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	f.Add("012", "hBT5WZEj8ZoOv6TYJsfWq7MxTEQopZO5/IT3ZCVQPzs=")
	f.Add("", "hBT5WZEj8ZoOv6TYJsfWq7MxTEQopZO5/IT3ZCVQPzs=")
	f.Add("1", "AAAA")
	f.Add("1", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Fuzz(func(t *testing.T, id, key string) {
		seal, err := repohost.DecodeKey(id, key)
		if err != nil {
			return
		}
		sealed, err := seal([]byte("the-value"))
		if err == nil && (sealed == "" || strings.Contains(sealed, "the-value")) {
			t.Errorf("sealed to %q", sealed)
		}
	})
}

// What can be known of a destination that is not reached is said.
func TestUnreachable(t *testing.T) {
	desttest.Unreachable(t, func(env destination.Env) destination.Destination { return openWith(t, repo(), env) }, repohosttest.Token)
}
