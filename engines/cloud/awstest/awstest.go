// Package awstest is IAM and STS for tests: an HTTP server on loopback that speaks their query protocol as the vendor's SDK
// does, and a judge that holds every request against the vendor's own model.
//
//	s := awstest.New(t)
//	accessKey, secretKey := s.Root() // of a user who may do everything
//	// iam_endpoint and sts_endpoint are both s.URL
//
// It knows users with all that keeps one from being removed, groups, managed policies by their ARN, access keys and
// temporary credentials, and it rejects what the vendor rejects: taken names, quotas, malformed policies, wrong signatures,
// names and durations out of bounds. Policies are stored, not evaluated: who may do what is said by Account.Allow, by the
// policy AdministratorAccess, and for roles by Role.
//
// Faults are put in by Fail. Delayed visibility is turned on by Propagation and moved along by Advance. A request that
// breaks a rule of the model fails the test, because the vendor would reject it in production only (see Judge).
package awstest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest/model"
	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
	"github.com/coffer-project/coffer/engines/cloud/awstest/sigv4"
)

// With this variable each client of a test would read the certificates of the whole machine.
func init() { _ = os.Unsetenv("AWS_CA_BUNDLE") }

// maxBody is the longest request.
const maxBody = 1 << 20

// mainAccount is the id of the account that Root belongs to.
const mainAccount = "123456789012"

// Server is the two services, with any number of accounts. Safe for concurrent use.
type Server struct {
	// URL is where both services are.
	URL string
	// Account is the one of the user that Root is a key of.
	*Account

	judge    func(model.Violation)
	models   *model.Models
	silent   bool // Calls stays empty
	testing  testing.TB
	closing  chan struct{} // closed when the test ends
	root     Key
	pageSize int // members of a list in one answer

	mu       sync.Mutex
	offset   time.Duration // added to the clock
	delay    time.Duration // until a new user is seen
	keyDelay time.Duration // until a new key is valid
	packed   int           // characters of session policies and tags together
	fail     func(Call) Fault
	calls    []Call
	accounts map[string]*Account
	keys     map[string]*accessKey
	sessions map[string]*session
	requests int
}

// Option changes a new Server.
type Option func(*Server)

// Judge hands violations of the vendor's model to f instead of failing the test. f may be called from several goroutines.
func Judge(f func(model.Violation)) Option { return func(s *Server) { s.judge = f } }

// PageSize is how many members of a list are in one answer, 100 if it is not given.
func PageSize(n int) Option { return func(s *Server) { s.pageSize = n } }

// Unrecorded leaves Calls empty, for tests with very many of them.
func Unrecorded() Option { return func(s *Server) { s.silent = true } }

// New starts a Server that lives as long as the test.
func New(t testing.TB, opts ...Option) *Server {
	t.Helper()
	models, err := model.Load()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		models: models, testing: t, closing: make(chan struct{}), pageSize: 100, packed: 4096,
		accounts: map[string]*Account{}, keys: map[string]*accessKey{}, sessions: map[string]*session{},
	}
	s.judge = func(v model.Violation) { t.Errorf("the provider would reject this request: %v", v) }
	for _, o := range opts {
		o(s)
	}
	s.Account = s.In(mainAccount)
	s.AddUser("root-user")
	s.Allow("root-user")
	s.root = s.AddKey("root-user")
	// Cleanups run from the last to the first: requests that wait are let go, then the listeners close.
	s.URL = s.Listen()
	t.Cleanup(func() { close(s.closing) })
	return s
}

// Listen opens a further address of the same services, such as for another region, and returns its URL.
func (s *Server) Listen() string {
	l := httptest.NewServer(s)
	s.testing.Cleanup(l.Close)
	return l.URL
}

// Root returns the key of a user, "root-user", who may do everything. It stays the same when the key is deleted.
func (s *Server) Root() (accessKey, secretKey string) { return s.root.ID, s.root.Secret }

// Call is one request that was received.
type Call struct {
	Service   string // "iam" or "sts"
	Action    string
	Params    map[string]string // without secrets
	AccessKey string            // whose signature it claims, "" if it has none
	Region    string            // that it was signed for
	Endpoint  string            // the URL it came to
	At        time.Time         // by the server's clock
}

// Calls returns what was received so far, the oldest first, with what failed.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Forget empties Calls.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// Actions returns the actions of Calls, as "CreateUser".
func (s *Server) Actions() []string {
	var names []string
	for _, c := range s.Calls() {
		names = append(names, c.Action)
	}
	return names
}

// Moment is before or after a request has been carried out.
type Moment int

const (
	BeforeCommit Moment = iota // it is not carried out
	AfterCommit                // it is, but the caller does not learn it
)

// Fault is what goes wrong with a request. The zero value is nothing.
type Fault struct {
	Delay      time.Duration // before anything else, by the wall clock
	When       Moment        // of what follows
	Drop       bool          // the connection is closed without an answer
	Status     int           // of the answer
	Code       string        // such as "Throttling"; without a Status it is answered with 400
	Message    string
	RetryAfter time.Duration
	// Then is called last, before the request is answered or dropped: with AfterCommit the place to kill who has asked.
	// Without another fault it is called after the commit.
	Then func()
}

// Fail lets f say what goes wrong with each request that follows; nil is nothing. f is called without a lock, from the
// goroutine of the request, so it may use the Server, and wait.
func (s *Server) Fail(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// FailNext is Fail for the next n requests of an action.
func (s *Server) FailNext(n int, action string, fault Fault) {
	var mu sync.Mutex
	s.Fail(func(c Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Action != action || n == 0 {
			return Fault{}
		}
		n--
		return fault
	})
}

// Propagation sets how long a new user is not found, and a new key not valid, after it was made. Names are taken and quotas
// are used at once.
func (s *Server) Propagation(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay, s.keyDelay = d, d
}

// KeyPropagation is Propagation for keys only.
func (s *Server) KeyPropagation(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyDelay = d
}

// PackedLimit sets how many characters the policies, ARNs and tags of a session have together before they are too large
// when packed. The provider's true limit is binary and unknown.
func (s *Server) PackedLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packed = n
}

// Advance moves the server's clock on. Signatures are held against the true time.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// Now returns the server's time.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Time { return time.Now().Add(s.offset) }

// answer answers with an error.
func (s *Server) answer(w http.ResponseWriter, namespace string, r *query.Refusal, retryAfter time.Duration) {
	query.Answer(w, namespace, s.requestID(), r, retryAfter)
}

func (s *Server) requestID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", s.requests)
}

// request is one, while it is carried out.
type request struct {
	s      *Server
	form   url.Values
	action string
	caller *principal
	now    time.Time
}

func (r *request) get(name string) string { return r.form.Get(name) }

// page returns a part of a list, as the request asks for it.
func (r *request) page(name string, rows []query.Row) ([]query.Element, *query.Refusal) {
	return query.Page(r.form, r.s.pageSize, name, rows)
}

// list returns the members of a list of strings, or of one field of its members.
func (r *request) list(name, field string) []string {
	var all []string
	for i := 1; ; i++ {
		k := name + ".member." + strconv.Itoa(i) + field
		if !r.form.Has(k) {
			return all
		}
		all = append(all, r.form.Get(k))
	}
}

// ServeHTTP is the services.
func (s *Server) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	body := http.MaxBytesReader(w, h.Body, maxBody)
	h.Body = body
	signed, err := sigv4.Read(h)
	if err != nil {
		var tooLong *http.MaxBytesError
		if errors.As(err, &tooLong) {
			s.answer(w, "", query.Refuse("RequestEntityTooLarge", "Request is too large."), 0)
			return
		}
		panic(http.ErrAbortHandler)
	}
	r := &request{s: s, form: signed.Form, action: signed.Form.Get("Action")}
	service := s.models.Service(r.form.Get("Version"))
	if service == nil {
		s.answer(w, "", query.Refuse("InvalidAction", "Could not find operation %s for version %s", r.action, r.form.Get("Version")), 0)
		return
	}
	violations := s.models.Check(r.form)
	for _, v := range violations {
		s.judge(v)
	}
	fault := s.record(r, service.Metadata.EndpointPrefix, signed)
	s.wait(h, fault.Delay)
	if fault.When == BeforeCommit && s.spoil(w, service, fault) {
		return
	}
	result, refused := s.carryOut(r, service, signed, violations)
	if fault.When == AfterCommit && s.spoil(w, service, fault) {
		return
	}
	if fault.Then != nil {
		fault.Then()
	}
	if refused != nil {
		s.answer(w, service.Metadata.XMLNamespace, refused, 0)
		return
	}
	query.Respond(w, service.Metadata.XMLNamespace, r.action, s.requestID(), result)
}

// record keeps the call and asks for its fault.
func (s *Server) record(r *request, service string, signed *sigv4.Request) Fault {
	hidden := s.models.Secrets(r.form)
	params := map[string]string{}
	for name := range maps.Keys(r.form) {
		switch {
		case name == "Action" || name == "Version":
		case hidden[name]:
			params[name] = "*****"
		default:
			params[name] = r.form.Get(name)
		}
	}
	s.mu.Lock()
	call := Call{
		Service: service, Action: r.action, Params: params, AccessKey: signed.AccessKey, Region: signed.Region,
		Endpoint: "http://" + signed.HTTP.Host, At: s.now(),
	}
	if !s.silent {
		s.calls = append(s.calls, call)
	}
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return Fault{}
	}
	return fail(call)
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
	case <-s.closing:
	}
}

// spoil answers as a fault says, and reports whether it does.
func (s *Server) spoil(w http.ResponseWriter, service *model.Service, f Fault) bool {
	if !f.Drop && f.Status == 0 && f.Code == "" {
		return false
	}
	if f.Then != nil {
		f.Then()
	}
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	refused := &query.Refusal{Status: f.Status, Code: f.Code, Message: f.Message}
	if refused.Status == 0 {
		refused.Status = query.StatusOf(f.Code)
	}
	if refused.Message == "" {
		refused.Message = "A fault that the test asked for."
	}
	s.answer(w, service.Metadata.XMLNamespace, refused, f.RetryAfter)
	return true
}

// carryOut authenticates, authorises and does what is asked.
func (s *Server) carryOut(r *request, service *model.Service, signed *sigv4.Request, violations []model.Violation) ([]query.Element, *query.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.now = s.now()
	var refused *query.Refusal
	if r.action == "AssumeRoleWithWebIdentity" { // the token stands for the signature
		r.caller = &principal{may: true}
	} else if r.caller, refused = s.authenticate(signed, service.Metadata.EndpointPrefix, r.now); refused != nil {
		return nil, refused
	}
	do, ok := actions[r.action]
	if !ok {
		return nil, query.Refuse("InvalidAction", "Could not find operation %s", r.action)
	}
	if refused := r.authorise(service.Metadata.EndpointPrefix); refused != nil {
		return nil, refused
	}
	if len(violations) > 0 {
		return nil, query.Refuse("ValidationError", "%d validation errors detected", len(violations))
	}
	result, refused := do(r)
	version := r.form.Get("Version")
	if refused == nil {
		for _, v := range s.models.CheckAnswer(version, r.action, result) {
			s.testing.Errorf("awstest: an answer is not what the vendor's model has: %v", v)
		}
	} else if !s.models.Answers(version, r.action, refused.Code) {
		s.testing.Errorf("awstest: %s answers %s, which the vendor's model does not have", r.action, refused.Code)
	}
	return result, refused
}

// sortedKeys is for answers that are the same each time.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// fold is how names are compared when they are taken.
func fold(name string) string { return strings.ToLower(name) }
