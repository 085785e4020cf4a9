package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/proto/forwardpb"
	"github.com/coffer-project/coffer/storage"
)

const chunkBytes = 64 << 10

// forwardBytes is how much of a body is read at once: a TLS record, as more than that does not arrive.
const forwardBytes = 16 << 10

// forwardedKey marks the context of a request that came from another node: it is not sent on.
type forwardedKey struct{}

// MarkForwarded returns the context of a request that came from another node.
func MarkForwarded(ctx context.Context) context.Context {
	return context.WithValue(ctx, forwardedKey{}, true)
}

// Forwarded reports whether the request reached this node through another one.
func Forwarded(ctx context.Context) bool { return ctx.Value(forwardedKey{}) != nil }

// ToLeader sends the request to the leader and relays the answer. nil: an answer was relayed, whatever its
// status. storage.ErrUnavailable: nothing ran (there was no leader within Options.ForwardWait, or this node
// has become the leader: serve the request here); w was not touched. storage.ErrOutcomeUnknown: the leader
// was lost after it got the request and before it answered; w was not touched. If the leader is lost in the
// middle of its answer, toLeader panics with http.ErrAbortHandler, as there is no other way to tell the client.
func (c *Calls) ToLeader(w http.ResponseWriter, r *http.Request) error {
	if Forwarded(r.Context()) {
		return fmt.Errorf("%w: the node that was taken for the leader is not", storage.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(r.Context(), c.Options.ForwardWait)
	defer cancel()
	for {
		changed := c.raft.Roles.Next()
		err := c.forwardOnce(w, r)
		if !errors.Is(err, storage.ErrUnavailable) {
			return err
		}
		if errors.Is(err, ErrSelf) && c.raft.IsLeader() {
			return err
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		case <-c.raft.Context().Done():
			return err
		}
	}
}

// forwardOnce tries one leader. The leader says that it leads before it is given anything, so until then a
// failure means that nothing ran, and nothing of the request's body is used up. For that it has one heartbeat timeout, unless
// the leadership changes before. From then on it may take its time for as long as it leads: see followLocked.
func (c *Calls) forwardOnce(w http.ResponseWriter, r *http.Request) error {
	c.Tries.Add(1)
	client, err := c.Leader()
	if err != nil {
		return consensus.Unavailable(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	inTime := c.raft.Roles.Limit(c.Options.HeartbeatTimeout, cancel)
	defer inTime()
	stream, err := client.Forward(ctx)
	if err != nil {
		return consensus.Unavailable(err)
	}
	if md, err := stream.Header(); err != nil || len(md.Get(acceptedHeader)) == 0 {
		if err == nil {
			_, err = stream.Recv() // it has refused, this is why
		}
		return consensus.Unavailable(err)
	}
	if !inTime() {
		return consensus.Unavailable(errors.New("the leader changed, or did not respond in time"))
	}
	c.Out.Add(1)
	hasBody := r.Body != nil && r.Body != http.NoBody
	if err := stream.Send(&forwardpb.RequestChunk{Head: requestHead(r), End: !hasBody}); err != nil {
		return lost(err)
	}
	if hasBody {
		// It ends when the body ends, or with the stream; a body that blocks is closed by r's server.
		go sendBody(stream, r.Body, cancel)
	}
	return relay(w, stream)
}

func lost(err error) error {
	return fmt.Errorf("%w: the leader was lost: %w", storage.ErrOutcomeUnknown, err)
}

func requestHead(r *http.Request) *forwardpb.RequestHead {
	uri := r.RequestURI
	if uri == "" {
		uri = r.URL.RequestURI()
	}
	head := &forwardpb.RequestHead{
		Method: r.Method, Uri: uri, Headers: packHeader(r.Header, r.ContentLength), RemoteAddr: r.RemoteAddr, Host: r.Host,
	}
	if r.TLS != nil {
		for _, c := range r.TLS.PeerCertificates {
			head.Certificates = append(head.Certificates, c.Raw)
		}
	}
	return head
}

// sendBody sends the body to the leader. A client that breaks off cancels the request there too.
func sendBody(stream grpc.BidiStreamingClient[forwardpb.RequestChunk, forwardpb.ResponseChunk], body io.Reader, cancel func()) {
	buffer := make([]byte, forwardBytes)
	for {
		size, err := body.Read(buffer)
		if err != nil && err != io.EOF {
			cancel()
			return
		}
		if size > 0 || err != nil {
			if stream.Send(&forwardpb.RequestChunk{Body: slices.Clone(buffer[:size]), End: err != nil}) != nil || err != nil {
				return
			}
		}
	}
}

// relay copies the answer.
func relay(w http.ResponseWriter, stream grpc.BidiStreamingClient[forwardpb.RequestChunk, forwardpb.ResponseChunk]) error {
	first, err := stream.Recv()
	if err != nil {
		return lost(err)
	}
	if first.Head == nil || first.Head.Status < 200 || first.Head.Status > 999 {
		return lost(errors.New("its answer has no head"))
	}
	unpackHeader(w.Header(), first.Head.Headers)
	w.WriteHeader(int(first.Head.Status))
	flush := http.NewResponseController(w).Flush
	for chunk := first; ; {
		if len(chunk.Body) > 0 {
			if _, err := w.Write(chunk.Body); err != nil {
				return nil // the client is gone
			}
		}
		if chunk.End {
			return nil
		}
		flush()
		if chunk, err = stream.Recv(); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// hopByHop are the headers that belong to one connection.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Content-Length",
}

// packHeader drops what belongs to one connection. length is the body's, negative if it is not known.
func packHeader(h http.Header, length int64) []*forwardpb.Header {
	var dropped []string
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			dropped = append(dropped, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	var out []*forwardpb.Header
	for name, values := range h {
		if !slices.Contains(hopByHop, name) && !slices.Contains(dropped, name) {
			out = append(out, &forwardpb.Header{Name: name, Values: values})
		}
	}
	if length >= 0 {
		out = append(out, &forwardpb.Header{Name: "Content-Length", Values: []string{fmt.Sprint(length)}})
	}
	return out
}

func unpackHeader(into http.Header, headers []*forwardpb.Header) {
	for _, h := range headers {
		into[textproto.CanonicalMIMEHeaderKey(h.GetName())] = h.GetValues()
	}
}
