package chaos_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// awaitLog waits until a node has logged each of the texts.
func awaitLog(t *testing.T, n *harness.Node, texts ...string) {
	t.Helper()
	for _, text := range texts {
		harness.Await(t, fmt.Sprintf("%s to log %q", n.LogFile, text), time.Minute, func() error {
			if !strings.Contains(n.Log(), text) {
				return errors.New("it has not")
			}
			return nil
		})
	}
}

func exchange(t *testing.T, a, b string) {
	t.Helper()
	if err := errors.Join(os.Rename(a, a+".swap"), os.Rename(b, a), os.Rename(a+".swap", b)); err != nil {
		t.Fatal(err)
	}
}

func mustCopy(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestIdentityOfNodesAndFiles: a second machine with a member's id, with or without a copy of its data, does not take its place;
// files on the wrong node keep it from starting; a joiner does not use what another cluster has left on its disk; and a removed
// node knows.
func TestIdentityOfNodesAndFiles(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	leader := c.Leader()
	leader.MustDo("POST", "/v1/sys/mounts/kept", map[string]any{"type": "kv"})
	leader.MustDo("POST", "/v1/kept/a", map[string]any{"v": "1"})
	member, other := c.Standbys()[0], c.Standbys()[1]

	stays := func(t *testing.T) {
		t.Helper()
		c.WaitVoters(3)
		member.WaitHealth(200, 429)
		answer, err := member.Do(t.Context(), "GET", "/v1/kept/a", c.RootToken, nil)
		if err != nil || answer.Status != 200 {
			t.Errorf("%s answers %d %s, %v", member.ID, answer.Status, answer.Body, err)
		}
	}
	t.Run("an empty machine with the id of a member", func(t *testing.T) {
		twin := c.Twin(member)
		twin.Start()
		awaitLog(t, twin, "is a member and answers: give this node another id")
		awaitLog(t, leader, "a node that wants to join is rejected", twin.ClusterAddr())
		if got := twin.Health(); got != 501 {
			t.Errorf("its health is %d", got)
		}
		stays(t)
		twin.Kill9()
	})
	t.Run("a copy of a member's directory", func(t *testing.T) {
		twin := c.Twin(member)
		member.Stop()
		mustCopy(t, twin.Dir, member.Dir)
		member.Start()
		member.WaitHealth(429)
		twin.Start()
		awaitLog(t, twin, "another process runs as node")
		awaitLog(t, member, "another process runs as this node")
		if got := twin.Health(); got != 503 {
			t.Errorf("its health is %d", got)
		}
		stays(t)
		// It runs while the member is away, and stops when the member is back.
		member.Stop()
		awaitUnsealed(t, twin)
		member.Start()
		stays(t)
		harness.Await(t, "the copy to be sealed", time.Minute, func() error {
			if n := strings.Count(twin.Log(), "another process runs as node"); !sealed(t, twin) || n < 2 {
				return fmt.Errorf("it is not, and has found the member %d times", n)
			}
			return nil
		})
		twin.Kill9()
	})
	t.Run("directories and files of two nodes exchanged", func(t *testing.T) {
		member.Stop()
		other.Kill9()
		for _, file := range []string{"", "fsm.db", "raft.db", "wal"} {
			swap := func() { exchange(t, filepath.Join(member.Dir, file), filepath.Join(other.Dir, file)) }
			swap()
			for _, n := range []*harness.Node{member, other} {
				before := len(n.Log())
				if err := n.TryStart(); err == nil {
					t.Errorf("%q exchanged: %s starts", file, n.ID)
				}
				said := n.Log()[before:]
				if !strings.Contains(said, n.Dir) || !strings.Contains(said, fmt.Sprintf("%q", member.ID)) || !strings.Contains(said, fmt.Sprintf("%q", other.ID)) {
					t.Errorf("%q exchanged: %s does not say whose they are: %s", file, n.ID, said)
				}
			}
			swap()
		}
		member.Start()
		other.Start()
		stays(t)
	})
	t.Run("a joiner with what another cluster left", func(t *testing.T) {
		foreign := harness.NewCluster(t, 1, harness.Options{Prefix: "f"})
		foreign.Nodes[0].Stop()
		member.Stop()
		if err := os.RemoveAll(member.Dir); err != nil {
			t.Fatal(err)
		}
		mustCopy(t, member.Dir, foreign.Nodes[0].Dir)
		if err := errors.Join(os.Remove(filepath.Join(member.Dir, "fsm.db")), os.Remove(filepath.Join(member.Dir, "identity"))); err != nil {
			t.Fatal(err)
		}
		member.Start()
		stays(t)
		awaitLog(t, member, "this node has no state: the logs that were there are moved aside")
		for _, file := range []string{"raft.db", "wal"} {
			if left, _ := filepath.Glob(filepath.Join(member.Dir, "unused-*", file)); len(left) != 1 {
				t.Errorf("%s was not kept: %v", file, left)
			}
		}
	})
	t.Run("a removed node", func(t *testing.T) {
		leader = c.Leader()
		leader.MustDo("POST", "/v1/sys/storage/raft/remove-peer", map[string]any{"server_id": member.ID})
		member.WaitHealth(530)
		awaitLog(t, member, "this node was removed from its cluster")
		harness.Await(t, "the removed node's response", time.Minute, func() error { // it starts again in place
			answer, err := member.Do(t.Context(), "GET", "/v1/kept/a", c.RootToken, nil)
			if err == nil && answer.Status != 503 {
				t.Errorf("it answers %d %s", answer.Status, answer.Body)
			}
			return err
		})
		member.Stop()
		member.Start()
		member.WaitHealth(530)
	})
}

func sealed(t *testing.T, n *harness.Node) bool {
	t.Helper()
	answer, err := n.Do(t.Context(), "GET", "/v1/sys/seal-status", "", nil)
	if err != nil {
		return false
	}
	var status struct{ Sealed bool }
	answer.Decode(t, &status)
	return answer.Status == 200 && status.Sealed
}

func awaitUnsealed(t *testing.T, n *harness.Node) {
	t.Helper()
	harness.Await(t, n.LogFile+" to be unsealed", time.Minute, func() error {
		if sealed(t, n) {
			return errors.New("it is sealed")
		}
		return nil
	})
}
