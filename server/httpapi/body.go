package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/admission"
	"github.com/coffer-project/coffer/server/pipeline"
)

// Memory that a body gets before its bytes are there. A longer body gets its memory as it arrives: a length costs a
// client nothing.
const (
	firstBytes = 64 << 10
	trustBytes = 1 << 20 // a body of which so much has arrived gets the rest of what it claims at once
)

// forwardBytes is what a body takes that passes through to the active node: chunks and their frames.
const forwardBytes = 128 << 10

// unreadTime is how long a connection may take to deliver a body that is not read, before it ends: a client that is
// still sending gets its response and may use the connection again.
const unreadTime = time.Second

// errBodyTime ends a body that does not arrive in its time.
var errBodyTime = &engines.Error{Kind: engines.KindInvalid, Detail: "the request body broke off, or arrived too slowly"}

// body is the unread body of a request. Reading it keeps the pace: the connection's deadline moves with what has
// arrived.
type body struct {
	x     *exchange
	most  int64          // bytes
	pace  admission.Pace // of a body that is limited in size
	stall time.Duration  // of any other: from one byte to the next; 0: it has a pace

	mu      sync.Mutex // the response to a forwarded request may begin while its body is being read
	arrived int64
	whole   bool // all of it has been read
	ending  bool // the deadline is the last one
	left    bool // the request is over: the connection belongs to the next one
}

var errBodySize = errors.New("the request body is too large")

// openBody returns the request's body, from now on in the given time. A body that another node forwards has no
// deadlines: that node keeps the pace.
func (x *exchange) openBody(most int64) *body {
	x.body = &body{x: x, most: most, pace: admission.NewPace(x.api.opts.Timeout)}
	x.body.setDeadline(x.body.pace.Deadline(0))
	return x.body
}

// openStream returns a body of any size, which may take as long as bytes keep arriving.
func (x *exchange) openStream() *body {
	x.body = &body{x: x, most: math.MaxInt64, stall: x.api.opts.Timeout}
	return x.body
}

func (b *body) setDeadline(at time.Time) { http.NewResponseController(b.x.w).SetReadDeadline(at) }

// Read implements io.Reader. After more than most bytes it returns errBodySize.
func (b *body) Read(p []byte) (int, error) {
	if b.stall > 0 {
		b.setDeadline(time.Now().Add(b.stall))
	}
	n, err := b.x.r.Body.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived += int64(n)
	b.whole = err == io.EOF
	switch {
	case b.arrived > b.most:
		return 0, errBodySize
	case b.left:
	case b.whole:
		b.setDeadline(time.Time{}) // the connection is read for its end only, which may come late
	case err == nil && b.stall == 0 && !b.ending:
		b.setDeadline(b.pace.Deadline(b.arrived))
	}
	return n, err
}

// over reports whether the body is larger than it may be.
func (b *body) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arrived > b.most
}

// Close implements io.Closer.
func (b *body) Close() error { return b.x.r.Body.Close() }

// leave is called when the request is over, which a forwarded body may not have noticed.
func (b *body) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
}

// responding is called before the response goes out. What has not arrived of the body gets little time: a client that is
// still sending may use the connection again, and one that holds its body back does not hold the connection.
func (x *exchange) responding() {
	b := x.body
	if b == nil {
		if !x.hasBody() {
			return
		}
		b = &body{x: x}
		x.body = b
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.whole && !b.ending {
		b.ending = true
		b.setDeadline(time.Now().Add(unreadTime))
	}
}

// hasBody reports whether the request has a body that nothing has read.
func (x *exchange) hasBody() bool { return !x.bodyRead && x.r.Body != nil && x.r.Body != http.NoBody }

// maxBody returns how long a body of the rule may be.
func (x *exchange) maxBody(rule pipeline.BodyRule) int64 {
	if rule.MaxBytes > 0 {
		return min(rule.MaxBytes, x.api.opts.MaxBodyBytes)
	}
	return x.api.opts.MaxBodyBytes
}

func tooLarge(most int64) error {
	return &engines.Error{Kind: engines.KindTooLarge, Detail: "the request body is larger than " + strconv.FormatInt(most, 10) + " bytes"}
}

// take opens the share of the request's body in the budget it belongs to.
func (x *exchange) take(open bool) {
	budget := x.api.opts.Bodies.Token
	if open {
		budget = x.api.opts.Bodies.Open
	}
	x.share = budget.Share(x.req.Remote.Addr())
}

// readBody reads the body whole: it is pipeline.Request's ReadBody. The literal null counts as no body.
func (x *exchange) readBody(rule pipeline.BodyRule) (json.RawMessage, error) {
	x.bodyRead = true
	most := x.maxBody(rule)
	if x.r.ContentLength > most {
		return nil, tooLarge(most)
	}
	x.take(rule.Open)
	content, err := x.readAll(x.openBody(most), x.r.ContentLength)
	switch {
	case err == errBodySize:
		return nil, tooLarge(most)
	case err == admission.ErrBusy:
		return nil, err
	case err != nil:
		return nil, errBodyTime
	}
	if t := bytes.TrimSpace(content[:min(len(content), 16)]); len(t) == 0 && len(content) <= 16 || string(t) == "null" {
		return nil, nil
	}
	if rule.Form && isForm(x.r.Header.Get("Content-Type"), content) {
		if content, err = formObject(content); err != nil {
			return nil, err
		}
	}
	if err := checkJSON(content); err != nil {
		return nil, err
	}
	return content, x.api.opts.JSON.check(content)
}

// readAll reads all of b. length is what the client says it is, negative if it does not. What is read, and its memory
// while it grows, is in the request's share.
func (x *exchange) readAll(b *body, length int64) ([]byte, error) {
	size := int64(firstBytes)
	if length >= 0 {
		size = min(size, length+1) // a byte to see the end with
	}
	if err := x.share.Grow(size); err != nil {
		return nil, err
	}
	content := make([]byte, 0, size)
	for {
		n, err := b.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		switch {
		case err == io.EOF:
			return content, nil
		case err != nil:
			return nil, err
		case len(content) < cap(content):
			continue
		}
		old := int64(cap(content))
		size = min(4*old, b.most+1)
		if length >= 0 && (old >= trustBytes || size > length) {
			size = length + 1
		}
		if err := x.share.Grow(size); err != nil {
			return nil, err
		}
		content = append(make([]byte, 0, size), content...)
		x.share.Shrink(old)
	}
}
