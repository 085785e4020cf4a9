package desttest

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"
)

// Faults stands in front of a fake that speaks HTTP and fails in its place. The zero value lets everything through. Safe for
// concurrent use.
type Faults struct {
	// Next answers what does not fail.
	Next http.Handler
	// Reads reports whether a request changes nothing; nil: GET and HEAD are those. Reset the body after reading it.
	Reads func(r *http.Request, body []byte) bool
	// Exempt requests never fail: those for tokens, for instance. nil: there are none.
	Exempt func(r *http.Request) bool
	// Throttled, Troubled and Rejected write the vendor's responses; nil: the bare status.
	Throttled func(w http.ResponseWriter, r *http.Request, after time.Duration)
	Troubled  func(w http.ResponseWriter, r *http.Request)
	Rejected  func(w http.ResponseWriter, r *http.Request)

	mu    sync.Mutex
	fault Fault
}

// Set is Fake.Fail.
func (f *Faults) Set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// take returns how a request is to fail.
func (f *Faults) take(r *http.Request, body []byte) Fault {
	if f.Exempt != nil && f.Exempt(r) {
		return Fault{}
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if f.Reads != nil {
		reads = f.Reads(r, body)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	got := f.fault
	if got.Kind == None || got.Writes && reads {
		return Fault{}
	}
	if got.Times > 0 {
		if f.fault.Times--; f.fault.Times == 0 {
			f.fault = Fault{}
		}
	}
	return got
}

// ServeHTTP implements http.Handler.
func (f *Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch fault := f.take(r, body); fault.Kind {
	case None:
		f.Next.ServeHTTP(w, r)
	case Throttle:
		if f.Throttled != nil {
			f.Throttled(w, r, fault.RetryAfter)
			return
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(fault.RetryAfter.Seconds()))))
		w.WriteHeader(http.StatusTooManyRequests)
	case Trouble:
		answer(w, r, f.Troubled, http.StatusServiceUnavailable)
	case Reject:
		answer(w, r, f.Rejected, http.StatusForbidden)
	case DropBefore:
		panic(http.ErrAbortHandler)
	case DropAfter:
		f.Next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case Hang:
		<-r.Context().Done()
	}
}

func answer(w http.ResponseWriter, r *http.Request, vendor func(http.ResponseWriter, *http.Request), status int) {
	if vendor != nil {
		vendor(w, r)
		return
	}
	w.WriteHeader(status)
}
