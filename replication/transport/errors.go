package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// Errors between clusters:
//
//	here                                  as a status                           there
//	ErrRevoked                            PermissionDenied                      ErrRevoked
//	*Refusal                              InvalidArgument, its text             *Refusal
//	nothing was done: ErrUnavailable,     FailedPrecondition with a Redirect    *redirect, storage.ErrUnavailable
//	ErrReadOnly, ErrSealed, standbys
//	storage.ErrOutcomeUnknown             Aborted                               storage.ErrOutcomeUnknown
//	a context's                           DeadlineExceeded, Canceled            storage.ErrOutcomeUnknown
//	anything else                         Internal, without its text            errOther

// errOther is a failure of the primary that it says nothing about.
var errOther = errors.New("the primary had an internal error: its log says more")

// Redirect says that nothing was done, and which address to try instead; "": not known.
type Redirect struct{ Addr string }

func (r *Redirect) Error() string {
	if r.Addr == "" {
		return "the node that was asked does not serve secondaries, and knows none that does"
	}
	return "the node that was asked does not serve secondaries; the active one is at " + r.Addr
}

func (r *Redirect) Unwrap() error { return storage.ErrUnavailable }

// ToStatus is for what a server returns. active returns the address of the active node if it is another one.
func ToStatus(err error, active func() string, log *slog.Logger) error {
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*replication.Refusal](err); ok {
		return status.Error(codes.InvalidArgument, refusal.Detail)
	}
	switch {
	case errors.Is(err, replication.ErrRevoked):
		return status.Error(codes.PermissionDenied, replication.ErrRevoked.Error())
	case errors.Is(err, storage.ErrOutcomeUnknown):
		return status.Error(codes.Aborted, "the outcome is unknown")
	case errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrReadOnly), errors.Is(err, storage.ErrSealed):
		if r, ok := errors.AsType[*Redirect](err); ok && r.Addr != "" {
			return redirectStatus(r.Addr)
		}
		return redirectStatus(active())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "out of time")
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "canceled")
	}
	log.Warn("serving a secondary", "err", err)
	return status.Error(codes.Internal, errOther.Error())
}

func redirectStatus(addr string) error {
	st := status.New(codes.FailedPrecondition, (&Redirect{addr}).Error())
	if with, err := st.WithDetails(&pb.Redirect{ActiveAddr: addr}); err == nil {
		st = with
	}
	return st.Err()
}

// FromStatus is the inverse of ToStatus, for what a client gets. sent: the request may have reached the server.
func FromStatus(err error, sent bool) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, detail := range st.Details() {
		if r, ok := detail.(*pb.Redirect); ok && st.Code() == codes.FailedPrecondition {
			return &Redirect{Addr: r.GetActiveAddr()}
		}
	}
	switch {
	case st.Code() == codes.PermissionDenied:
		return replication.ErrRevoked
	case st.Code() == codes.InvalidArgument:
		return &replication.Refusal{Detail: st.Message()}
	case st.Code() == codes.Internal && st.Message() == errOther.Error() && !sent:
		return errOther
	case st.Code() == codes.Internal && st.Message() == errOther.Error():
		return fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, errOther)
	case !sent:
		return fmt.Errorf("%w: the primary cannot be reached: %s", storage.ErrUnavailable, dialText(st.Message()))
	}
	return fmt.Errorf("%w: the primary was lost: %s", storage.ErrOutcomeUnknown, dialText(st.Message()))
}

// dialText returns why a connection has failed, without what gRPC has put around it.
func dialText(message string) string {
	if _, quoted, ok := strings.Cut(message, "connection error: desc = "); ok {
		if text, err := strconv.Unquote(quoted); err == nil {
			message = text
		}
	}
	if _, cause, ok := strings.Cut(message, "Error while dialing: "); ok {
		return cause
	}
	return message
}
