package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePort returns a TCP port on loopback that stays this test's own, also while no node listens on it: the
// UDP port of the same number is held until the test ends, and every user of this package does the same. The
// ports are below those that the kernel gives to outgoing connections.
func FreePort(t TB) int {
	t.Helper()
	for range 200 {
		port := 12000 + rand.IntN(18000)
		udp, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		tcp, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			udp.Close()
			continue
		}
		tcp.Close()
		t.Cleanup(func() { udp.Close() })
		return port
	}
	t.Fatalf("no free port found")
	return 0
}
