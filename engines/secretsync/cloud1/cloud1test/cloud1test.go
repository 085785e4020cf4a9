// Package cloud1test is what the fakes of AWS's services share: an HTTP server on loopback that speaks the JSON protocol of the vendor's SDK,
// with STS for roles, and a judge that holds every request, and its own answers, against the vendor's model of the service.
//
// A request that breaks a rule of the model fails the test, because the vendor would reject it in production only (see Server.Judge).
package cloud1test

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
	"regexp"
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
	contentType = "application/x-amz-json-1.1"
	account     = "123456789012"
)

// Service is what makes one service differ from another.
type Service struct {
	Name   string // of the fake, in failures of tests
	Prefix string // of the header X-Amz-Target, without the dot
	// Signing is the service's name in signatures and policies.
	Signing string
	Model   *Model
	// ID returns what a request is about, for Call.SecretID.
	ID func(r *Request) string
	// Do carries a request out, under the lock; false: the fake does not have the action.
	Do func(r *Request) (out any, rejected *Refusal, known bool)
}

// Request is a request that is authenticated and fits the model.
type Request struct {
	Action string
	In     map[string]any // numbers are json.Number
	Now    time.Time      // by the server's clock
}

// Server is a service in one region of one account. Safe for concurrent use.
type Server struct {
	URL    string
	Region string
	// STS is where roles are; what it lets in, this service lets in. It is at the same URL.
	STS *awstest.Server

	service  Service
	testing  testing.TB
	judge    func(Violation)
	mu       sync.Mutex
	offset   time.Duration // added to the clock
	fail     func(Call) awstest.Fault
	denied   func(action, id string) bool
	calls    []Call
	sessions map[string]credential
	requests int
}

// Start starts a Server that lives as long as the test.
func Start(t testing.TB, service Service) *Server {
	t.Helper()
	s := &Server{Region: "eu-central-1", STS: awstest.New(t), service: service, testing: t, sessions: map[string]credential{}}
	s.judge = func(v Violation) { t.Errorf("the provider would reject this request: %v", v) }
	l := httptest.NewServer(s)
	t.Cleanup(l.Close)
	s.URL = l.URL
	return s
}

// Judge hands violations of the vendor's model to f instead of failing the test, from now on. f may be called from several goroutines.
func (s *Server) Judge(f func(Violation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judge = f
}

// Lock takes the lock under which requests are carried out.
func (s *Server) Lock() { s.mu.Lock() }

// Unlock releases it.
func (s *Server) Unlock() { s.mu.Unlock() }

// Account is the id of the account.
func (s *Server) Account() string { return account }

// Root returns the key of a user who may do everything.
func (s *Server) Root() (accessKey, secretKey string) { return s.STS.Root() }

// Call is one request that was received.
type Call struct {
	Action   string // "AssumeRole" of STS
	SecretID string // of what it is about
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
func (s *Server) Deny(f func(action, id string) bool) {
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

func (s *Server) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.NowLocked()
}

// NowLocked returns the time by the server's clock.
func (s *Server) NowLocked() time.Time { return time.Now().Add(s.offset) }

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

// Refusal is a response that is an error.
type Refusal struct {
	Code string

	status  int
	message string
}

// Reject makes a Refusal: of the status 400, or 500 if the code says so.
func Reject(code, format string, args ...any) *Refusal {
	r := &Refusal{code, http.StatusBadRequest, fmt.Sprintf(format, args...)}
	if strings.HasPrefix(code, "Internal") {
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
	action, ok := strings.CutPrefix(h.Header.Get("X-Amz-Target"), s.service.Prefix+".")
	if !ok || s.service.Model.Operations[action].Input.Shape == "" {
		s.refuse(w, Reject("UnknownOperationException", ""), 0)
		return
	}
	s.envelope(h, action)
	decoded, err := decode(body)
	in, _ := decoded.(map[string]any)
	if err != nil || in == nil {
		s.refuse(w, Reject("SerializationException", ""), 0)
		return
	}
	violations := s.service.Model.request(action, decoded)
	for _, v := range violations {
		s.violated(v)
	}
	r := &Request{Action: action, In: in}
	fault := s.record(Call{Action: action, SecretID: s.service.ID(r)})
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
		s.refuse(w, rejected, 0)
		return
	}
	s.respond(w, out)
}

func (s *Server) violated(v Violation) {
	s.mu.Lock()
	judge := s.judge
	s.mu.Unlock()
	judge(v)
}

// envelope judges what is around a request.
func (s *Server) envelope(h *http.Request, action string) {
	if h.Method != http.MethodPost || h.URL.Path != "/" || h.URL.RawQuery != "" {
		s.violated(Violation{action, "", "not a POST to /"})
	}
	if h.Header.Get("Content-Type") != contentType {
		s.violated(Violation{action, "", "not of the content type " + contentType})
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
	rejected := Reject(f.Code, "%s", f.Message)
	if f.Status != 0 {
		rejected.status = f.Status
	}
	s.refuse(w, rejected, f.RetryAfter)
	return true
}

// carryOut authenticates, authorises and does what is asked.
func (s *Server) carryOut(r *Request, h *http.Request, body []byte, violations []Violation) (any, *Refusal) {
	if rejected := s.authenticate(h, body); rejected != nil {
		return nil, rejected
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Now = s.NowLocked()
	if s.denied != nil && s.denied(r.Action, s.service.ID(r)) {
		return nil, Reject("AccessDeniedException", "User: arn:aws:iam::%s:user/root-user is not authorized to perform: %s:%s on resource: %s "+
			"because no identity-based policy allows the %[2]s:%[3]s action", account, s.service.Signing, r.Action, s.service.ID(r))
	}
	if len(violations) > 0 {
		return nil, Reject("ValidationException", "%d validation errors detected", len(violations))
	}
	out, rejected, known := s.service.Do(r)
	if !known {
		s.testing.Errorf("%s: there is no %s here", s.service.Name, r.Action)
		return nil, Reject("UnknownOperationException", "")
	}
	if rejected == nil {
		for _, v := range s.service.Model.answer(r.Action, out) {
			s.testing.Errorf("%s: an answer is not what the vendor's model has: %v", s.service.Name, v)
		}
	} else if !slices.Contains(everywhere, rejected.Code) && !s.service.Model.rejects(r.Action, rejected.Code) {
		s.testing.Errorf("%s: %s answers %s, which the vendor's model does not have", s.service.Name, r.Action, rejected.Code)
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

func (s *Server) refuse(w http.ResponseWriter, r *Refusal, after time.Duration) {
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	}
	s.head(w, r.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": r.Code, "Message": r.message})
}

func (s *Server) head(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Amzn-Requestid", s.requestID())
	w.Header().Set("Date", s.clock().UTC().Format(http.TimeFormat))
	w.WriteHeader(status)
}

// Text returns a member of a request that is a string.
func (r *Request) Text(name string) string {
	text, _ := r.In[name].(string)
	return text
}

// Has reports whether a request has a member.
func (r *Request) Has(name string) bool { _, ok := r.In[name]; return ok }

// Yes returns a member that is a boolean.
func (r *Request) Yes(name string) bool { yes, _ := r.In[name].(bool); return yes }

// Number returns a member that is a whole number.
func (r *Request) Number(name string) int {
	n, _ := r.In[name].(json.Number)
	i, _ := strconv.Atoi(n.String())
	return i
}

// Texts returns a member that is a list of strings.
func (r *Request) Texts(name string) (list []string) {
	all, _ := r.In[name].([]any)
	for _, v := range all {
		text, _ := v.(string)
		list = append(list, text)
	}
	return list
}

var legalTag = regexp.MustCompile(`\A[\p{L}\p{Z}\p{N}_.:/=+\-@]*\z`)

// Tags returns the tags of a request, or a refusal with a code.
func (r *Request) Tags(code string) (map[string]string, *Refusal) {
	tags := map[string]string{}
	list, _ := r.In["Tags"].([]any)
	for _, entry := range list {
		tag, _ := entry.(map[string]any)
		key, _ := tag["Key"].(string)
		value, _ := tag["Value"].(string)
		if _, twice := tags[key]; twice {
			return nil, Reject(code, "Duplicate tag keys are not allowed.")
		}
		if strings.HasPrefix(strings.ToLower(key), "aws:") || !legalTag.MatchString(key) || !legalTag.MatchString(value) {
			return nil, Reject(code, "The tag is not valid.")
		}
		tags[key] = value
	}
	return tags, nil
}
