package cloud3sm_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func reason(text string) protoadapt.MessageV1 { return &errdetails.ErrorInfo{Reason: text} }

// TestErrors: whose fault each response is, in reading and in the call that creates.
func TestErrors(t *testing.T) {
	tests := []struct {
		code    codes.Code
		details []protoadapt.MessageV1
		class   destination.Class
		want    string
		unknown bool // of the write
		after   time.Duration
		text    string
	}{
		{code: codes.InvalidArgument, class: destination.Client, want: destination.BadRequest, text: "InvalidArgument"},
		{code: codes.FailedPrecondition, class: destination.Client, want: destination.BadRequest},
		{code: codes.PermissionDenied, class: destination.Client, want: destination.Denied, text: "grant the service account secretmanager.secrets."},
		{code: codes.PermissionDenied, details: []protoadapt.MessageV1{reason("SERVICE_DISABLED")}, class: destination.Client, want: destination.Denied, text: "enable the Secret Manager API"},
		{code: codes.PermissionDenied, details: []protoadapt.MessageV1{reason("BILLING_DISABLED")}, class: destination.Client, want: destination.Denied, text: "billing account"},
		{code: codes.PermissionDenied, details: []protoadapt.MessageV1{reason("CONSUMER_INVALID")}, class: destination.Client, want: destination.NoLocation, text: "no such project"},
		{code: codes.PermissionDenied, details: []protoadapt.MessageV1{reason("no reason, but\na text")}, class: destination.Client, want: destination.Denied},
		{code: codes.ResourceExhausted, class: destination.External, want: destination.Throttled},
		{code: codes.ResourceExhausted, details: []protoadapt.MessageV1{reason("RATE_LIMIT_EXCEEDED"), &errdetails.RetryInfo{RetryDelay: durationpb.New(9 * time.Second)}},
			class: destination.External, want: destination.Throttled, after: 9 * time.Second},
		{code: codes.ResourceExhausted, details: []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(1000 * time.Hour)}},
			class: destination.External, want: destination.Throttled, after: destination.MaxRetryAfter},
		{code: codes.ResourceExhausted, details: []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(-time.Hour)}}, class: destination.External, want: destination.Throttled},
		{code: codes.Unavailable, details: []protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}}, class: destination.External, want: destination.Unavailable, unknown: true, after: time.Second},
		{code: codes.Internal, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.Unknown, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.DataLoss, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.DeadlineExceeded, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.Aborted, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.Canceled, class: destination.External, want: destination.Unavailable, unknown: true},
		{code: codes.Unimplemented, class: destination.External, want: destination.Unexpected},
		{code: codes.OutOfRange, class: destination.External, want: destination.Unexpected},
	}
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	for _, test := range tests {
		t.Run(fmt.Sprint(test.code, test.details), func(t *testing.T) {
			st, err := status.New(test.code, "the vendor's words").WithDetails(test.details...)
			if err != nil {
				t.Fatal(err)
			}
			answer := func(context.Context, any) error { return st.Err() }
			s.Hook("GetSecret", answer)
			s.Hook("CreateSecret", answer)
			s.Calls()
			_, readErr := d.Read(t.Context(), "one")
			_, writeErr := d.Write(t.Context(), item("one", "the-value"), destination.Found{Name: "one"})
			if calls := s.Calls(); len(calls) != 2 {
				t.Errorf("calls are repeated: %v", calls)
			}
			for _, err := range []error{readErr, writeErr} {
				e := desttest.Fails(t, err, test.want)
				if e.Class != test.class || e.RetryAfter != test.after || !strings.Contains(e.Text, test.text) || strings.Contains(e.Text, "\n") {
					t.Errorf("got %+v", e)
				}
				if !strings.Contains(e.Text, "the vendor's words") {
					t.Errorf("the vendor's words are missing: %s", e.Text)
				}
			}
			if desttest.Fails(t, readErr, test.want).Unknown || desttest.Fails(t, writeErr, test.want).Unknown != test.unknown {
				t.Errorf("unknown: read %v, write %v", readErr, writeErr)
			}
		})
	}
}

// TestErrorsTellNothing: a service that repeats what it was sent, headers and all, does not get it into a text.
func TestErrorsTellNothing(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "before"))
	var mu sync.Mutex
	var sent []string
	echo := func(ctx context.Context, req any) error {
		md, _ := metadata.FromIncomingContext(ctx)
		text := md.Get("authorization")[0]
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, strings.TrimPrefix(text, "Bearer "))
		return status.Errorf(codes.InvalidArgument, "%v with %s", req, text)
	}
	const value = "Tr0ub4dor"
	for _, method := range []string{"GetSecret", "AccessSecretVersion", "AddSecretVersion", "CreateSecret", "DeleteSecret", "ListSecrets"} {
		was := desttest.Read(t, d, "one")
		s.Hook(method, echo)
		var errs []error
		_, err := d.Read(t.Context(), "one")
		errs = append(errs, err)
		_, err = d.Write(t.Context(), item("one", value), was)
		errs = append(errs, err)
		_, err = d.Write(t.Context(), item("new-"+strings.ToLower(method), value), destination.Found{})
		errs = append(errs, err, d.Delete(t.Context(), was))
		for _, err := range d.List(t.Context()) {
			errs = append(errs, err)
		}
		for _, c := range d.Verify(t.Context()) {
			errs = append(errs, errors.New(c.Text))
		}
		s.Hook(method, nil)
		if _, ok := s.Get("one"); !ok {
			desttest.Write(t, d, item("one", "before"))
		}
		for _, err := range errs {
			var e *destination.Error
			text := fmt.Sprintf("%v", err)
			if errors.As(err, &e) {
				text += fmt.Sprintf(" %v %+v", e.Err, e)
			}
			for _, secret := range append(sent, value, "PRIVATE KEY") {
				if strings.Contains(text, secret) {
					t.Errorf("%s: a text tells a secret", method)
				}
			}
		}
	}
	// Nor the value alone, where the token is not beside it.
	for _, method := range []string{"AccessSecretVersion", "AddSecretVersion"} {
		was := desttest.Read(t, d, "one")
		s.Hook(method, func(context.Context, any) error { return status.Errorf(codes.InvalidArgument, "bad payload %s", value) })
		_, err := d.Write(t.Context(), item("one", value), was)
		s.Hook(method, nil)
		if e := desttest.Fails(t, err, destination.BadRequest); strings.Contains(e.Text, value) {
			t.Errorf("%s: a text tells the value", method)
		}
	}
	if len(sent) < 6 {
		t.Errorf("only %d calls were answered so", len(sent))
	}
}

func TestLongWordsAreCut(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Hook("GetSecret", func(context.Context, any) error {
		return status.Error(codes.PermissionDenied, "first\nsecond\x1b[31m"+strings.Repeat("ü", 5000))
	})
	_, err := d.Read(t.Context(), "one")
	if e := desttest.Fails(t, err, destination.Denied); len(e.Text) > 600 || strings.ContainsAny(e.Text, "\n\x1b") {
		t.Errorf("the text is %q", e.Text)
	}
}

// TestUnansweredCalls: only what was sent may have been done.
func TestUnansweredCalls(t *testing.T) {
	blocked := &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "10.0.0.1 is not an address that may be called"}
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", io.ErrUnexpectedEOF)}
	tests := []struct {
		name string
		dial error
		code string
		text string
	}{
		{"the address is blocked", blocked, destination.Blocked, "10.0.0.1"},
		{"the address is blocked, in other words", fmt.Errorf("dialling: %w", blocked), destination.Blocked, "10.0.0.1"},
		{"there is no connection", refused, destination.Unreachable, "calling secrets.create"},
		{"there is no such host", &net.DNSError{Err: "no such host", Name: "secretmanager.googleapis.com", IsNotFound: true}, destination.Unreachable, "the name secretmanager.googleapis.com is not found"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			env := s.Env()
			env.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, test.dial }
			d := openWith(t, env, configured(nil))
			_, err := d.Write(t.Context(), item("one", "v"), destination.Found{Name: "one"})
			if e := desttest.Fails(t, err, test.code); e.Unknown || !strings.Contains(e.Text, test.text) {
				t.Errorf("%+v", e)
			}
			checks := d.Verify(t.Context())
			if last := checks[len(checks)-1]; last.OK || last.Name != "reachable" {
				t.Errorf("verify says %+v", checks)
			}
		})
	}
	t.Run("the certificate is another's", func(t *testing.T) {
		s := cloud3smtest.New(t)
		env := s.Env()
		env.TLS = nil
		_, err := openWith(t, env, configured(nil)).Write(t.Context(), item("one", "v"), destination.Found{Name: "one"})
		if e := desttest.Fails(t, err, destination.Unreachable); e.Unknown || !strings.Contains(e.Text, "certificate") {
			t.Errorf("%+v", e)
		}
	})
	t.Run("without TLS it does not speak", func(t *testing.T) {
		s := cloud3smtest.New(t)
		env := s.Env()
		env.URL = strings.Replace(env.URL, "https:", "http:", 1)
		_, err := openWith(t, env, configured(nil)).Read(t.Context(), "one")
		desttest.Fails(t, err, destination.Unreachable)
	})
	t.Run("the answer is lost", func(t *testing.T) {
		s := cloud3smtest.New(t)
		d := open(t, s, configured(nil))
		s.Fail(desttest.Fault{Kind: desttest.DropAfter, Writes: true})
		_, err := d.Write(t.Context(), item("one", "v"), destination.Found{Name: "one"})
		if e := desttest.Fails(t, err, destination.Unreachable); !e.Unknown {
			t.Error("it may have been done")
		}
		if calls := s.Calls(); !slices.Equal(calls, []string{"CreateSecret"}) {
			t.Errorf("it calls %v", calls)
		}
	})
	t.Run("given up", func(t *testing.T) {
		s := cloud3smtest.New(t)
		d := open(t, s, configured(nil))
		ctx, cancel := context.WithCancel(t.Context())
		s.Hook("CreateSecret", func(ctx context.Context, _ any) error { cancel(); <-ctx.Done(); return ctx.Err() })
		_, err := d.Write(ctx, item("one", "v"), destination.Found{Name: "one"})
		if e := desttest.Fails(t, err, destination.Unreachable); !e.Unknown || !errors.Is(err, context.Canceled) {
			t.Errorf("%+v", e)
		}
		_, err = d.Read(ctx, "one")
		desttest.Fails(t, err, destination.Unreachable)
	})
}

// TestStrangeAnswers are not taken for good ones.
func TestStrangeAnswers(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	s.Put("one", "v")
	s.Put("two", "w")
	for name, test := range map[string]struct {
		method string
		change func(req any)
	}{
		"another secret": {"GetSecret", func(req any) { req.(*secretmanagerpb.GetSecretRequest).Name = "projects/coffer-tests/secrets/two" }},
		"another secret's version": {"AccessSecretVersion", func(req any) {
			req.(*secretmanagerpb.AccessSecretVersionRequest).Name = "projects/coffer-tests/secrets/two/versions/1"
		}},
		"a value that was damaged": {"AccessSecretVersion", func(any) { s.Damage("one") }},
	} {
		t.Run(name, func(t *testing.T) {
			s.Hook(test.method, func(_ context.Context, req any) error { test.change(req); return nil })
			defer s.Hook(test.method, nil)
			_, err := d.Read(t.Context(), "one")
			if e := desttest.Fails(t, err, destination.Unexpected); e.Class != destination.External {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestChecksumIsSent, so that the destination notices what was changed on the way.
func TestChecksumIsSent(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "v"))
	if got := s.Versions("one"); !slices.Equal(got, []string{"ENABLED+"}) {
		t.Errorf("versions %v", got)
	}
	s.Hook("AddSecretVersion", func(_ context.Context, req any) error {
		req.(*secretmanagerpb.AddSecretVersionRequest).Payload.Data[0] ^= 1
		return nil
	})
	_, err := d.Write(t.Context(), item("one", "w"), desttest.Read(t, d, "one"))
	desttest.Fails(t, err, destination.BadRequest)
	if got, _ := s.Get("one"); got != "v" {
		t.Error("a damaged value was taken")
	}
}

// TestLibraryLogsNothing: the vendor's library would log whole requests if the environment said so.
func TestLibraryLogsNothing(t *testing.T) {
	t.Setenv("GOOGLE_SDK_GO_LOGGING_LEVEL", "debug")
	old := os.Stderr
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = out
	t.Cleanup(func() { os.Stderr = old })
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "the-value"))
	_, readErr := d.Read(t.Context(), "one")
	os.Stderr = old
	_ = out.Close()
	logged, err := io.ReadAll(in)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	if len(logged) > 0 {
		t.Errorf("%d bytes are logged", len(logged))
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTokenService(t *testing.T) {
	answer := func(code int, body string, header ...string) roundTripper {
		return func(*http.Request) (*http.Response, error) {
			h := http.Header{}
			for i := 0; i < len(header); i += 2 {
				h.Set(header[i], header[i+1])
			}
			return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	repeat := func(format string) roundTripper {
		return func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			return answer(400, fmt.Sprintf(format, body))(r)
		}
	}
	blocked := &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "blocked"}
	tests := []struct {
		name   string
		answer roundTripper
		code   string
		class  destination.Class
		after  time.Duration
	}{
		{"the key is rejected", answer(400, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`), destination.Denied, destination.Client, 0},
		{"it repeats what it was sent", repeat(`{"error":"invalid_grant","error_description":"%s"}`), destination.Denied, destination.Client, 0},
		{"it repeats it as the reason", repeat(`{"error":"%s"}`), destination.Denied, destination.Client, 0},
		{"unauthorised", answer(401, `{"error":"invalid_client"}`), destination.Denied, destination.Client, 0},
		{"throttled", answer(429, ``, "Retry-After", "11"), destination.Throttled, destination.External, 11 * time.Second},
		{"throttled for ever", answer(429, ``, "Retry-After", "999999999"), destination.Throttled, destination.External, destination.MaxRetryAfter},
		{"throttled until a day long ago", answer(429, ``, "Retry-After", "Fri, 02 Jan 2026 15:04:05 GMT"), destination.Throttled, destination.External, 0},
		{"throttled until a time by its own clock", answer(429, ``, "Retry-After", "Fri, 02 Jan 2026 15:04:05 GMT", "Date", "Fri, 02 Jan 2026 15:03:00 GMT"), destination.Throttled, destination.External, 65 * time.Second},
		{"throttled, in no words", answer(429, ``, "Retry-After", "soon"), destination.Throttled, destination.External, 0},
		{"trouble", answer(503, `<html>`), destination.Unavailable, destination.External, 0},
		{"moved", answer(302, ``), destination.Unexpected, destination.External, 0},
		{"no JSON", answer(200, `<html>`), destination.Unexpected, destination.External, 0},
		{"no token", answer(200, `{"token_type":"Bearer"}`), destination.Unexpected, destination.External, 0},
		{"a token of another sort", answer(200, `{"access_token":"x","token_type":"MAC"}`), destination.Unexpected, destination.External, 0},
		{"a token with a header in it", answer(200, `{"access_token":"x\r\nX-Evil: 1","token_type":"Bearer"}`), destination.Unexpected, destination.External, 0},
		{"it breaks off", func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, destination.Unreachable, destination.External, 0},
		{"it is blocked", func(*http.Request) (*http.Response, error) { return nil, blocked }, destination.Blocked, destination.Client, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			env := s.Env()
			var assertion string
			env.Client = &http.Client{
				Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.URL.RawQuery != "" || r.Method != http.MethodPost {
						t.Errorf("it asks with %s %s", r.Method, r.URL)
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return nil, err
					}
					r.Body, assertion = io.NopCloser(bytes.NewReader(body)), string(body)
					return test.answer(r)
				}),
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}
			d := openWith(t, env, configured(nil))
			_, err := d.Write(t.Context(), item("one", "v"), destination.Found{Name: "one"})
			e := desttest.Fails(t, err, test.code)
			if e.Class != test.class || e.RetryAfter != test.after || e.Unknown {
				t.Errorf("%+v", e)
			}
			if strings.Contains(e.Text, "eyJ") || assertion != "" && strings.Contains(e.Text, assertion[20:]) {
				t.Error("the text has the assertion in it")
			}
			if calls := s.Calls(); len(calls) > 0 {
				t.Errorf("without a token it calls %v", calls)
			}
		})
	}
}

// TestTokensAreKept, and replaced when the destination does not take them any more.
func TestTokensAreKept(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(nil))
	desttest.Write(t, d, item("one", "v"))
	desttest.Read(t, d, "one")
	if _, issued := s.Tokens(); issued != 1 {
		t.Errorf("%d tokens for a few calls", issued)
	}
	s.EndTokens()
	_, err := d.Read(t.Context(), "one")
	if e := desttest.Fails(t, err, destination.Unavailable); e.Class != destination.External {
		t.Errorf("a token that has ended: %+v", e)
	}
	desttest.Read(t, d, "one")
	if _, issued := s.Tokens(); issued != 2 {
		t.Errorf("%d tokens", issued)
	}
	s.EndTokens()
	s.DisableKey()
	_, err = d.Read(t.Context(), "one")
	desttest.Fails(t, err, destination.Unavailable)
	_, err = d.Read(t.Context(), "one")
	if e := desttest.Fails(t, err, destination.Denied); e.Class != destination.Client || !strings.Contains(e.Text, "disabled") {
		t.Errorf("a key that is disabled: %+v", e)
	}
}

// TestFreshTokenRefused: a new token that is rejected is no temporary failure.
func TestFreshTokenRefused(t *testing.T) {
	s := cloud3smtest.New(t)
	env := s.Env()
	env.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"access_token":"made-up","token_type":"Bearer","expires_in":3600}`))}, nil
	})}
	_, err := openWith(t, env, configured(nil)).Read(t.Context(), "one")
	if e := desttest.Fails(t, err, destination.Denied); e.Class != destination.Client || strings.Contains(e.Text, "made-up") {
		t.Errorf("%+v", e)
	}
}

func TestAnotherProject(t *testing.T) {
	s := cloud3smtest.New(t)
	d := open(t, s, configured(func(c *cloud3sm.Config) { c.ProjectID = "other-project" }))
	_, err := d.Read(t.Context(), "one")
	desttest.Fails(t, err, destination.NoLocation)
}

// TestVendorsAddresses: without an operator's word only the vendor's own hosts are called, under their names, whatever
// credentials say.
func TestVendorsAddresses(t *testing.T) {
	s := cloud3smtest.New(t)
	env := s.Env()
	fake, issuer := strings.TrimPrefix(env.URL, "https://"), env.Client
	tokens := strings.TrimPrefix(env.TokenURL, "https://")
	var dialled, asked, named []string
	env.URL, env.TokenURL = "", ""
	env.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled = append(dialled, network+" "+address)
		return new(net.Dialer).DialContext(ctx, network, fake)
	}
	env.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "not.this", InsecureSkipVerify: true, VerifyConnection: func(c tls.ConnectionState) error {
		named = append(named, c.ServerName)
		return nil
	}}
	env.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.String())
		r.URL.Host, _, _ = strings.Cut(tokens, "/")
		return issuer.Transport.RoundTrip(r)
	})}
	d := openWith(t, env, configured(func(c *cloud3sm.Config) {
		c.Credentials = engines.Sensitive(with(map[string]any{"token_uri": "https://accounts.google.com/o/oauth2/token", "auth_uri": "https://evil.example/"}))
	}))
	desttest.Write(t, d, item("one", "v"))
	if !slices.Equal(dialled, []string{"tcp secretmanager.googleapis.com:443"}) || !slices.Equal(named, []string{"secretmanager.googleapis.com"}) {
		t.Errorf("dialled %v as %v", dialled, named)
	}
	if !slices.Equal(asked, []string{"https://oauth2.googleapis.com/token"}) {
		t.Errorf("asked %v", asked)
	}
}
