// Package backend is one mount in a plugin's process: the calls to it, and the services that it calls in turn, its storage and what
// it may know of the system. It speaks version 5 of the plugin protocol of Vault and OpenBao. Start reading at Open.
package backend

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/openbao/openbao/sdk/v2/plugin/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/plugin/process"
	"github.com/coffer-project/coffer/storage"
)

// Types of backends, as plugins tell them.
const (
	Unknown = iota
	Secret
	Auth
)

// Setup is what a backend is given.
type Setup struct {
	UUID    string // of the mount
	Options map[string]string
	Storage storage.Store // of the mount, and nothing else
	System  System
	// Version of the server, as plugins see it.
	Version string
}

// Backend is one mount in a process. Safe for concurrent use.
type Backend struct {
	// Type is one of the constants.
	Type int
	// Unauthenticated and Sudo are paths that need no token, or sudo: exact ones, prefixes that end in "*", and "+" for a segment.
	Unauthenticated, Sudo []string

	process *process.Process
	storage *store
	client  pb.BackendClient
	id      string
	stop    func()
}

// Open sets a mount up in a process.
func Open(ctx context.Context, p *process.Process, s Setup) (*Backend, error) {
	b := &Backend{process: p, storage: newStorage(s.Storage), client: pb.NewBackendClient(p.Conn()), id: uuid.NewString()}
	ctx = b.in(ctx)
	var service uint32
	service, b.stop = p.Serve(func(r grpc.ServiceRegistrar) {
		pb.RegisterStorageServer(r, b.storage)
		r.RegisterService(systemView, &system{setup: s})
	})
	if err := b.setup(ctx, s, service); err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

func (b *Backend) setup(ctx context.Context, s Setup, service uint32) error {
	done, err := b.client.Setup(ctx, &pb.SetupArgs{BrokerID: service, Config: s.Options, BackendUUID: s.UUID})
	if err != nil {
		return err
	}
	if text := done.GetErr(); text != "" {
		return errors.New(text)
	}
	paths, err := b.client.SpecialPaths(ctx, &pb.Empty{})
	if err != nil {
		return err
	}
	kind, err := b.client.Type(ctx, &pb.Empty{})
	if err != nil {
		return err
	}
	b.Type = int(kind.GetType())
	b.Unauthenticated, b.Sudo = paths.GetPaths().GetUnauthenticated(), paths.GetPaths().GetRoot()
	return nil
}

// in marks the calls of a context as the mount's.
func (b *Backend) in(ctx context.Context) context.Context { return process.ForMount(ctx, b.id) }

// Initialize is called once after Open, on the active node. It may write.
func (b *Backend) Initialize(ctx context.Context) error {
	reply, err := b.client.Initialize(b.in(ctx), &pb.InitializeArgs{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return b.failed(err)
	}
	return b.failure(reply.GetErr())
}

// Handle sends a request. The error is an *engines.Error. A response may come with an error.
func (b *Backend) Handle(ctx context.Context, req *pb.Request) (*pb.Response, error) {
	if req.Data == "" {
		req.Data = "{}"
	}
	reply, err := b.client.HandleRequest(b.in(ctx), &pb.HandleRequestArgs{Request: req})
	if err != nil {
		return nil, b.failed(err)
	}
	return reply.GetResponse(), b.failure(reply.GetErr())
}

// Exists reports whether what a write names is there already. Backends that cannot tell know only updates.
func (b *Backend) Exists(ctx context.Context, req *pb.Request) (bool, error) {
	if req.Data == "" {
		req.Data = "{}"
	}
	reply, err := b.client.HandleExistenceCheck(b.in(ctx), &pb.HandleExistenceCheckArgs{Request: req})
	if err != nil {
		return false, b.failed(err)
	}
	if err := b.failure(reply.GetErr()); err != nil {
		return false, err
	}
	return !reply.GetCheckFound() || reply.GetExists(), nil
}

// Invalidate says that another node has changed a key of the mount.
func (b *Backend) Invalidate(ctx context.Context, key string) {
	b.client.InvalidateKey(b.in(ctx), &pb.InvalidateKeyArgs{Key: key}) //nolint:errcheck // it has no caches, then
}

// Alive reports whether the process runs.
func (b *Backend) Alive() bool {
	select {
	case <-b.process.Done():
		return false
	default:
		return true
	}
}

// Close ends the mount's part in the process, not the process.
func (b *Backend) Close(ctx context.Context) {
	b.client.Cleanup(b.in(ctx), &pb.Empty{}) //nolint:errcheck // it is going
	b.stop()
}

// failed is an error of the call itself.
func (b *Backend) failed(err error) error {
	if status.Code(err) == codes.Unavailable { // the connection ends before the process does
		select {
		case <-b.process.Done():
		case <-time.After(time.Second):
		}
	}
	if !b.Alive() {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin has ended while it handled the request: try again", Err: err}
	}
	switch status.Code(err) {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin has not answered in time", Err: err}
	case codes.ResourceExhausted:
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin has too many requests to handle, or a message of it is too large", Err: err}
	case codes.Unknown: // an error of its own
		return &engines.Error{Kind: engines.KindFailed, Detail: "the plugin failed: " + status.Convert(err).Message()}
	}
	return &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin cannot be reached: try again", Err: err}
}

// failure is an error that the plugin returns. One about a write that cannot be made here is the server's: the request then goes where
// it can be made.
func (b *Backend) failure(e *pb.ProtoError) error {
	if e == nil {
		return nil
	}
	kind, detail := engines.KindFailed, e.GetErrMsg()
	switch e.GetErrType() {
	case pb.ErrTypeUserError, pb.ErrTypeStatusBadRequest, pb.ErrTypeInvalidRequest:
		kind = engines.KindInvalid
	case pb.ErrTypeUnsupportedOperation:
		kind = engines.KindUnsupported
	case pb.ErrTypeUnsupportedPath:
		kind = engines.KindNotFound
	case pb.ErrTypePermissionDenied:
		kind, detail = engines.KindDenied, "permission denied"
	case pb.ErrTypeCodedError:
		kind = kindOf(int(e.GetErrCode()))
	}
	if why := b.storage.readOnly.Load(); why != nil && strings.Contains(e.GetErrMsg(), errReadOnly) {
		return *why
	}
	return &engines.Error{Kind: kind, Detail: detail}
}

// kindOf returns the kind of a status code.
func kindOf(code int) engines.Kind {
	switch code {
	case 400, 409, 422:
		return engines.KindInvalid
	case 401, 403:
		return engines.KindDenied
	case 404:
		return engines.KindNotFound
	case 405:
		return engines.KindUnsupported
	case 412:
		return engines.KindPrecondition
	case 413:
		return engines.KindTooLarge
	case 429:
		return engines.KindLimited
	case 502:
		return engines.KindUpstream
	case 503:
		return engines.KindUnavailable
	}
	return engines.KindFailed
}
