package harness

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Network stands between the nodes: each node tells the others the address of a proxy in front of its cluster
// port. It can cut any direction between any two nodes. A cut loses nothing and says nothing: bytes wait, as
// they do when packets are dropped, and connections stay open until somebody gives up. It can also delay
// everything. API ports are not behind it.
type Network struct {
	t  TB
	mu sync.Mutex
	// cut holds the ordered pairs between which nothing passes.
	cut   map[[2]string]bool
	delay time.Duration
	// changed is closed and replaced at each change.
	changed chan struct{}
	pids    map[int]string
}

func newNetwork(t TB) *Network {
	return &Network{t: t, cut: map[[2]string]bool{}, changed: make(chan struct{}), pids: map[int]string{}}
}

func (w *Network) setPID(id string, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, owner := range w.pids {
		if owner == id {
			delete(w.pids, p)
		}
	}
	w.pids[pid] = id
}

// Cut stops what from sends to to.
func (w *Network) Cut(from, to string) { w.change(func() { w.cut[[2]string{from, to}] = true }) }

// Isolate cuts both directions between id and every other node.
func (w *Network) Isolate(id string, others ...string) {
	w.change(func() {
		for _, other := range others {
			if other != id {
				w.cut[[2]string{id, other}], w.cut[[2]string{other, id}] = true, true
			}
		}
	})
}

// Heal lets everything pass again.
func (w *Network) Heal() { w.change(func() { clear(w.cut) }) }

// Delay holds every chunk of bytes back for d.
func (w *Network) Delay(d time.Duration) { w.change(func() { w.delay = d }) }

func (w *Network) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.changed)
	w.changed = make(chan struct{})
}

// state reports whether bytes pass, how much they are delayed, and a channel that closes when that changes.
func (w *Network) state(from, to string) (open bool, delay time.Duration, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.cut[[2]string{from, to}], w.delay, w.changed
}

// front starts the proxy of a node and returns its address.
func (w *Network) front(n *Node) string {
	w.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", FreePort(w.t))
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	p := &proxy{network: w, node: n, conns: map[net.Conn]bool{}, done: make(chan struct{})}
	p.wg.Go(func() { p.accept(l) })
	w.t.Cleanup(func() {
		l.Close()
		p.end()
	})
	return addr
}

// proxy is the front of one node.
type proxy struct {
	network *Network
	node    *Node
	wg      sync.WaitGroup
	done    chan struct{} // closed by end

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func (p *proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.relay(conn) })
	}
}

func (p *proxy) end() {
	close(p.done)
	p.mu.Lock()
	for conn := range p.conns {
		conn.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) keep(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[conn] = true
}

func (p *proxy) drop(conn net.Conn) {
	conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

func (p *proxy) relay(client net.Conn) {
	p.keep(client)
	defer p.drop(client)
	from := p.network.owner(client.RemoteAddr().(*net.TCPAddr).Port, client.LocalAddr().(*net.TCPAddr).Port)
	if from == "" || !p.pass(from, p.node.ID) {
		return // the client tries again; a connection without an owner could not be cut
	}
	server, err := net.Dial("tcp4", p.node.cluster)
	if err != nil {
		return
	}
	p.keep(server)
	defer p.drop(server)
	var both sync.WaitGroup
	both.Go(func() { p.pump(server, client, from, p.node.ID) })
	both.Go(func() { p.pump(client, server, p.node.ID, from) })
	both.Wait()
}

// pump copies bytes as far as the network lets them pass, and closes both ends when one has ended.
func (p *proxy) pump(to, from net.Conn, fromID, toID string) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(fromID, toID) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until bytes may go. It reports false when the proxy ends.
func (p *proxy) pass(from, to string) bool {
	for waited := false; ; {
		open, delay, changed := p.network.state(from, to)
		if open && (delay == 0 || waited) {
			return true
		}
		var timer <-chan time.Time
		if open {
			timer = time.After(delay)
		}
		select {
		case <-timer:
			waited = true
		case <-changed:
		case <-p.done:
			return false
		}
	}
}

// owner returns the node whose process has the socket from port to remote, "" if none has: the kernel's list of
// sockets names the socket, and the process has it among its open files.
func (w *Network) owner(port, remote int) string {
	inode := socketInode(port, remote)
	if inode == "" {
		return ""
	}
	w.mu.Lock()
	pids := make(map[int]string, len(w.pids))
	for pid, id := range w.pids {
		pids[pid] = id
	}
	w.mu.Unlock()
	for pid, id := range pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, file := range files {
			if target, err := os.Readlink(file); err == nil && target == "socket:["+inode+"]" {
				return id
			}
		}
	}
	return ""
}

// socketInode looks for both ports: one local port may serve several connections to different places.
func socketInode(port, remote int) string {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		if portOf(fields[1]) == port && portOf(fields[2]) == remote {
			return fields[9]
		}
	}
	return ""
}

// portOf returns the port of an address as the kernel lists it, hexadecimal behind a colon; -1 if there is none.
func portOf(addr string) int {
	_, hex, _ := strings.Cut(addr, ":")
	n, err := strconv.ParseInt(hex, 16, 32)
	if err != nil {
		return -1
	}
	return int(n)
}
