package replication

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/storage"
)

const (
	silence   = time.Minute     // without a message: the connection is given up
	signs     = time.Second     // between signs of life
	renewPace = time.Minute     // between two looks at the certificate's age
	farewell  = 2 * time.Second // for the last ack to arrive
)

var (
	// errRenewed says that there is a new certificate, to connect with at once.
	errRenewed = errors.New("the certificate was renewed")
	// errExpired says that the certificate has not been renewed in time.
	errExpired = errors.New("the certificate for the primary has expired: use secondary/update-primary with a new token")
)

// follow is one time of following a primary.
type follow struct {
	l     *Link
	up    Upstream // of one goroutine
	id    identity // likewise
	hooks FollowHooks
	// machine and told are of the goroutine that runs.
	machine *Follower
	told    Learned
	drops   map[Unit]chan struct{} // of units that are being dropped: closed when what was handed out of one has ended
	wg      sync.WaitGroup         // of those

	noted    time.Time
	received atomic.Int64 // bytes, of all streams
	repairs  chan string  // capacity 1: one at a time is enough

	changed signal // conn or terminal
	mu      sync.Mutex
	conn    *client  // a working stream's, nil if there is none
	addrs   []string // copies of up.Addrs and id
	shown   identity
	status  following
}

// Follow makes this cluster a follower of a primary until ctx ends; it reconnects by itself. It belongs within Active, and
// there can be one at a time.
func (l *Link) Follow(ctx context.Context, setID, clusterID string, _ storage.Lineage, up Upstream, h FollowHooks) error {
	a := l.join()
	if a == nil {
		return fmt.Errorf("%w: this is not the active node", storage.ErrUnavailable)
	}
	defer a.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	id, err := newIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return err
	}
	if id.cert == nil {
		return errors.New("following a primary takes a certificate of it")
	}
	f := &follow{l: l, up: up, id: id, hooks: h, drops: map[Unit]chan struct{}{}, repairs: make(chan string, 1)}
	f.told = Learned{PrimaryID: up.PrimaryID, Addrs: up.Addrs}
	f.status.since = up.Since
	if c, version, err := readCursor(ctx, l.o.Store); err == nil && version != 0 && c.TimeMS != 0 {
		f.status.equalAt = time.UnixMilli(c.TimeMS) // by the primary's clock; until it is heard
	}
	f.machine = NewFollower(&replica{l: l, trees: a.trees}, l.o.Layout, FollowerOptions{
		SetID: setID, ClusterID: clusterID, Now: func() int64 { return time.Now().UnixMilli() },
		BeforeDrop: func(_ context.Context, unit Unit) bool { return f.mayDrop(ctx, unit) },
	})
	l.mu.Lock()
	if l.follow != nil {
		l.mu.Unlock()
		return errors.New("this node follows a primary already")
	}
	l.follow = f
	l.mu.Unlock()
	f.run(ctx)
	cancel()
	f.wg.Wait()
	l.mu.Lock()
	l.follow = nil
	l.mu.Unlock()
	l.progress.follower(storage.Position{})
	return nil
}

// run connects, again and again.
func (f *follow) run(ctx context.Context) {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		worked, err := f.round(ctx)
		if ctx.Err() != nil {
			return
		}
		t := &f.l.o.timing
		switch {
		case errors.Is(err, errRenewed):
			continue
		case worked && !errors.Is(err, ErrFinal):
			wait = t.backoff
		default:
			wait = min(max(2*wait, t.backoff), t.maxBackoff)
		}
		terminal := terminalOf(err)
		f.disconnected(err, terminal)
		if terminal != "" {
			wait = t.quiet
		}
		jittered := wait/2 + rand.N(wait) //nolint:gosec // it only spreads attempts
		select {
		case <-time.After(jittered):
		case <-ctx.Done():
		}
	}
}

// terminalOf names the reasons that only an operator can remove.
func terminalOf(err error) string {
	switch {
	case errors.Is(err, ErrRevoked):
		return "revoked"
	case errors.Is(err, ErrFenced):
		return "fenced"
	case errors.Is(err, ErrOtherSet), errors.Is(err, ErrRejected), errors.Is(err, errExpired):
		return "rejected"
	}
	return ""
}

// round tries every known address, that of the last success first, until one has worked.
func (f *follow) round(ctx context.Context) (worked bool, err error) {
	if expired, _ := outlived(f.id.cert, time.Now()); expired {
		return false, errExpired
	}
	tried := map[string]bool{}
	queue := slices.Clone(f.up.Addrs)
	err = errors.New("no address of the primary is known")
	for redirects := 0; len(queue) > 0 && ctx.Err() == nil; {
		addr := queue[0]
		queue = queue[1:]
		if tried[addr] {
			continue
		}
		tried[addr] = true
		worked, err = f.attempt(ctx, addr)
		if worked {
			f.prefer(addr)
			return true, err
		}
		if _, refused := errors.AsType[*Refusal](err); refused || terminalOf(err) != "" {
			return false, err // the active node has spoken
		}
		if r, ok := errors.AsType[*redirect](err); ok && r.addr != "" && redirects < maxRedirects {
			redirects++
			queue = slices.Insert(queue, 0, r.addr)
		}
		err = fmt.Errorf("%s: %w", addr, err)
	}
	return false, err
}

// prefer puts an address that has worked first.
func (f *follow) prefer(addr string) {
	rest := slices.DeleteFunc(slices.Clone(f.up.Addrs), func(a string) bool { return a == addr })
	f.up.Addrs = append([]string{addr}, rest...)
}

// attempt follows over one address for as long as it goes. worked: the primary has welcomed the secondary.
func (f *follow) attempt(ctx context.Context, addr string) (worked bool, err error) {
	f.dialling()
	hello, err := f.hello(ctx)
	if err != nil {
		return false, err
	}
	c, err := f.id.dial(addr)
	if err != nil {
		return false, err
	}
	defer c.close()
	if f.isFinal() { // the same end again would be no news
		if err := unary(ctx, func(ctx context.Context) error { _, err := c.WhoIsActive(ctx, &pb.WhoIsActiveRequest{}); return err }); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Stream(context.WithValue(ctx, receivedKey{}, &f.received))
	if err != nil {
		return false, fromStatus(err, false)
	}
	s := &stream1{f: f, c: c, addr: addr, stream: stream, inbox: make(chan arrival, 8), gone: make(chan struct{})}
	defer close(s.gone)
	if err := s.send(hello); err != nil {
		return false, s.why(err)
	}
	go s.receive()
	err = s.run(ctx)
	f.lostConnection()
	if errors.Is(err, ErrFinal) {
		s.sayGoodbye()
		f.mu.Lock()
		f.status.final = true
		f.mu.Unlock()
	}
	return s.welcomed, err
}

// hello returns what opens a stream. It waits while the digests are built.
func (f *follow) hello(ctx context.Context) (Message, error) {
	for {
		hello, err := f.machine.Hello(ctx)
		if !errors.Is(err, ErrBuilding) {
			return hello, err
		}
		select {
		case <-time.After(f.l.o.timing.tick):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// arrival is a message from the primary, or why there are no more.
type arrival struct {
	m   *pb.FromPrimary
	err error
}

// stream1 is one connection's stream.
type stream1 struct {
	f        *follow
	c        *client
	addr     string
	stream   grpc.BidiStreamingClient[pb.FromSecondary, pb.FromPrimary]
	inbox    chan arrival  // a few, so that the next is decoded meanwhile; not closed
	gone     chan struct{} // closed when nobody reads inbox any more
	welcomed bool
	heard    time.Time
	said     time.Time
}

func (s *stream1) receive() {
	for {
		m, err := s.stream.Recv()
		select {
		case s.inbox <- arrival{m, err}:
		case <-s.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// send sends a message, or, if it is nil, a sign of life.
func (s *stream1) send(m Message) error {
	p := &pb.FromSecondary{}
	if m != nil {
		var err error
		if p, err = encodeSecondary(m); err != nil {
			return err
		}
	}
	if _, ok := m.(Hello); ok {
		p.ApiAddr, p.ClusterAddr = s.f.l.o.APIAddr(), s.f.l.o.ClusterAddr()
	}
	s.said = time.Now()
	p.NowMs = s.said.UnixMilli()
	return s.stream.Send(p)
}

// why returns the reason for which a send has failed: the server's, if it has given one.
func (s *stream1) why(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if _, err := s.stream.Recv(); err != nil {
			return fromStatus(err, false)
		}
	}
}

// run moves messages between the stream and the machine until one of them ends, and returns why.
func (s *stream1) run(ctx context.Context) error {
	tick := time.NewTicker(s.f.l.o.timing.tick)
	defer tick.Stop()
	renew := time.NewTimer(0)
	defer renew.Stop()
	s.heard = time.Now()
	for {
		m, err := s.f.machine.Next(ctx)
		s.f.note(time.Now())
		if err != nil {
			return err
		}
		if m != nil {
			if err := s.send(m); err != nil {
				return s.failed(ctx, err)
			}
		}
		inbox := s.inbox
		if s.pause() {
			inbox = nil
		}
		if m != nil || s.f.machine.Busy() {
			select {
			case in := <-inbox:
				if err := s.take(ctx, in); err != nil {
					return err
				}
			default:
			}
			continue
		}
		select {
		case in := <-inbox:
			if err := s.take(ctx, in); err != nil {
				return err
			}
		case cause := <-s.f.repairs:
			if err := s.f.machine.Repair(ctx, cause); err != nil {
				return err
			}
		case <-renew.C:
			if s.welcomed {
				if err := s.f.renew(ctx, s.c); err != nil {
					return err
				}
				renew.Reset(renewPace)
			} else {
				renew.Reset(s.f.l.o.timing.tick)
			}
		case now := <-tick.C:
			if now.Sub(s.heard) > silence {
				return errors.New("nothing was heard of the primary for a minute")
			}
			if now.Sub(s.said) > signs {
				if err := s.send(nil); err != nil {
					return s.failed(ctx, err)
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause reports whether nothing is to be taken from the primary at the moment. That it is not heard then means nothing.
func (s *stream1) pause() bool {
	if s.f.l.o.Paused == nil || !s.welcomed {
		return false
	}
	why := s.f.l.o.Paused()
	if why != "" {
		s.heard = time.Now()
	}
	s.f.paused(why)
	return why != ""
}

// failed returns why a send has failed. What the primary has said before counts.
func (s *stream1) failed(ctx context.Context, err error) error {
	for {
		select {
		case in := <-s.inbox:
			if err := s.take(ctx, in); err != nil {
				return err
			}
		case <-time.After(farewell):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take gives a message to the machine.
func (s *stream1) take(ctx context.Context, in arrival) error {
	if in.err != nil {
		if errors.Is(in.err, io.EOF) {
			return errors.New("the primary has ended the stream")
		}
		return fromStatus(in.err, false)
	}
	m, err := decodePrimary(in.m)
	if err != nil {
		return err
	}
	s.heard = time.Now()
	var unsent error
	if next := s.f.machine.Ahead(m); next != nil {
		unsent = s.send(next)
	}
	if err := s.f.machine.Receive(ctx, m); err != nil {
		return err
	}
	switch m := m.(type) {
	case Welcome:
		s.welcomed = true
		s.f.connected(s.c, s.addr)
		s.f.learn(ctx, Learned{PrimaryID: m.ClusterID, Lineage: m.Lineage, Scope: true})
	case Scope:
		s.f.learn(ctx, Learned{Scope: true})
	case Heartbeat:
		s.f.measure(s.heard, m)
		s.f.learn(ctx, Learned{Addrs: m.Addrs})
	}
	if unsent != nil {
		return s.failed(ctx, unsent)
	}
	return nil
}

// sayGoodbye lets the last ack arrive.
func (s *stream1) sayGoodbye() {
	if s.stream.CloseSend() != nil {
		return
	}
	for late := time.After(farewell); ; {
		select {
		case in := <-s.inbox:
			if in.err != nil {
				return
			}
		case <-late:
			return
		}
	}
}

// learn tells what is new.
func (f *follow) learn(ctx context.Context, news Learned) {
	var tell Learned
	if news.PrimaryID != "" && news.PrimaryID != f.told.PrimaryID {
		f.told.PrimaryID, tell.PrimaryID = news.PrimaryID, news.PrimaryID
	}
	if len(news.Lineage) > 0 && !slices.Equal(news.Lineage, f.told.Lineage) {
		f.told.Lineage, tell.Lineage = news.Lineage, news.Lineage
	}
	if len(news.Addrs) > 0 {
		sorted := slices.Sorted(slices.Values(news.Addrs))
		if known := slices.Sorted(slices.Values(f.told.Addrs)); !slices.Equal(sorted, known) {
			f.told.Addrs, tell.Addrs = news.Addrs, news.Addrs
			current := f.up.Addrs[:min(len(f.up.Addrs), 1)] // through which we hear this, or heard last
			f.up.Addrs = slices.Clone(news.Addrs)
			if len(current) > 0 && slices.Contains(news.Addrs, current[0]) {
				f.prefer(current[0])
			}
		}
	}
	tell.Scope = news.Scope
	if f.hooks.Learned != nil && (tell.Scope || tell.PrimaryID != "" || tell.Lineage != nil || tell.Addrs != nil) {
		f.hooks.Learned(ctx, tell)
	}
}

// renew gets another certificate when the time has come.
func (f *follow) renew(ctx context.Context, c *client) error {
	if _, soon := outlived(f.id.cert, time.Now()); !soon {
		return nil
	}
	csr, err := request(f.id.cert)
	if err != nil {
		return err
	}
	var reply *pb.RenewReply
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err = unary(limited, func(ctx context.Context) error {
		var err error
		reply, err = c.Renew(ctx, &pb.RenewRequest{Csr: csr})
		return err
	})
	if err != nil {
		f.l.log.Warn("renewing the certificate for the primary", "err", err)
		return nil // it is good for some time
	}
	fresh, err := renewed(f.up.Key, reply.GetCert())
	if err != nil {
		f.l.log.Warn("renewing the certificate for the primary", "err", err)
		return nil
	}
	f.id.cert = fresh
	if f.hooks.Learned != nil {
		f.hooks.Learned(ctx, Learned{Cert: bytes.Clone(reply.GetCert())})
	}
	return errRenewed
}

// renewed joins a new certificate with the key of the one before.
func renewed(key, text []byte) (*tls.Certificate, error) {
	fresh, err := tls.X509KeyPair(text, key)
	if err != nil {
		return nil, fmt.Errorf("the primary's answer is not a certificate for our key: %w", err)
	}
	if expired, soon := outlived(&fresh, time.Now()); expired || soon {
		return nil, errors.New("the primary's answer is a certificate that ends soon")
	}
	return &fresh, nil
}

// mayDrop ends what was handed out of a unit, beside the machine, and reports whether that is done.
func (f *follow) mayDrop(ctx context.Context, unit Unit) bool {
	if f.hooks.BeforeDrop == nil {
		return true
	}
	done := f.drops[unit]
	if done == nil {
		done = make(chan struct{})
		f.drops[unit] = done
		f.wg.Go(func() {
			defer close(done)
			f.hooks.BeforeDrop(ctx, string(unit))
		})
	}
	select {
	case <-done:
		return ctx.Err() == nil
	default:
		return false
	}
}
