package join

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// The name of a headless service stands for all nodes: every address is tried.
func TestEveryAddressOfAName(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"initialized":true}`))
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	before := lookup
	defer func() { lookup = before }()
	lookup = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1", "127.0.0.2"}, nil }
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	all := Each(t.Context(), []Target{{LeaderAPIAddr: "http://nodes.invalid:" + port}, {LeaderAPIAddr: "http://10.0.0.1:1"}})
	if len(all) != 3 {
		t.Fatalf("%d targets, want 3", len(all))
	}
	if _, err := all[0].Status(t.Context()); err == nil {
		t.Error("an address without a node responds")
	}
	if s, err := all[1].Status(t.Context()); err != nil || !s.Initialized {
		t.Errorf("the other address: %+v, %v", s, err)
	}
}
