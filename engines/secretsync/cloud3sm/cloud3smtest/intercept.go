package cloud3smtest

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// intercept lets calls in, fails them if the test wants that, and has them carried out one at a time.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	s.mu.Lock()
	s.calls = append(s.calls, method)
	fault := s.take(methods[method].writes)
	hook := s.hooks[method]
	s.mu.Unlock()

	if err := s.admit(ctx, method, req); err != nil {
		return nil, err
	}
	if hook != nil {
		if err := hook(ctx, req); err != nil {
			return nil, err
		}
	}
	if fault.Kind != desttest.None {
		return s.fail(ctx, fault, func() { s.locked(ctx, req, handle) })
	}
	return s.locked(ctx, req, handle)
}

func (s *Server) locked(ctx context.Context, req any, handle grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return handle(ctx, req)
}

// take returns how a call is to fail. It needs the mutex held.
func (s *Server) take(writes bool) desttest.Fault {
	got := s.fault
	if got.Kind == desttest.None || got.Writes && !writes {
		return desttest.Fault{}
	}
	if got.Times > 0 {
		if s.fault.Times--; s.fault.Times == 0 {
			s.fault = desttest.Fault{}
		}
	}
	return got
}

// admit rejects calls without permission.
func (s *Server) admit(ctx context.Context, method string, req any) error {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	header := md.Get("authorization")
	if len(header) != 1 || !strings.HasPrefix(header[0], "Bearer ") {
		return withReason(codes.Unauthenticated, "CREDENTIALS_MISSING", "Request is missing required authentication credential.")
	}
	if until, ok := s.tokens[strings.TrimPrefix(header[0], "Bearer ")]; !ok || time.Now().After(until) {
		return withReason(codes.Unauthenticated, "ACCESS_TOKEN_EXPIRED", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
	}
	if _, ok := ctx.Deadline(); !ok {
		return invalid("the call has no deadline")
	}
	m, ok := methods[method]
	if !ok {
		return status.Error(codes.Unimplemented, method)
	}
	resource := resourceOf(req)
	if got := md.Get("x-goog-request-params"); len(got) != 1 || got[0] != m.route+"="+url.QueryEscape(resource) {
		return invalid("the routing header is missing or another's")
	}
	if _, _, err := split(resource); err != nil {
		return err
	}
	if m.permission != "" && !slices.Contains(s.granted, m.permission) {
		return denied(m.permission, resource)
	}
	return nil
}

func resourceOf(req any) string {
	switch in := req.(type) {
	case *secretmanagerpb.UpdateSecretRequest:
		return in.GetSecret().GetName()
	case *iampb.TestIamPermissionsRequest:
		return in.GetResource()
	case interface{ GetParent() string }:
		return in.GetParent()
	case interface{ GetName() string }:
		return in.GetName()
	}
	return ""
}

// fail fails a call. carryOut does it all the same.
func (s *Server) fail(ctx context.Context, f desttest.Fault, carryOut func()) (any, error) {
	switch f.Kind {
	case desttest.Throttle:
		return nil, with(codes.ResourceExhausted, "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute'.",
			&errdetails.ErrorInfo{Reason: "RATE_LIMIT_EXCEEDED", Domain: "googleapis.com"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
	case desttest.Trouble:
		return nil, status.Error(codes.Unavailable, "The service is currently unavailable.")
	case desttest.Reject:
		return nil, denied("secretmanager.secrets.any", "projects/"+Project)
	case desttest.DropAfter:
		carryOut()
	case desttest.Hang:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if p, ok := peer.FromContext(ctx); ok {
		s.conns.sever(p.Addr.String())
	}
	return nil, status.Error(codes.Aborted, "dropped")
}

func denied(permission, resource string) error {
	return withReason(codes.PermissionDenied, "IAM_PERMISSION_DENIED", fmt.Sprintf("Permission '%s' denied for resource '%s' (or it may not exist).", permission, resource))
}

func withReason(code codes.Code, reason, message string) error {
	return with(code, message, &errdetails.ErrorInfo{Reason: reason, Domain: "iam.googleapis.com"})
}

func with(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}
