package process

import (
	"log/slog"
	"net"
	"os"
)

// NotifyManager sends a state to the service manager (systemd's Type=notify). Without one nothing happens.
func NotifyManager(log *slog.Logger, state string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		conn.Close()
	}
	if err != nil {
		log.Warn("telling the service manager", "err", err)
	}
}
