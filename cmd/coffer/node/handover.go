package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/node/dev"
	"github.com/coffer-project/coffer/cmd/coffer/node/socket"
)

// A server that is sealed executes its own binary again: only a new process image is sure to hold no keys, tokens or
// secrets. The process id, the arguments and the listening sockets stay, so that the service manager notices nothing and
// clients wait instead of being rejected. What the new image must know is in one environment variable.

// handoverVar names the variable; its value is a handover in JSON.
const handoverVar = "COFFER_HANDOVER"

// sealedDrainTime is how long what a sealed server still answers may take to leave.
const sealedDrainTime = time.Second

// errSealed ends a server that is to execute itself again.
var errSealed = errors.New("sealed")

// handover is what a process image leaves for the next one. It holds no secret.
type handover struct {
	// StaySealed says that an operator has sealed the server: an automatic seal must not open it before the next start.
	StaySealed bool `json:"stay_sealed"`
	// Check has all of the state file checked before it is used: the image before has found damage when it began to read it.
	Check     bool              `json:"check"`
	Listeners []inheritedSocket `json:"listeners"`
	Dev       dev.Dirs          `json:"dev"` // of a development server
}

// inheritedSocket is a listening socket by its address in the configuration.
type inheritedSocket struct {
	Address string `json:"address"`
	FD      int    `json:"fd"`
}

// takeHandover returns what the image before has left, nil if there was none.
func takeHandover() (*handover, error) {
	text := os.Getenv(handoverVar)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(handoverVar)
	h := new(handover)
	if err := json.Unmarshal([]byte(text), h); err != nil {
		return nil, fmt.Errorf("environment variable %s: %w; it is for the server's own use, unset it", handoverVar, err)
	}
	for _, s := range h.Listeners {
		syscall.CloseOnExec(s.FD)
	}
	return h, nil
}

// listen takes the socket of the image before, or else the address.
func (h *handover) listen(c config.Listener) (net.Listener, error) {
	l, err := h.inherited(c.Address)
	switch {
	case l != nil || err != nil:
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(true)
		}
		return l, err
	case c.Unix:
		return socket.Listen(c)
	}
	return net.Listen("tcp", c.Address)
}

// inherited returns the socket of the image before; nil: there is none.
func (h *handover) inherited(address string) (net.Listener, error) {
	if h != nil {
		for i, s := range h.Listeners {
			if s.Address == address {
				h.Listeners = append(h.Listeners[:i:i], h.Listeners[i+1:]...)
				f := os.NewFile(uintptr(s.FD), address)
				defer f.Close() // the listener has a copy
				return net.FileListener(f)
			}
		}
	}
	return nil, nil
}

// sealer is how a server gives way to the next image of its process.
type sealer struct {
	from *handover                                   // of the image before; nil: none
	exec func(path string, args, env []string) error // replaces the process image; nil: it stays
	stop context.CancelCauseFunc

	next      handover
	listeners []*listener
	sockets   []*os.File // of listeners, in their order
}

// sealing stops accepting connections, which wait for the next image from then on. What it returns ends the server.
func (s *sealer) sealing(stay bool) func() {
	s.next.StaySealed = stay
	for _, l := range s.listeners {
		if u, ok := l.socket.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // the next image serves it
		}
		file, err := l.socket.(interface{ File() (*os.File, error) }).File()
		if err == nil {
			s.sockets = append(s.sockets, file)
			s.next.Listeners = append(s.next.Listeners, inheritedSocket{Address: l.config.Address})
		}
		l.http.SetKeepAlivesEnabled(false)
		l.net.Close()
	}
	return func() { s.stop(errSealed) }
}

// execute replaces the process image. It returns only if that fails.
func (s *sealer) execute() error {
	signal.Ignore(syscall.SIGHUP) // until the next image listens to it: else it would end the process
	for i, f := range s.sockets {
		fd, err := syscall.Dup(int(f.Fd())) // a copy that outlives the image
		if err != nil {
			return fmt.Errorf("keeping a listening socket: %w", err)
		}
		s.next.Listeners[i].FD = fd
	}
	text, err := json.Marshal(s.next)
	if err != nil {
		return err
	}
	path, err := ownBinary()
	if err != nil {
		return err
	}
	err = s.exec(path, withoutTokens(os.Args), append(withoutRootToken(os.Environ()), handoverVar+"="+string(text)))
	return fmt.Errorf("restarting in place after sealing: %w", err)
}

// ownBinary names the file of this very image, also after it was replaced by a newer version.
func ownBinary() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// withoutRootToken are the variables without the root token of a development server.
func withoutRootToken(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasSuffix(name, "_DEV_ROOT_TOKEN_ID")
	})
}

// withoutTokens are the arguments without the root token of a development server, which exists by now.
func withoutTokens(args []string) []string {
	var kept []string
	for i := 0; i < len(args); i++ {
		name, _, assigned := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch {
		case name != "dev-root-token-id" || !strings.HasPrefix(args[i], "-"):
			kept = append(kept, args[i])
		case !assigned:
			i++ // its value
		}
	}
	return kept
}
