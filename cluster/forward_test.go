package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cluster/forward"
	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

// two starts a leader that serves with h, and a follower without a vote.
func two(t *testing.T, h http.HandlerFunc) (leader, follower *member) {
	t.Helper()
	set := func(o *Options) { o.Handler = h }
	leader = single(t, set)
	follower = start(t, "b", set)
	if err := leader.Join(testContext(t), "b", follower.addr, true, false); err != nil {
		t.Fatal(err)
	}
	until(t, "the follower to know its leader", func() bool { _, ok := follower.Leader(); return ok })
	return leader, follower
}

// TestForwardedWriteIsThereAtOnce: a follower that forwarded a write hears of its commit without waiting for Raft.
func TestForwardedWriteIsThereAtOnce(t *testing.T) {
	var leader *member
	set := func(o *Options) {
		o.CommitTimeout = time.Minute // Raft itself says nothing
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			index, err := leader.Commit(r.Context(), put("k", "v"))
			if err != nil {
				t.Errorf("Commit: %v", err)
			}
			fmt.Fprint(w, index)
		})
	}
	leader = single(t, set)
	f := start(t, "b", set)
	if err := leader.Join(testContext(t), "b", f.addr, false, true); err != nil {
		t.Fatal(err)
	}
	// With two voters nothing is committed before the follower has it.
	until(t, "two voters, and that both know", func() bool { return leader.raft.OtherVoters() == 1 && f.raft.OtherVoters() == 1 })
	for range 20 {
		w := httptest.NewRecorder()
		if err := f.Forward(w, httptest.NewRequest("POST", "/", nil)); err != nil {
			t.Fatal(err)
		}
		index, err := strconv.ParseUint(w.Body.String(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.machine.WaitApplied(testContext(t), storage.Index(index)); err != nil {
			t.Fatalf("waiting for %d: %v", index, err)
		}
	}
}

func TestForwardCarriesEverything(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	var seen *http.Request
	_, f := two(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading the body: %v", err)
		}
		w.Header()["X-Many"] = []string{"1", "2"}
		w.Header().Set("Connection", "X-Dropped")
		w.Header().Set("X-Dropped", "1")
		w.WriteHeader(http.StatusTeapot)
		w.Write(body)
	})
	some := httptest.NewTLSServer(nil)
	defer some.Close()
	client := some.Certificate()
	tests := []struct {
		name string
		body []byte
	}{{"no body", nil}, {"small", []byte("hello")}, {"big", big}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("LIST", "https://vault.example/v1/secret/a%2Fb/?list=true&x=%20", bytes.NewReader(tt.body))
			if tt.body == nil {
				r.Body = http.NoBody
				r.ContentLength = 0
			}
			r.RemoteAddr = "192.0.2.7:4711"
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{client, client}}
			r.Header = http.Header{
				"X-Vault-Token": {"t"}, "X-Two": {"a", "b"}, "Connection": {"keep-alive, X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"},
			}
			w := httptest.NewRecorder()
			if err := f.Forward(w, r); err != nil {
				t.Fatal(err)
			}
			if w.Code != http.StatusTeapot || !bytes.Equal(w.Body.Bytes(), tt.body) {
				t.Errorf("answer %d with %d bytes, want %d with %d", w.Code, w.Body.Len(), http.StatusTeapot, len(tt.body))
			}
			if got := w.Header()["X-Many"]; !reflect.DeepEqual(got, []string{"1", "2"}) || w.Header().Get("X-Dropped") != "" || w.Header().Get("Connection") != "" {
				t.Errorf("answered headers %v", w.Header())
			}
			if seen.Method != "LIST" || seen.RequestURI != r.RequestURI || seen.URL.RawPath != "/v1/secret/a%2Fb/" || seen.URL.RawQuery != "list=true&x=%20" {
				t.Errorf("the leader saw %s %s", seen.Method, seen.URL)
			}
			if seen.Host != "vault.example" || seen.RemoteAddr != "192.0.2.7:4711" || seen.ContentLength != int64(len(tt.body)) {
				t.Errorf("the leader saw host %s, remote %s, length %d", seen.Host, seen.RemoteAddr, seen.ContentLength)
			}
			want := http.Header{"X-Vault-Token": {"t"}, "X-Two": {"a", "b"}, "Content-Length": {fmt.Sprint(len(tt.body))}}
			if !reflect.DeepEqual(seen.Header, want) {
				t.Errorf("the leader saw headers %v, want %v", seen.Header, want)
			}
			if seen.TLS == nil || len(seen.TLS.PeerCertificates) != 2 || !seen.TLS.PeerCertificates[0].Equal(client) {
				t.Errorf("the leader saw other certificates than the client has shown: %v", seen.TLS)
			}
			if !forward.Forwarded(seen.Context()) || forward.Forwarded(r.Context()) {
				t.Error("only the forwarded request must be marked as such")
			}
		})
	}
}

// pipeWriter is an http.ResponseWriter that can be read while it is written.
type pipeWriter struct {
	*io.PipeWriter
	header http.Header
}

func (w pipeWriter) Header() http.Header { return w.header }
func (w pipeWriter) WriteHeader(int)     {}
func (w pipeWriter) Flush()              {}

func TestForwardStreamsBothWays(t *testing.T) {
	_, f := two(t, func(w http.ResponseWriter, r *http.Request) {
		buffer := make([]byte, 100)
		for {
			n, err := r.Body.Read(buffer)
			fmt.Fprintf(w, "<%s>", buffer[:n])
			http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	})
	body, toBody := io.Pipe()
	answer, fromAnswer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- f.Forward(pipeWriter{fromAnswer, http.Header{}}, httptest.NewRequest("POST", "/", body))
	}()
	for i := range 5 {
		fmt.Fprintf(toBody, "part %d", i)
		want := fmt.Sprintf("<part %d>", i)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(answer, got); err != nil || string(got) != want {
			t.Fatalf("answer %q, %v, want %q while the request goes on", got, err, want)
		}
	}
	toBody.Close()
	io.ReadFull(answer, make([]byte, len("<>")))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestForwardCancels(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	_, f := two(t, func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-started; cancel() }()
	err := f.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("Forward = %v, want ErrOutcomeUnknown", err)
	}
	<-ended
}

func TestForwardToALostLeader(t *testing.T) {
	started := make(chan struct{})
	l, f := two(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/midway" {
			w.Write([]byte("half of it"))
			http.NewResponseController(w).Flush()
		}
		if r.URL.Path == "/" {
			started <- struct{}{}
		}
		<-r.Context().Done()
	})
	go func() { <-started; f.calls.Break() }()
	w := httptest.NewRecorder()
	w.Code = 0
	if err := f.Forward(w, httptest.NewRequest("GET", "/", nil)); !errors.Is(err, storage.ErrOutcomeUnknown) || w.Code != 0 {
		t.Errorf("Forward = %v with status %d, want ErrOutcomeUnknown and no status", err, w.Code)
	}
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler {
				t.Errorf("an answer that breaks off in the middle: %v, want a panic with http.ErrAbortHandler", v)
			}
		}()
		w := flushWriter{httptest.NewRecorder(), f.calls.Break}
		f.Forward(w, httptest.NewRequest("GET", "/midway", nil))
	}()
	l.stop()
	f.calls.Options.ForwardWait = 50 * time.Millisecond
	if err := f.Forward(w, httptest.NewRequest("GET", "/", nil)); !errors.Is(err, storage.ErrUnavailable) || w.Code != 0 {
		t.Errorf("Forward without a leader = %v with status %d, want ErrUnavailable", err, w.Code)
	}
}

// flushWriter calls back when the first part of an answer has arrived.
type flushWriter struct {
	*httptest.ResponseRecorder
	flushed func()
}

func (w flushWriter) Flush() { w.flushed() }

// A node that turns out not to lead refuses before it runs anything, and the request finds its leader.
func TestForwardRunsOnce(t *testing.T) {
	var ran atomic.Int64
	l, f := two(t, func(w http.ResponseWriter, r *http.Request) { ran.Add(1) })
	l.raft.Broken.Store(true)
	go func() {
		until(t, "a try", func() bool { return f.calls.Tries.Load() > 2 })
		l.raft.Broken.Store(false)
	}()
	if err := f.Forward(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("x"))); err != nil {
		t.Error(err)
	}
	if ran.Load() != 1 {
		t.Errorf("the request ran %d times", ran.Load())
	}
	forwarded := httptest.NewRequest("GET", "/", nil)
	forwarded = forwarded.WithContext(forward.MarkForwarded(forwarded.Context()))
	if err := f.Forward(httptest.NewRecorder(), forwarded); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("forwarding a forwarded request = %v, want ErrUnavailable", err)
	}
	if err := l.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("forwarding from the leader = %v, want ErrUnavailable", err)
	}
}

func TestForwardWhenTheHandlerBreaksOff(t *testing.T) {
	_, f := two(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	if err := f.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("Forward = %v, want ErrOutcomeUnknown", err)
	}
}

func TestEchoIsForOneself(t *testing.T) {
	_, f := two(t, nil)
	client, err := f.calls.Leader()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Echo(testContext(t), &forwardpb.EchoRequest{NodeId: "somebody"}); err == nil {
		t.Error("a node could echo in another's name")
	}
}
