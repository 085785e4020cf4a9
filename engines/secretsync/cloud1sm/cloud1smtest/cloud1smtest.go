// Package cloud1smtest is AWS Secrets Manager for tests (see package cloud1test):
//
//	s := cloud1smtest.New(t)
//	accessKey, secretKey := s.Root() // of a user who may do everything
//	// the endpoint is s.URL, the region s.Region
//
// It knows secrets with versions, staging labels, tags and scheduled deletion, and rejects what the vendor rejects: taken
// names, tokens used for another value, labels that are elsewhere, names, values and tags out of bounds, wrong signatures.
package cloud1smtest

import (
	_ "embed"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1/cloud1test"
)

// Server is the service in one region of one account. Safe for concurrent use.
type Server struct {
	*cloud1test.Server

	testing  testing.TB
	pageSize int
	secrets  map[string]*secret // by ARN
	dying    map[string]bool    // names that were deleted for good and are not free yet
	slow     bool               // names become free by Settle only
	made     int                // secrets
}

// Call is one request that was received.
type Call = cloud1test.Call

// Violation is a rule of the vendor that a request breaks.
type Violation = cloud1test.Violation

// Option changes a new Server.
type Option func(*Server)

// Judge hands violations of the vendor's model to f instead of failing the test. f may be called from several goroutines.
func Judge(f func(Violation)) Option { return func(s *Server) { s.Judge(f) } }

// PageSize is how many secrets are in one answer at most, 100 if it is not given.
func PageSize(n int) Option { return func(s *Server) { s.pageSize = n } }

// SlowDeletion keeps the name of a secret that was deleted without recovery taken until Settle, as the service may.
func SlowDeletion() Option { return func(s *Server) { s.slow = true } }

//go:embed testdata/secretsmanager.json
var description []byte

// loadModel decodes the model once in a process.
var loadModel = sync.OnceValues(func() (*cloud1test.Model, error) {
	m, err := cloud1test.ParseModel(description)
	if err == nil { // names have up to 512 characters; the model says 256 for those in answers
		m.Shapes["SecretNameType"].Max = m.Shapes["NameType"].Max
	}
	return m, err
})

// New starts a Server that lives as long as the test.
func New(t testing.TB, opts ...Option) *Server {
	t.Helper()
	m, err := loadModel()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{testing: t, pageSize: 100, secrets: map[string]*secret{}, dying: map[string]bool{}}
	s.Server = cloud1test.Start(t, cloud1test.Service{
		Name: "cloud1smtest", Prefix: "secretsmanager", Signing: "secretsmanager", Model: m,
		ID: func(r *cloud1test.Request) string {
			if r.Action == "CreateSecret" {
				return r.Text("Name")
			}
			return r.Text("SecretId")
		},
		Do: func(r *cloud1test.Request) (any, *cloud1test.Refusal, bool) {
			s.purge(r.Now)
			do, known := actions[r.Action]
			if !known {
				return nil, nil, false
			}
			out, rejected := do(&request{r, s})
			return out, rejected, true
		},
	})
	for _, o := range opts {
		o(s)
	}
	return s
}

// Settle makes the names free of all secrets that were deleted for good.
func (s *Server) Settle() {
	s.Lock()
	defer s.Unlock()
	clear(s.dying)
}
