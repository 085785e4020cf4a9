package backend

import (
	"context"
	"slices"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// systemView is pb.SystemView with methods that plugins of Vault call: each configuration of root credentials asks for a schedule that
// rotates them, or cancels it. There are no schedules, so there is nothing to cancel.
var systemView = func() *grpc.ServiceDesc {
	d := pb.SystemView_ServiceDesc
	d.Methods = append(slices.Clone(d.Methods),
		grpc.MethodDesc{MethodName: "RegisterRotationJob", Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return nil, status.Error(codes.Unimplemented,
				"this server has no schedules for root credentials: leave out rotation_schedule and rotation_period, and rotate them by a request")
		}},
		grpc.MethodDesc{MethodName: "DeregisterRotationJob", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return &emptypb.Empty{}, decode(&emptypb.Empty{})
		}},
	)
	return &d
}()
