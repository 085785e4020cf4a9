package forward

import (
	"context"
	"testing"
	"time"

	"github.com/coffer-project/coffer/proto/forwardpb"
)

// A connection is kept while its node leads, also if it did not seem to for a moment.
func TestConnectionsFollowTheLeader(t *testing.T) {
	c := &Calls{Options: Options{LeaderLeaseTimeout: time.Hour}, open: map[*leaderConn]bool{}}
	conn, err := c.Dial("one")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c.conn = &leaderConn{ClientConn: conn, to: "one"}
	c.open[c.conn] = true
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.conn
	c.followLocked("")
	if c.conn != l || l.end == nil {
		t.Error("a connection must be kept for a while when there is no leader")
	}
	c.followLocked(l.to)
	if c.conn != l || l.end != nil {
		t.Error("a connection must stay when its node leads again")
	}
	c.followLocked("another")
	if c.conn != nil || l.end == nil || !c.open[l] {
		t.Error("a connection must not be used when another node leads, and end later")
	}
}

func FuzzRebuildRequest(f *testing.F) {
	f.Add("GET", "/v1/x?a=b", "X-Token", "1", "192.0.2.1:1", true)
	f.Add("", "//host/%zz", "content-length", "-5", "", false)
	f.Fuzz(func(t *testing.T, method, uri, name, value, remote string, end bool) {
		r, err := rebuild(fakeRequestStream{}, &forwardpb.RequestChunk{End: end, Head: &forwardpb.RequestHead{
			Method: method, Uri: uri, RemoteAddr: remote, Headers: []*forwardpb.Header{{Name: name, Values: []string{value}}, nil},
		}})
		if err != nil {
			return
		}
		if r.RequestURI != uri || r.URL == nil || r.ContentLength < -1 {
			t.Errorf("%q became %v", uri, r)
		}
	})
}

type fakeRequestStream struct{ requestStream }

func (fakeRequestStream) Context() context.Context { return context.Background() }
