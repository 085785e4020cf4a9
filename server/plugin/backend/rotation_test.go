package backend

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestRotationJobs has a plugin ask for what newer SDKs know.
func TestRotationJobs(t *testing.T) {
	listener, s := bufconn.Listen(1<<16), grpc.NewServer()
	s.RegisterService(systemView, &system{})
	go s.Serve(listener) //nolint:errcheck // it ends with the test
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	call := func(method string) error {
		return conn.Invoke(t.Context(), "/pb.SystemView/"+method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	for _, method := range []string{"DeregisterRotationJob", "MlockEnabled"} {
		if err := call(method); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if err := call("RegisterRotationJob"); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "leave out rotation_schedule") {
		t.Errorf("RegisterRotationJob: %v", err)
	}
}
