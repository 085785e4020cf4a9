package transport

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"
)

// from is a connection from an address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.addr), Port: 1} }

// TestStrangersLeaveRoom: one host's connections without a certificate do not keep others from enrolling, and their places
// are free again when they end.
func TestStrangersLeaveRoom(t *testing.T) {
	var c peerCredentials
	comes := func(addr string) net.Conn {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		conn, _, err := c.ServerHandshake(tls.Server(from{here, addr}, &tls.Config{MinVersion: tls.VersionTLS13}))
		if err != nil {
			here.Close()
			return nil
		}
		t.Cleanup(func() { here.Close() })
		return conn
	}
	var first net.Conn
	for range maxFromOne {
		if first = comes("192.0.2.1"); first == nil {
			t.Fatal("refused")
		}
	}
	if comes("192.0.2.1") != nil {
		t.Error("one host may have more than its part")
	}
	if comes("192.0.2.2") == nil {
		t.Error("another host is kept out")
	}
	first.Close()
	if comes("192.0.2.1") == nil {
		t.Error("a place that is free again is not given away")
	}
	for i := range maxStrangers {
		comes(fmt.Sprint("192.0.2.", 10+i))
	}
	if comes("192.0.2.100") != nil {
		t.Error("there is no end of strangers")
	}
}
