// Package process runs the programs of plugins, and keeps what goes wrong in one of them away from the server. A program is opened
// once, checked, and executed by its descriptor. It runs in a process group of its own, and if the server is root's in a PID namespace, with no environment but what it is given, with
// limits of memory, message size, open calls and log, and it ends with the server. The two talk over a Unix socket with mutual TLS,
// by the certificates of this one start. Start reading at Start, then runner.go.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/openbao/openbao/sdk/v2/helper/pluginutil"
	bao "github.com/openbao/openbao/sdk/v2/plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Limits of one plugin's process. The zero value has the defaults.
type Limits struct {
	MemoryBytes  uint64        // of its data; 512 MiB
	StartTimeout time.Duration // until it says where it listens; 10 s
	CallTimeout  time.Duration // of one call; 90 s
	MessageBytes int           // of one message in either direction; 32 MiB
	Calls        int           // at a time; 256
	LogBytes     int           // of its log in a second; 16 KiB
}

func (l Limits) withDefaults() Limits {
	l.MemoryBytes = cmp.Or(l.MemoryBytes, 512<<20)
	l.StartTimeout = cmp.Or(l.StartTimeout, 10*time.Second)
	l.CallTimeout = cmp.Or(l.CallTimeout, 90*time.Second)
	l.MessageBytes = cmp.Or(l.MessageBytes, 32<<20)
	l.Calls = cmp.Or(l.Calls, 256)
	l.LogBytes = cmp.Or(l.LogBytes, 16<<10)
	return l
}

// Options say what to run, and how.
type Options struct {
	Name    string // of the plugin, for messages
	Program *Program
	Args    []string
	Env     []string // "NAME=value": all that it has, besides what the protocol needs
	User    *User    // nil: the server's
	TempDir string   // where the directory of its sockets is made; "": the system's
	Version string   // of the server, as plugins see it
	Limits  Limits
	Logger  *slog.Logger
}

// Process is a running plugin. Safe for concurrent use.
type Process struct {
	options Options
	client  *goplugin.Client
	rpc     *goplugin.GRPCClient
	link    link
	calls   chan struct{} // one for each call that is under way
	runner  atomic.Pointer[run]
	ended   sync.Once
	// Multiplexed says that the process serves several mounts.
	Multiplexed bool
	// Alone says that the process has a PID namespace of its own: nothing that it has started outlives it.
	Alone bool
}

// link is what go-plugin gives of a connection.
type link struct {
	goplugin.NetRPCUnsupportedPlugin
	done   context.Context
	broker *goplugin.GRPCBroker
	conn   *grpc.ClientConn
}

// GRPCServer implements goplugin.GRPCPlugin. The server is never a plugin.
func (*link) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return errors.ErrUnsupported }

// GRPCClient implements goplugin.GRPCPlugin.
func (*link) GRPCClient(ctx context.Context, broker *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return link{done: ctx, broker: broker, conn: conn}, nil
}

// maxHeaderBytes limits what a plugin sends around a message.
const maxHeaderBytes = 64 << 10

// windowBytes is how much is sent before it is acknowledged. A fixed window saves the pings that would measure the connection: on a
// Unix socket they cost more than they tell.
const windowBytes = 1 << 20

// streamWorkers are goroutines that answer a plugin's calls one after the other: a new one for each call would have to grow its stack.
const streamWorkers = 32

// Start runs a plugin. It takes no longer than Limits.StartTimeout.
func Start(ctx context.Context, o Options) (*Process, error) {
	o.Limits = o.Limits.withDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sockets := &goplugin.UnixSocketConfig{TempDir: o.TempDir, Group: o.User.group()}
	if o.User != nil {
		sockets.TempDir = "" // which that user can reach
	}
	p := &Process{options: o, calls: make(chan struct{}, o.Limits.Calls)}
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  bao.HandshakeConfig,
		VersionedPlugins: map[int]goplugin.PluginSet{5: {"backend": &link{}}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     o.Limits.StartTimeout,
		Logger:           hclog.NewNullLogger(), // what fails here, callers learn
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithMaxHeaderListSize(maxHeaderBytes), grpc.WithUnaryInterceptor(p.limit), grpc.WithStreamInterceptor(limitStream),
			grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(windowBytes),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.Limits.MessageBytes), grpc.MaxCallSendMsgSize(o.Limits.MessageBytes)),
		},
		UnixSocketConfig: sockets,
		RunnerFunc: func(_ hclog.Logger, protocol *exec.Cmd, dir string) (runner.Runner, error) {
			r, err := newRun(o, protocol.Env, dir)
			p.runner.Store(r)
			return r, err
		},
	})
	if err := p.connect(ctx); err != nil {
		p.Kill()
		return nil, fmt.Errorf("starting plugin %q: %w", o.Name, shorten(err))
	}
	return p, nil
}

func (p *Process) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.options.Limits.StartTimeout)
	defer cancel()
	connected := make(chan error, 1)
	go func() {
		protocol, err := p.client.Client()
		if err == nil {
			p.rpc = protocol.(*goplugin.GRPCClient)
		}
		connected <- err
	}()
	select {
	case err := <-connected:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	raw, err := p.rpc.Dispense("backend")
	if err != nil {
		return err
	}
	p.link, p.Alone = raw.(link), p.runner.Load().alone
	p.Multiplexed, err = pluginutil.MultiplexingSupported(ctx, p.link.conn, p.options.Name)
	return err
}

// limit bounds every call to the plugin: how many there are, and how long each takes.
func (p *Process) limit(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	select {
	case p.calls <- struct{}{}:
	default:
		return status.Error(codes.ResourceExhausted, "too many requests are waiting for the plugin")
	}
	defer func() { <-p.calls }()
	ctx, cancel := context.WithTimeout(ctx, p.options.Limits.CallTimeout)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// limitStream bounds the streams of go-plugin: what the plugin prints, and its part in brokering connections, of which it has none.
func limitStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, append(opts, grpc.MaxCallRecvMsgSize(maxPrintBytes))...)
	return stream{s, new(second)}, err
}

// maxPrintBytes limits what a plugin prints at a time and in a second. It is dropped.
const maxPrintBytes = 64 << 10

type stream struct {
	grpc.ClientStream
	second *second
}

// RecvMsg implements grpc.ClientStream. It delivers nothing.
func (s stream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil {
			return err
		}
		s.second.add(max(1<<10, proto.Size(m.(proto.Message))), maxPrintBytes, func(int) {})
	}
}

// Conn is the connection to the plugin.
func (p *Process) Conn() grpc.ClientConnInterface { return p.link.conn }

// ForMount marks the calls of a context as those of one of the mounts that the process serves.
func ForMount(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, pluginutil.MultiplexingCtxKey, id)
}

// Serve offers services to the plugin, until stop is called. The plugin reaches them by the id.
func (p *Process) Serve(register func(grpc.ServiceRegistrar)) (id uint32, stop func()) {
	id = p.link.broker.NextId()
	started := make(chan *grpc.Server, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.link.broker.AcceptAndServe(id, func(opts []grpc.ServerOption) *grpc.Server {
			size := p.options.Limits.MessageBytes
			s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(size), grpc.MaxSendMsgSize(size),
				grpc.StaticStreamWindowSize(windowBytes), grpc.StaticConnWindowSize(windowBytes), grpc.NumStreamWorkers(streamWorkers),
				grpc.MaxConcurrentStreams(uint32(p.options.Limits.Calls)), grpc.MaxHeaderListSize(maxHeaderBytes))...)
			register(s)
			for _, service := range ignored {
				s.RegisterService(service, nil)
			}
			started <- s
			return s
		})
	}()
	return id, func() {
		select {
		case s := <-started:
			s.Stop()
		case <-ended:
		}
	}
}

// ignored are services that are not here, to which plugins report events and observations: without a response, they would log an error
// each time.
var ignored = []*grpc.ServiceDesc{
	{ServiceName: "pb.Events", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "SendEvent", Handler: ignore}}},
	{ServiceName: "pb.Observations", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "RecordObservation", Handler: ignore}}},
}

func ignore(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	return &emptypb.Empty{}, decode(&emptypb.Empty{})
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.link.done.Done() }

// killAfter is how long a process has to end by itself.
const killAfter = 2 * time.Second

// Kill ends the process and all that it started. It returns when they have ended.
func (p *Process) Kill() {
	p.ended.Do(func() {
		r := p.runner.Load()
		if r == nil {
			return
		}
		force := time.AfterFunc(killAfter, r.kill)
		p.client.Kill()
		force.Stop()
		r.kill() // what the process has started
	})
}

// maxErrorBytes is how much of what a plugin says goes into an error.
const maxErrorBytes = 300

func shorten(err error) error {
	if text := err.Error(); len(text) > maxErrorBytes {
		return errors.New(text[:maxErrorBytes] + "…")
	}
	return err
}
