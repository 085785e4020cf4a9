package cloud1sm_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1/cloud1test"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

func (a always) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {a.kind}}, Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

func TestCodes(t *testing.T) {
	s := cloud1smtest.New(t)
	was := destination.Found{Name: name}
	for _, test := range []struct {
		fault   string
		status  int
		class   destination.Class
		code    string
		unknown bool
	}{
		{"AccessDeniedException", 400, destination.Client, destination.Denied, false},
		{"UnrecognizedClientException", 400, destination.Client, destination.Denied, false},
		{"InvalidSignatureException", 400, destination.Client, destination.Denied, false},
		{"ExpiredTokenException", 403, destination.Client, destination.Denied, false},
		{"ThrottlingException", 400, destination.External, destination.Throttled, false},
		{"SlowDown", 503, destination.External, destination.Throttled, false},
		{"Throttling", 400, destination.External, destination.Throttled, false},
		{"TooManyRequestsException", 429, destination.External, destination.Throttled, false},
		{"InternalServiceError", 500, destination.External, destination.Unavailable, true},
		{"ServiceUnavailable", 503, destination.External, destination.Unavailable, true},
		{"LimitExceededException", 400, destination.Client, destination.Quota, false},
		{"InvalidParameterException", 400, destination.Client, destination.BadRequest, false},
		{"ValidationException", 400, destination.Client, destination.BadRequest, false},
		{"EncryptionFailure", 400, destination.Client, destination.BadRequest, false},
		{"PreconditionNotMetException", 400, destination.Client, destination.BadRequest, false},
		{"ResourceExistsException", 400, destination.Client, destination.Exists, false},
		{"RegionDisabledException", 403, destination.Client, destination.NoLocation, false},
		{"SomethingNew", 400, destination.Client, destination.BadRequest, false},
		{"SomethingNew", 403, destination.Client, destination.Denied, false},
		{"SomethingNew", 502, destination.External, destination.Unavailable, true},
		{"", 400, destination.Client, destination.BadRequest, false},
		{"", 403, destination.Client, destination.Denied, false},
		{"", 408, destination.External, destination.Unavailable, false},
		{"", 413, destination.Client, destination.TooLarge, false},
		{"", 429, destination.External, destination.Throttled, false},
		{"", 503, destination.External, destination.Unavailable, true},
		{"", 307, destination.External, destination.Unexpected, false},
		{strings.Repeat("x", 99), 400, destination.Client, destination.BadRequest, false},
		{"<b>bad\n", 400, destination.Client, destination.BadRequest, false},
	} {
		t.Run(fmt.Sprintf("%.30q %d", test.fault, test.status), func(t *testing.T) {
			other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				if test.fault == "" {
					w.WriteHeader(test.status)
					return
				}
				cloud1test.Refuse(test.status, test.fault)(w, r)
			}))
			defer other.Close()
			at := open(t, s, destination.Env{URL: other.URL}, nil)
			it := item("a-value-to-keep")
			_, err := at.Write(t.Context(), it, was)
			e := failed(t, err, test.class, test.code, test.unknown)
			for _, bad := range []string{"a-value-to-keep", "\n", "<b>", strings.Repeat("x", 99)} {
				if strings.Contains(e.Text, bad) {
					t.Errorf("the error has %.20q in it: %q", bad, e.Text)
				}
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	s := cloud1smtest.New(t)
	for _, test := range []struct {
		after, date string
		want        time.Duration
	}{
		{"11", "", 11 * time.Second},
		{"999999999", "", 24 * time.Hour},
		{"-5", "", 0},
		{"soon", "", 0},
		{"Fri, 02 Jan 2026 15:04:05 GMT", "Fri, 02 Jan 2026 15:03:00 GMT", 65 * time.Second}, // by its own clock
		{"Fri, 02 Jan 2026 15:04:05 GMT", "Fri, 02 Jan 2026 16:00:00 GMT", 0},
	} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", test.after)
			if test.date != "" {
				w.Header().Set("Date", test.date)
			}
			cloud1test.Refuse(400, "ThrottlingException")(w, r)
		}))
		defer other.Close()
		_, err := open(t, s, destination.Env{URL: other.URL}, nil).Read(t.Context(), name)
		if e := failed(t, err, destination.External, destination.Throttled, false); e.RetryAfter != test.want {
			t.Errorf("%s at %s: %v", test.after, test.date, e.RetryAfter)
		}
	}
}

// TestOthersCredentialsAreHidden: what looks like a credential is left out of the provider's text, also those of others.
func TestOthersCredentialsAreHidden(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	id, long := "ASIA1234567890ABCDEF", strings.Repeat("Zm9v/+", 10)
	s.FailNext(1, "DescribeSecret", awstest.Fault{Code: "AccessDeniedException", Message: "the key " + id + " with the token " + long + " may not"})
	_, err := d.Read(t.Context(), name)
	e := failed(t, err, destination.Client, destination.Denied, false)
	if strings.Contains(e.Text, id) || strings.Contains(e.Text, "Zm9v") || !strings.Contains(e.Text, "may not") {
		t.Errorf("the error says %q", e.Text)
	}
}

// TestOwnCredentialsAreHidden, too, however they look.
func TestOwnCredentialsAreHidden(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type":"AccessDeniedException","Message":"SHORT_ID with tiny-key may not"}`)
	}))
	defer other.Close()
	d := open(t, cloud1smtest.New(t), destination.Env{URL: other.URL}, func(c *cloud1sm.Config) { c.AccessKeyID, c.SecretAccessKey = "SHORT_ID", "tiny-key" })
	_, err := d.Read(t.Context(), name)
	e := failed(t, err, destination.Client, destination.Denied, false)
	if strings.Contains(e.Text, "SHORT_ID") || strings.Contains(e.Text, "tiny-key") || !strings.Contains(e.Text, "may not") {
		t.Errorf("the error says %q", e.Text)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestNothingIsTold drives every call against a destination that says everything back that it was sent.
func TestNothingIsTold(t *testing.T) {
	s := cloud1smtest.New(t)
	real := open(t, s, destination.Env{}, nil)
	write(t, real, item("one"))
	was := read(t, real)
	id, key := s.Root()
	const value = "the quick brown value \"of\" things"
	encoded, _ := json.Marshal(value)
	secrets := []string{id, key, value, string(encoded[1 : len(encoded)-1]), base64.StdEncoding.EncodeToString([]byte(value)), "quick"}
	for _, code := range []string{
		"AccessDeniedException", "InvalidSignatureException", "InvalidRequestException", "InvalidParameterException", "LimitExceededException",
		"ValidationException", "EncryptionFailure", "ResourceExistsException", "ThrottlingException", "InternalServiceError", "New",
	} {
		other := httptest.NewServer(refusal400(code))
		d := open(t, s, destination.Env{URL: other.URL}, nil)
		it := item(value)
		it.Tags = map[string]string{"a": "b"}
		again := it
		again.Tags = nil
		deleted := was
		deleted.State = destination.Deleted
		var all []error
		keep := func(_ any, err error) { all = append(all, err) }
		keep(d.Read(t.Context(), name))
		keep(d.Write(t.Context(), it, destination.Found{Name: name}))
		keep(d.Write(t.Context(), it, was))
		keep(d.Write(t.Context(), again, was))
		keep(d.Write(t.Context(), again, deleted))
		keep(nil, d.Delete(t.Context(), was))
		for _, err := range d.List(t.Context()) {
			keep(nil, err)
		}
		for _, c := range d.Verify(t.Context()) {
			keep(nil, errors.New(c.Text))
		}
		other.Close()
		for i, err := range all {
			if err == nil {
				t.Errorf("%s: call %d succeeds", code, i)
				continue
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				for _, secret := range secrets {
					if text := fmt.Sprintf("%v %+v", e, e); strings.Contains(text, secret) {
						t.Errorf("%s: call %d tells a secret: %s", code, i, text)
					}
				}
			}
			if e, ok := errors.AsType[*destination.Error](err); ok && len(e.Text) > 500 {
				t.Errorf("%s: call %d says %d bytes", code, i, len(e.Text))
			}
		}
	}
}

func refusal400(code string) http.HandlerFunc { return cloud1test.Refuse(http.StatusBadRequest, code) }

func TestUnreachable(t *testing.T) {
	s := cloud1smtest.New(t)
	blocked := &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "127.0.0.1 may not be called"}
	tls := httptest.NewUnstartedServer(s)
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	defer tls.Close()
	dial := func(err error) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, err }}}
	}
	for _, test := range []struct {
		name  string
		env   destination.Env
		class destination.Class
		code  string
		text  string
	}{
		{"refused", destination.Env{URL: "http://127.0.0.1:1"}, destination.External, destination.Unreachable, "connected"},
		{"no such host", destination.Env{Client: dial(&net.DNSError{Err: "no such host", Name: "x"})}, destination.External, destination.Unreachable, "resolved"},
		{"blocked", destination.Env{Client: dial(blocked)}, destination.Client, destination.Blocked, "may not be called"},
		{"certificate", destination.Env{URL: tls.URL}, destination.External, destination.Unreachable, "certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := open(t, s, test.env, nil)
			_, err := d.Write(t.Context(), item("value"), destination.Found{Name: name})
			e := failed(t, err, test.class, test.code, false)
			if !strings.Contains(e.Text, test.text) {
				t.Errorf("the error says %q", e.Text)
			}
			checks := d.Verify(t.Context())
			if len(checks) != 1 || checks[0].Name != "reachable" || checks[0].OK {
				t.Errorf("verify: %+v", checks)
			}
		})
	}
}

func TestAnswerIsWaitedFor(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s.FailNext(1, "CreateSecret", hang)
	_, err := d.Write(ctx, item("value"), destination.Found{Name: name})
	e := failed(t, err, destination.External, destination.Unreachable, true)
	if !errors.Is(e, context.DeadlineExceeded) {
		t.Errorf("the cause is %v", e.Err)
	}
}

// TestWholeRequests: no connection breaks because the SDK closes what it sends too early, which loses long responses.
func TestWholeRequests(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	write(t, d, item(strings.Repeat("\x01", 65536)))
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		if i.Err != nil {
			t.Errorf("a request ends with %v", i.Err)
		}
	}})
	for range 5 {
		if _, err := d.Read(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHalfAnAnswer is one whose rest is lost.
func TestHalfAnAnswer(t *testing.T) {
	s := cloud1smtest.New(t)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.Header().Set("Content-Length", "9999")
		_, _ = io.WriteString(w, `{"ARN":"arn`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer other.Close()
	d := open(t, s, destination.Env{URL: other.URL}, nil)
	_, err := d.Write(t.Context(), item("value"), destination.Found{Name: name})
	failed(t, err, destination.External, destination.Unreachable, true)
}

func TestWrongTypeOfConfig(t *testing.T) {
	if _, err := cloud1sm.Type.Open(nil, destination.Env{}); err == nil {
		t.Error("opened without a configuration")
	}
}
