package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
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

// redirect says that nothing was done, and which address to try instead; "": not known.
type redirect struct{ addr string }

func (r *redirect) Error() string {
	if r.addr == "" {
		return "the node that was asked does not serve secondaries, and knows none that does"
	}
	return "the node that was asked does not serve secondaries; the active one is at " + r.addr
}

func (r *redirect) Unwrap() error { return storage.ErrUnavailable }

// toStatus is for what a server returns.
func (l *Link) toStatus(err error) error {
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return status.Error(codes.InvalidArgument, refusal.Detail)
	}
	switch {
	case errors.Is(err, ErrRevoked):
		return status.Error(codes.PermissionDenied, ErrRevoked.Error())
	case errors.Is(err, storage.ErrOutcomeUnknown):
		return status.Error(codes.Aborted, "the outcome is unknown")
	case errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrReadOnly), errors.Is(err, storage.ErrSealed):
		return redirectStatus(l.activeAddr(err))
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "out of time")
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "canceled")
	}
	l.log.Warn("serving a secondary", "err", err)
	return status.Error(codes.Internal, errOther.Error())
}

// activeAddr returns the address of the active node if it is another one.
func (l *Link) activeAddr(err error) string {
	if r, ok := errors.AsType[*redirect](err); ok && r.addr != "" {
		return r.addr
	}
	self, addr := l.o.Guard.Active()
	if self {
		return ""
	}
	return addr
}

func redirectStatus(addr string) error {
	st := status.New(codes.FailedPrecondition, (&redirect{addr}).Error())
	if with, err := st.WithDetails(&pb.Redirect{ActiveAddr: addr}); err == nil {
		st = with
	}
	return st.Err()
}

// fromStatus is the inverse of toStatus, for what a client gets. sent: the request may have reached the server.
func fromStatus(err error, sent bool) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, detail := range st.Details() {
		if r, ok := detail.(*pb.Redirect); ok && st.Code() == codes.FailedPrecondition {
			return &redirect{addr: r.GetActiveAddr()}
		}
	}
	switch {
	case st.Code() == codes.PermissionDenied:
		return ErrRevoked
	case st.Code() == codes.InvalidArgument:
		return &Refusal{Detail: st.Message()}
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
