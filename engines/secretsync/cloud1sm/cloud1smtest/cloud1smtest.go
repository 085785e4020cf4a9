// Package cloud1smtest is AWS Secrets Manager for tests: an HTTP server on loopback that speaks the service's JSON protocol
// as the vendor's SDK does, with STS for roles, and a judge that holds every request, and its own answers, against the
// vendor's model.
//
//	s := cloud1smtest.New(t)
//	accessKey, secretKey := s.Root() // of a user who may do everything
//	// the endpoint is s.URL, the region s.Region
//
// It knows secrets with versions, staging labels, tags and scheduled deletion, and rejects what the vendor rejects: taken
// names, tokens used for another value, labels that are elsewhere, names, values and tags out of bounds, wrong signatures.
//
// A request that breaks a rule of the model fails the test, because the vendor would reject it in production only (see Judge).
package cloud1smtest

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

const (
	maxBody     = 1 << 20
	target      = "secretsmanager."
	contentType = "application/x-amz-json-1.1"
	account     = "123456789012"
)

// Server is the service in one region of one account. Safe for concurrent use.
type Server struct {
	URL    string
	Region string
	// STS is where roles are; what it lets in, this service lets in. It is at the same URL.
	STS *awstest.Server

	model    *model
	testing  testing.TB
	judge    func(Violation)
	pageSize int

	mu       sync.Mutex
	offset   time.Duration // added to the clock
	fail     func(Call) awstest.Fault
	denied   func(action, secretID string) bool
	calls    []Call
	sessions map[string]credential
	secrets  map[string]*secret // by ARN
	dying    map[string]bool    // names that were deleted for good and are not free yet
	slow     bool               // names become free by Settle only
	made     int                // secrets
	requests int
}

// Option changes a new Server.
type Option func(*Server)

// Judge hands violations of the vendor's model to f instead of failing the test. f may be called from several goroutines.
func Judge(f func(Violation)) Option { return func(s *Server) { s.judge = f } }

// PageSize is how many secrets are in one answer at most, 100 if it is not given.
func PageSize(n int) Option { return func(s *Server) { s.pageSize = n } }

// SlowDeletion keeps the name of a secret that was deleted without recovery taken until Settle, as the service may.
func SlowDeletion() Option { return func(s *Server) { s.slow = true } }

// New starts a Server that lives as long as the test.
func New(t testing.TB, opts ...Option) *Server {
	t.Helper()
	m, err := loadModel()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Region: "eu-central-1", STS: awstest.New(t), model: m, testing: t, pageSize: 100,
		sessions: map[string]credential{}, secrets: map[string]*secret{}, dying: map[string]bool{},
	}
	s.judge = func(v Violation) { t.Errorf("the provider would reject this request: %v", v) }
	for _, o := range opts {
		o(s)
	}
	l := httptest.NewServer(s)
	t.Cleanup(l.Close)
	s.URL = l.URL
	return s
}

// Root returns the key of a user who may do everything.
func (s *Server) Root() (accessKey, secretKey string) { return s.STS.Root() }

// Call is one request that was received.
type Call struct {
	Action   string // "AssumeRole" of STS
	SecretID string // or the name of a new one
}

// Calls returns what was received so far, the oldest first, with what failed.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Actions returns the actions of Calls and forgets them.
func (s *Server) Actions() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		names = append(names, c.Action)
	}
	s.calls = nil
	return names
}

// Fail lets f say what goes wrong with each request that follows; nil is nothing. f is called without a lock.
func (s *Server) Fail(f func(Call) awstest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// FailNext is Fail for the next n requests of an action.
func (s *Server) FailNext(n int, action string, fault awstest.Fault) {
	var mu sync.Mutex
	s.Fail(func(c Call) awstest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Action != action || n == 0 {
			return awstest.Fault{}
		}
		n--
		return fault
	})
}

// Deny sets what is denied to all clients; nil: nothing.
func (s *Server) Deny(f func(action, secretID string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = f
}

// Advance moves the server's clock on.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// Settle makes the names free of all secrets that were deleted for good.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.dying)
}

func (s *Server) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Time { return time.Now().Add(s.offset) }

// credential returns what a key is signed with.
func (s *Server) credential(key string) (credential, bool) {
	if id, secret := s.Root(); id == key {
		return credential{secret: secret}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.sessions[key]
	return c, ok
}

// refusal is a response that is an error.
type refusal struct {
	status  int
	code    string
	message string
}

func reject(code, format string, args ...any) *refusal {
	r := &refusal{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
	if code == "InternalServiceError" {
		r.status = http.StatusInternalServerError
	}
	return r
}

// everywhere are the codes that the model leaves out because any action may fail with them.
var everywhere = []string{
	"AccessDeniedException", "ExpiredTokenException", "IncompleteSignatureException", "InvalidSignatureException",
	"MissingAuthenticationTokenException", "SerializationException", "ThrottlingException", "UnknownOperationException",
	"UnrecognizedClientException", "ValidationException",
}

// ServeHTTP is the service, and STS.
func (s *Server) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, h.Body, maxBody))
	if err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		panic(http.ErrAbortHandler)
	}
	h.Body = io.NopCloser(bytes.NewReader(body))
	if strings.HasPrefix(h.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		action := "AssumeRole"
		if form, err := url.ParseQuery(string(body)); err == nil && form.Get("Action") != "" {
			action = form.Get("Action")
		}
		s.record(Call{Action: action})
		s.assume(w, h, action)
		return
	}
	action, ok := strings.CutPrefix(h.Header.Get("X-Amz-Target"), target)
	if !ok || s.model.Operations[action].Input.Shape == "" {
		s.reject(w, reject("UnknownOperationException", ""), 0)
		return
	}
	s.envelope(h, action)
	decoded, err := decode(body)
	in, _ := decoded.(map[string]any)
	if err != nil || in == nil {
		s.reject(w, reject("SerializationException", ""), 0)
		return
	}
	violations := s.model.request(action, decoded)
	for _, v := range violations {
		s.judge(v)
	}
	r := &request{s: s, in: in, action: action}
	fault := s.record(Call{Action: action, SecretID: r.id()})
	s.wait(h, fault.Delay)
	if fault.When == awstest.BeforeCommit && s.spoil(w, fault) {
		return
	}
	out, rejected := s.carryOut(r, h, body, violations)
	if fault.When == awstest.AfterCommit && s.spoil(w, fault) {
		return
	}
	if fault.Then != nil {
		fault.Then()
	}
	if rejected != nil {
		s.reject(w, rejected, 0)
		return
	}
	s.respond(w, out)
}

// envelope judges what is around a request.
func (s *Server) envelope(h *http.Request, action string) {
	if h.Method != http.MethodPost || h.URL.Path != "/" || h.URL.RawQuery != "" {
		s.judge(Violation{action, "", "not a POST to /"})
	}
	if h.Header.Get("Content-Type") != contentType {
		s.judge(Violation{action, "", "not of the content type " + contentType})
	}
}

func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func (s *Server) record(c Call) awstest.Fault {
	s.mu.Lock()
	s.calls = append(s.calls, c)
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return awstest.Fault{}
	}
	return fail(c)
}

func (s *Server) wait(h *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.Context().Done():
	}
}

// spoil answers as a fault says, and reports whether it does.
func (s *Server) spoil(w http.ResponseWriter, f awstest.Fault) bool {
	if !f.Drop && f.Status == 0 && f.Code == "" {
		return false
	}
	if f.Then != nil {
		f.Then()
	}
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	rejected := reject(f.Code, "%s", f.Message)
	if f.Status != 0 {
		rejected.status = f.Status
	}
	s.reject(w, rejected, f.RetryAfter)
	return true
}

// carryOut authenticates, authorises and does what is asked.
func (s *Server) carryOut(r *request, h *http.Request, body []byte, violations []Violation) (any, *refusal) {
	if rejected := s.authenticate(h, body); rejected != nil {
		return nil, rejected
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.now = s.now()
	s.purge(r.now)
	if s.denied != nil && s.denied(r.action, r.id()) {
		return nil, reject("AccessDeniedException", "User: arn:aws:iam::%s:user/root-user is not authorized to perform: secretsmanager:%s on resource: %s "+
			"because no identity-based policy allows the secretsmanager:%s action", account, r.action, r.id(), r.action)
	}
	if len(violations) > 0 {
		return nil, reject("ValidationException", "%d validation errors detected", len(violations))
	}
	do, ok := actions[r.action]
	if !ok {
		s.testing.Errorf("cloud1smtest: there is no %s here", r.action)
		return nil, reject("UnknownOperationException", "")
	}
	out, rejected := do(r)
	if rejected == nil {
		for _, v := range s.model.answer(r.action, out) {
			s.testing.Errorf("cloud1smtest: an answer is not what the vendor's model has: %v", v)
		}
	} else if !slices.Contains(everywhere, rejected.code) && !s.model.rejects(r.action, rejected.code) {
		s.testing.Errorf("cloud1smtest: %s answers %s, which the vendor's model does not have", r.action, rejected.code)
	}
	return out, rejected
}

// assume lets STS answer, and remembers the credentials that it gives.
func (s *Server) assume(w http.ResponseWriter, h *http.Request, action string) {
	answer := httptest.NewRecorder()
	s.STS.ServeHTTP(answer, h)
	type credentials struct {
		Key    string `xml:"Credentials>AccessKeyId"`
		Secret string `xml:"Credentials>SecretAccessKey"`
		Token  string `xml:"Credentials>SessionToken"`
	}
	var out struct {
		Role        credentials `xml:"AssumeRoleResult"`
		WebIdentity credentials `xml:"AssumeRoleWithWebIdentityResult"`
	}
	if answer.Code == http.StatusOK && xml.Unmarshal(answer.Body.Bytes(), &out) == nil {
		got := out.Role
		if action == "AssumeRoleWithWebIdentity" {
			got = out.WebIdentity
		}
		s.mu.Lock()
		s.sessions[got.Key] = credential{got.Secret, got.Token}
		s.mu.Unlock()
	}
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("X-Amzn-Requestid", s.requestID())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// Expire takes the credentials back that roles have given.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

func (s *Server) requestID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return fmt.Sprintf("%08x-0000-4000-8000-000000000000", s.requests)
}

func (s *Server) respond(w http.ResponseWriter, out any) {
	s.head(w, http.StatusOK)
	if out != nil {
		_ = json.NewEncoder(w).Encode(out)
	}
}

func (s *Server) reject(w http.ResponseWriter, r *refusal, after time.Duration) {
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	}
	s.head(w, r.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": r.code, "Message": r.message})
}

func (s *Server) head(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Amzn-Requestid", s.requestID())
	w.Header().Set("Date", s.clock().UTC().Format(http.TimeFormat))
	w.WriteHeader(status)
}
