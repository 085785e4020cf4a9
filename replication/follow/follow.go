// Package follow is a secondary's connection to its primary, on the active node.
//
// It promises that the cluster follows its primary for as long as Run goes on: over whichever of the known addresses works, again after each
// loss, with a certificate that is renewed in time; and that what Status says of the lag grows while the primary is not heard. What is
// done with the messages is up to package secondary. Start reading at Run; lag.go and status.go say how far behind it is.
package follow

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/secondary"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
)

const (
	idleTimeout       = time.Minute     // without a message: the connection is given up
	keepaliveInterval = time.Second     // between signs of life
	renewInterval     = time.Minute     // between two looks at the certificate's age
	drainTimeout      = 2 * time.Second // for the last ack to arrive
)

var (
	// errRenewed says that there is a new certificate, to connect with at once.
	errRenewed = errors.New("the certificate was renewed")
	// errExpired says that the certificate has not been renewed in time.
	errExpired = errors.New("the certificate for the primary has expired: use secondary/update-primary with a new token")
)

// Following is one time of following a primary.
type Following struct {
	o   Options
	ctx context.Context      // of Run
	up  replication.Upstream // of one goroutine
	id  transport.Identity   // likewise
	// machine and reported are of the goroutine that runs.
	machine  *secondary.Follower
	reported replication.Learned
	drops    map[replication.Unit]chan struct{} // of units that are being dropped: closed when what was handed out of one has ended
	wg       sync.WaitGroup                     // of those

	noted    time.Time
	received atomic.Int64 // bytes, of all streams
	repairs  chan string  // capacity 1: one at a time is enough

	changed state.Signal // conn or terminal
	mu      sync.Mutex
	conn    *transport.Client // a working stream's, nil if there is none
	addrs   []string          // copies of up.Addrs and id
	shown   transport.Identity
	status  measures
}

// Cluster is the cluster that follows.
type Cluster interface {
	// Paused returns why this cluster takes nothing from its primary at the moment, "" if it does: the connection and calls go on,
	// and what is sent waits at the primary. It is called often.
	Paused() string
}

// Options of New. All are required but the addresses.
type Options struct {
	SetID, ClusterID     string // of this cluster
	Upstream             replication.Upstream
	Events               replication.FollowEvents
	Cluster              Cluster
	Local                *state.Local
	Trees                *state.Trees
	Layout               replication.Layout
	APIAddr, ClusterAddr string // of this node, told to the primary; "": not told
	Logger               *slog.Logger

	Tick       time.Duration // between two looks at a machine that has nothing to do
	Backoff    time.Duration // before the second attempt to connect, doubled with each
	MaxBackoff time.Duration
	Quiet      time.Duration // between attempts when an operator is needed
}

// New prepares to follow a primary.
func New(ctx context.Context, o Options) (*Following, error) {
	up := o.Upstream
	id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return nil, err
	}
	if id.Cert == nil {
		return nil, errors.New("following a primary takes a certificate of it")
	}
	f := &Following{o: o, up: up, id: id, drops: map[replication.Unit]chan struct{}{}, repairs: make(chan string, 1)}
	f.reported = replication.Learned{PrimaryID: up.PrimaryID, Addrs: up.Addrs}
	f.status.since = up.Since
	_, f.status.equalAt = o.Local.Applied(ctx) // by the primary's clock; until it is heard
	return f, nil
}

// Run follows the primary until ctx ends, and returns when everything of it has ended.
func (f *Following) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	f.ctx = ctx
	f.machine = secondary.New(state.NewReplica(f.o.Local, f.o.Trees), f.o.Layout, secondary.Options{
		SetID: f.o.SetID, ClusterID: f.o.ClusterID, Handouts: f,
	})
	f.connect(ctx)
	cancel()
	f.wg.Wait()
}

// connect connects, again and again.
func (f *Following) connect(ctx context.Context) {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		worked, err := f.round(ctx)
		if ctx.Err() != nil {
			return
		}
		t := &f.o
		switch {
		case errors.Is(err, errRenewed):
			continue
		case worked && !errors.Is(err, replication.ErrFinal):
			wait = t.Backoff
		default:
			wait = min(max(2*wait, t.Backoff), t.MaxBackoff)
		}
		terminal := terminalOf(err)
		f.disconnected(err, terminal)
		if terminal != "" {
			wait = t.Quiet
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
	case errors.Is(err, replication.ErrRevoked):
		return "revoked"
	case errors.Is(err, replication.ErrFenced):
		return "fenced"
	case errors.Is(err, replication.ErrOtherSet), errors.Is(err, replication.ErrRejected), errors.Is(err, errExpired):
		return "rejected"
	}
	return ""
}

// round tries every known address, that of the last success first, until one has worked.
func (f *Following) round(ctx context.Context) (worked bool, err error) {
	if expired, _ := transport.Outlived(f.id.Cert, time.Now()); expired {
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
		if _, refused := errors.AsType[*replication.Refusal](err); refused || terminalOf(err) != "" {
			return false, err // the active node has spoken
		}
		if r, ok := errors.AsType[*transport.Redirect](err); ok && r.Addr != "" && redirects < transport.MaxRedirects {
			redirects++
			queue = slices.Insert(queue, 0, r.Addr)
		}
		err = fmt.Errorf("%s: %w", addr, err)
	}
	return false, err
}

// prefer puts an address that has worked first.
func (f *Following) prefer(addr string) {
	rest := slices.DeleteFunc(slices.Clone(f.up.Addrs), func(a string) bool { return a == addr })
	f.up.Addrs = append([]string{addr}, rest...)
}

// attempt follows over one address for as long as it goes. worked: the primary has welcomed the secondary.
func (f *Following) attempt(ctx context.Context, addr string) (worked bool, err error) {
	f.dialling()
	hello, err := f.hello(ctx)
	if err != nil {
		return false, err
	}
	c, err := f.id.Dial(addr)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if f.isFinal() { // the same end again would be no news
		if err := transport.Unary(ctx, func(ctx context.Context) error { _, err := c.WhoIsActive(ctx, &pb.WhoIsActiveRequest{}); return err }); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Stream(transport.CountReceived(ctx, &f.received))
	if err != nil {
		return false, transport.FromStatus(err, false)
	}
	s := &session{f: f, c: c, addr: addr, stream: stream, inbox: make(chan arrival, 8), gone: make(chan struct{})}
	defer close(s.gone)
	if err := s.send(hello); err != nil {
		return false, s.why(err)
	}
	go s.receive()
	err = s.run(ctx)
	f.lostConnection()
	if errors.Is(err, replication.ErrFinal) {
		s.drain()
		f.mu.Lock()
		f.status.final = true
		f.mu.Unlock()
	}
	return s.welcomed, err
}

// hello returns what opens a stream. It waits while the digests are built.
func (f *Following) hello(ctx context.Context) (replication.Message, error) {
	for {
		hello, err := f.machine.Hello(ctx)
		if !errors.Is(err, replication.ErrBuilding) {
			return hello, err
		}
		select {
		case <-time.After(f.o.Tick):
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

// session is one connection's stream.
type session struct {
	f            *Following
	c            *transport.Client
	addr         string
	stream       grpc.BidiStreamingClient[pb.FromSecondary, pb.FromPrimary]
	inbox        chan arrival  // a few, so that the next is decoded meanwhile; not closed
	gone         chan struct{} // closed when inbox is read no more
	welcomed     bool
	lastReceived time.Time
	lastSent     time.Time
}

func (s *session) receive() {
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
func (s *session) send(m replication.Message) error {
	p := &pb.FromSecondary{}
	if m != nil {
		var err error
		if p, err = wire.EncodeSecondary(m); err != nil {
			return err
		}
	}
	if _, ok := m.(replication.Hello); ok {
		p.ApiAddr, p.ClusterAddr = s.f.o.APIAddr, s.f.o.ClusterAddr
	}
	s.lastSent = time.Now()
	p.NowMs = s.lastSent.UnixMilli()
	return s.stream.Send(p)
}

// why returns the reason for which a send has failed: the server's, if it has given one.
func (s *session) why(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if _, err := s.stream.Recv(); err != nil {
			return transport.FromStatus(err, false)
		}
	}
}

// run moves messages between the stream and the machine until one of them ends, and returns why.
func (s *session) run(ctx context.Context) error {
	tick := time.NewTicker(s.f.o.Tick)
	defer tick.Stop()
	renew := time.NewTimer(0)
	defer renew.Stop()
	s.lastReceived = time.Now()
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
				renew.Reset(renewInterval)
			} else {
				renew.Reset(s.f.o.Tick)
			}
		case now := <-tick.C:
			if now.Sub(s.lastReceived) > idleTimeout {
				return errors.New("nothing was heard of the primary for a minute")
			}
			if now.Sub(s.lastSent) > keepaliveInterval {
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
func (s *session) pause() bool {
	if !s.welcomed {
		return false
	}
	why := s.f.o.Cluster.Paused()
	if why != "" {
		s.lastReceived = time.Now()
	}
	s.f.paused(why)
	return why != ""
}

// failed returns why a send has failed. What the primary has said before counts.
func (s *session) failed(ctx context.Context, err error) error {
	for {
		select {
		case in := <-s.inbox:
			if err := s.take(ctx, in); err != nil {
				return err
			}
		case <-time.After(drainTimeout):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take gives a message to the machine.
func (s *session) take(ctx context.Context, in arrival) error {
	if in.err != nil {
		if errors.Is(in.err, io.EOF) {
			return errors.New("the primary has ended the stream")
		}
		return transport.FromStatus(in.err, false)
	}
	m, err := wire.DecodePrimary(in.m)
	if err != nil {
		return err
	}
	s.lastReceived = time.Now()
	var unsent error
	if next := s.f.machine.Ahead(m); next != nil {
		unsent = s.send(next)
	}
	if err := s.f.machine.Receive(ctx, m); err != nil {
		return err
	}
	switch m := m.(type) {
	case replication.Welcome:
		s.welcomed = true
		s.f.connected(s.c, s.addr)
		s.f.learn(ctx, replication.Learned{PrimaryID: m.ClusterID, Lineage: m.Lineage, Scope: true})
	case replication.Scope:
		s.f.learn(ctx, replication.Learned{Scope: true})
	case replication.Heartbeat:
		s.f.measure(s.lastReceived, m)
		s.f.learn(ctx, replication.Learned{Addrs: m.Addrs})
	}
	if unsent != nil {
		return s.failed(ctx, unsent)
	}
	return nil
}

// drain lets the last ack arrive.
func (s *session) drain() {
	if s.stream.CloseSend() != nil {
		return
	}
	for late := time.After(drainTimeout); ; {
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

// learn reports what is new.
func (f *Following) learn(ctx context.Context, news replication.Learned) {
	var fresh replication.Learned
	if news.PrimaryID != "" && news.PrimaryID != f.reported.PrimaryID {
		f.reported.PrimaryID, fresh.PrimaryID = news.PrimaryID, news.PrimaryID
	}
	if len(news.Lineage) > 0 && !slices.Equal(news.Lineage, f.reported.Lineage) {
		f.reported.Lineage, fresh.Lineage = news.Lineage, news.Lineage
	}
	if len(news.Addrs) > 0 {
		sorted := slices.Sorted(slices.Values(news.Addrs))
		if known := slices.Sorted(slices.Values(f.reported.Addrs)); !slices.Equal(sorted, known) {
			f.reported.Addrs, fresh.Addrs = news.Addrs, news.Addrs
			current := f.up.Addrs[:min(len(f.up.Addrs), 1)] // through which we hear this, or heard last
			f.up.Addrs = slices.Clone(news.Addrs)
			if len(current) > 0 && slices.Contains(news.Addrs, current[0]) {
				f.prefer(current[0])
			}
		}
	}
	fresh.Scope = news.Scope
	if fresh.Scope || fresh.PrimaryID != "" || fresh.Lineage != nil || fresh.Addrs != nil {
		f.o.Events.Learned(ctx, fresh)
	}
}

// renew gets another certificate when the time has come.
func (f *Following) renew(ctx context.Context, c *transport.Client) error {
	if _, soon := transport.Outlived(f.id.Cert, time.Now()); !soon {
		return nil
	}
	csr, err := transport.CertificateRequest(f.id.Cert)
	if err != nil {
		return err
	}
	var reply *pb.RenewReply
	limited, cancel := context.WithTimeout(ctx, transport.DialTimeout)
	defer cancel()
	err = transport.Unary(limited, func(ctx context.Context) error {
		var err error
		reply, err = c.Renew(ctx, &pb.RenewRequest{Csr: csr})
		return err
	})
	if err != nil {
		f.o.Logger.Warn("renewing the certificate for the primary", "err", err)
		return nil // it is good for some time
	}
	fresh, err := renewed(f.up.Key, reply.GetCert())
	if err != nil {
		f.o.Logger.Warn("renewing the certificate for the primary", "err", err)
		return nil
	}
	f.id.Cert = fresh
	f.o.Events.Learned(ctx, replication.Learned{Cert: bytes.Clone(reply.GetCert())})
	return errRenewed
}

// renewed joins a new certificate with the key of the one before.
func renewed(key, text []byte) (*tls.Certificate, error) {
	fresh, err := tls.X509KeyPair(text, key)
	if err != nil {
		return nil, fmt.Errorf("the primary's answer is not a certificate for our key: %w", err)
	}
	if expired, soon := transport.Outlived(&fresh, time.Now()); expired || soon {
		return nil, errors.New("the primary's answer is a certificate that ends soon")
	}
	return &fresh, nil
}

// Ended ends what was handed out of a unit, beside the machine, and reports whether that is done.
func (f *Following) Ended(unit replication.Unit) bool {
	done := f.drops[unit]
	if done == nil {
		done = make(chan struct{})
		f.drops[unit] = done
		f.wg.Go(func() {
			defer close(done)
			f.o.Events.BeforeDrop(f.ctx, string(unit))
		})
	}
	select {
	case <-done:
		return f.ctx.Err() == nil
	default:
		return false
	}
}
