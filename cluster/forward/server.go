package forward

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/proto/forwardpb"
)

// acceptedHeader is how the leader says that it leads and will run the request.
const acceptedHeader = "coffer-accepted"

type requestStream = grpc.BidiStreamingServer[forwardpb.RequestChunk, forwardpb.ResponseChunk]

// Forward implements forwardpb.ForwardServer: it runs one request of another node's client.
func (c *Calls) Forward(stream requestStream) error {
	if c.Options.Handler == nil || !c.raft.IsLeader() || !c.enter() {
		return ErrNotLeader
	}
	defer c.under.Done()
	if err := stream.SendHeader(metadata.Pairs(acceptedHeader, "1")); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	r, err := rebuild(stream, first)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	c.In.Add(1)
	w := &answer{stream: stream, header: http.Header{}}
	if aborted := serve(c.Options.Handler, w, r); aborted {
		return status.Error(codes.Aborted, "the handler broke off")
	}
	c.raft.PushCommit(caller(stream.Context())) // it will wait until it has what the answer speaks of
	return w.finish()
}

// serve runs the handler as net/http would. It reports whether the handler wants the connection broken.
func serve(h http.Handler, w http.ResponseWriter, r *http.Request) (aborted bool) {
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				panic(v)
			}
			aborted = true
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

// rebuild makes the request as the client sent it to the other node.
func rebuild(stream requestStream, first *forwardpb.RequestChunk) (*http.Request, error) {
	head := first.Head
	if head == nil {
		return nil, fmt.Errorf("the first chunk has no head")
	}
	u, err := url.ParseRequestURI(head.Uri)
	if err != nil {
		return nil, fmt.Errorf("the request's URI is not one")
	}
	r := &http.Request{
		Method: head.Method, URL: u, RequestURI: head.Uri, Host: head.Host, RemoteAddr: head.RemoteAddr,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody,
	}
	unpackHeader(r.Header, head.Headers)
	if len(head.Certificates) > 0 {
		r.TLS = new(tls.ConnectionState)
		for _, der := range head.Certificates {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, fmt.Errorf("a certificate of the client cannot be read")
			}
			r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, c)
		}
	}
	if !first.End {
		r.ContentLength = -1
		r.Body = &requestBody{stream: stream, rest: first.Body}
		if length, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil && length >= 0 {
			r.ContentLength = length
		}
	}
	return r.WithContext(MarkForwarded(stream.Context())), nil
}

// requestBody reads the body's chunks as they are asked for, so that a slow handler slows the client down.
type requestBody struct {
	stream requestStream
	rest   []byte
	err    error
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		chunk, err := b.stream.Recv()
		switch {
		case err != nil:
			b.err = io.ErrUnexpectedEOF
		case chunk.End:
			b.rest, b.err = chunk.Body, io.EOF
		default:
			b.rest = chunk.Body
		}
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *requestBody) Close() error { return nil }

// answer is the http.ResponseWriter of a forwarded request. Small answers travel as one message.
type answer struct {
	stream requestStream
	header http.Header
	status int // 0: not yet known
	headed bool
	buffer []byte
	err    error // of the first send that failed
}

// Header implements http.ResponseWriter.
func (w *answer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *answer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		w.header = w.header.Clone() // later changes do not count
	}
}

// Write implements http.ResponseWriter.
func (w *answer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	for rest := p; len(rest) > 0 && w.err == nil; {
		n := min(len(rest), chunkBytes-len(w.buffer))
		w.buffer = append(w.buffer, rest[:n]...)
		rest = rest[n:]
		if len(w.buffer) == chunkBytes {
			w.send(false)
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *answer) Flush() {
	w.WriteHeader(http.StatusOK)
	w.send(false)
}

func (w *answer) send(end bool) {
	if w.err != nil {
		return
	}
	chunk := &forwardpb.ResponseChunk{Body: w.buffer, End: end}
	if !w.headed {
		length := int64(-1)
		if given, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil {
			length = given
		}
		chunk.Head = &forwardpb.ResponseHead{Status: int32(w.status), Headers: packHeader(w.header, length)}
		w.headed = true
	}
	w.err = w.stream.Send(chunk)
	w.buffer = nil
}

func (w *answer) finish() error {
	w.WriteHeader(http.StatusOK)
	w.send(true)
	return w.err
}
