package conformance_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

const patience = 60 * time.Second

func (s *suite) initialise(t *testing.T) {
	t.Run("not initialized", func(t *testing.T) {
		ok, err := s.root.Sys().InitStatus()
		noErr(t, err)
		same(t, "initialized", ok, false)
	})
	t.Run("health before", func(t *testing.T) {
		same(t, "GET", s.raw(t, s.n1, "GET", "/v1/sys/health", "", nil).Status, 501)
		same(t, "HEAD", s.raw(t, s.n1, "HEAD", "/v1/sys/health", "", nil).Status, 501)
		same(t, "override", s.raw(t, s.n1, "GET", "/v1/sys/health?uninitcode=299", "", nil).Status, 299)
	})
	t.Run("seal status before", func(t *testing.T) {
		st, err := s.root.Sys().SealStatus()
		noErr(t, err)
		same(t, "initialized, sealed", []bool{st.Initialized, st.Sealed}, []bool{false, true})
		same(t, "storage type", st.StorageType, "raft")
	})
	t.Run("unseal is refused", func(t *testing.T) {
		_, err := s.root.Sys().Unseal(base64.StdEncoding.EncodeToString(make([]byte, 33)))
		status(t, err, 400, "not initialized")
	})
	t.Run("impossible shares are refused", func(t *testing.T) {
		for _, r := range []api.InitRequest{{SecretShares: 3, SecretThreshold: 5}, {SecretShares: 5, SecretThreshold: 1}, {SecretShares: 300, SecretThreshold: 2}, {SecretShares: -1, SecretThreshold: -1}} {
			_, err := s.root.Sys().Init(&r)
			status(t, err, 400)
		}
	})
	t.Run("five shares of which three", func(t *testing.T) {
		r, err := s.root.Sys().Init(&api.InitRequest{SecretShares: 5, SecretThreshold: 3})
		noErr(t, err)
		same(t, "number of keys", []int{len(r.Keys), len(r.KeysB64)}, []int{5, 5})
		if !strings.HasPrefix(r.RootToken, "hvs.") || len(r.RootToken) < 94 {
			t.Errorf("the root token has no shape that secret scanners know")
		}
		s.RootToken, s.Keys = r.RootToken, r.KeysB64
		s.root.SetToken(r.RootToken)
	})
	t.Run("only once", func(t *testing.T) {
		_, err := s.root.Sys().Init(&api.InitRequest{SecretShares: 5, SecretThreshold: 3})
		status(t, err, 400, "already initialized")
	})
}

func (s *suite) unseal(t *testing.T) {
	sys := s.root.Sys()
	t.Run("sealed after init", func(t *testing.T) {
		same(t, "health", s.n1.Health(), 503)
		st, err := sys.SealStatus()
		noErr(t, err)
		same(t, "type, t, n, progress", []any{st.Type, st.T, st.N, st.Progress}, []any{"shamir", 3, 5, 0})
	})
	t.Run("requests are refused", func(t *testing.T) {
		_, err := s.root.Logical().Read("secret/x")
		status(t, err, 503, "Vault is sealed")
		_, err = sys.ListMounts()
		status(t, err, 503, "Vault is sealed")
	})
	t.Run("progress", func(t *testing.T) {
		for i := range 2 {
			st, err := sys.Unseal(s.Keys[i])
			noErr(t, err)
			same(t, "progress", st.Progress, i+1)
			if st.Nonce == "" {
				t.Errorf("an attempt has no nonce")
			}
		}
	})
	t.Run("a share twice is one share", func(t *testing.T) {
		st, err := sys.Unseal(s.Keys[1])
		if err == nil {
			same(t, "progress", st.Progress, 2)
		} else {
			status(t, err, 400)
		}
		again, err := sys.SealStatus()
		noErr(t, err)
		same(t, "progress", again.Progress, 2)
	})
	t.Run("reset", func(t *testing.T) {
		st, err := sys.ResetUnsealProcess()
		noErr(t, err)
		same(t, "progress", st.Progress, 0)
	})
	t.Run("malformed shares", func(t *testing.T) {
		for _, share := range []string{"zz", "", "deadbeef", strings.Repeat("A", 2000)} {
			_, err := sys.Unseal(share)
			status(t, err, 400)
		}
	})
	t.Run("a wrong share ends the attempt", func(t *testing.T) {
		raw, err := base64.StdEncoding.DecodeString(s.Keys[2])
		noErr(t, err)
		raw[0] ^= 1
		for _, share := range []string{s.Keys[0], s.Keys[1]} {
			_, err := sys.Unseal(share)
			noErr(t, err)
		}
		_, err = sys.Unseal(base64.StdEncoding.EncodeToString(raw))
		status(t, err, 400)
		st, err := sys.SealStatus()
		noErr(t, err)
		same(t, "sealed, progress", []any{st.Sealed, st.Progress}, []any{true, 0})
	})
	t.Run("three of five, hex and base64", func(t *testing.T) {
		raw, err := base64.StdEncoding.DecodeString(s.Keys[4])
		noErr(t, err)
		for _, share := range []string{fmt.Sprintf("%x", raw), s.Keys[1], s.Keys[3]} {
			_, err := sys.Unseal(share)
			noErr(t, err)
		}
		st, err := sys.SealStatus()
		noErr(t, err)
		same(t, "sealed, initialized", []bool{st.Sealed, st.Initialized}, []bool{false, true})
		s.n1.WaitHealth(200)
	})
	t.Run("unseal again is harmless", func(t *testing.T) {
		st, err := sys.Unseal(s.Keys[0])
		noErr(t, err)
		same(t, "sealed", st.Sealed, false)
	})
}

func (s *suite) join(t *testing.T) {
	t.Run("autopilot configuration", func(t *testing.T) {
		c, err := s.root.Sys().RaftAutopilotConfiguration()
		noErr(t, err)
		same(t, "stabilization, contact", []time.Duration{c.ServerStabilizationTime, c.LastContactThreshold}, []time.Duration{10 * time.Second, 10 * time.Second})
		c.ServerStabilizationTime = 500 * time.Millisecond
		noErr(t, s.root.Sys().PutRaftAutopilotConfiguration(c))
		c, err = s.root.Sys().RaftAutopilotConfiguration()
		noErr(t, err)
		same(t, "stabilization", c.ServerStabilizationTime, 500*time.Millisecond)
	})
	ca, err := os.ReadFile(s.CAFile)
	noErr(t, err)
	t.Run("a leader that is none", func(t *testing.T) {
		_, err := s.n2.Client("").Sys().RaftJoin(&api.RaftJoinRequest{LeaderAPIAddr: "not a url"})
		status(t, err, 400, "leader_api_addr")
	})
	t.Run("an untrusted leader", func(t *testing.T) {
		if _, err := s.n2.Client("").Sys().RaftJoin(&api.RaftJoinRequest{LeaderAPIAddr: s.n1.URL}); err == nil {
			t.Errorf("joined through a leader whose certificate nobody vouches for")
		}
	})
	for _, n := range []*harness.Node{s.n2, s.n3} {
		t.Run("join "+n.ID, func(t *testing.T) {
			r, err := n.Client("").Sys().RaftJoin(&api.RaftJoinRequest{LeaderAPIAddr: s.n1.URL, LeaderCACert: string(ca)})
			noErr(t, err)
			same(t, "joined", r.Joined, true)
		})
		t.Run("unseal "+n.ID, func(t *testing.T) {
			for i, key := range s.Keys[:3] {
				st, err := n.Client("").Sys().Unseal(key)
				noErr(t, err)
				same(t, "sealed", st.Sealed, i < 2)
			}
			n.WaitHealth(429)
		})
	}
	t.Run("all vote", func(t *testing.T) { s.WaitVoters(3) })
	t.Run("list peers", func(t *testing.T) {
		secret, err := s.root.Logical().Read("sys/storage/raft/configuration")
		noErr(t, err)
		servers := secret.Data["config"].(map[string]any)["servers"].([]any)
		leaders := 0
		for _, v := range servers {
			server := v.(map[string]any)
			if server["leader"] == true {
				leaders++
			}
			same(t, "voter", server["voter"], true)
		}
		same(t, "servers, leaders", []int{len(servers), leaders}, []int{3, 1})
	})
	t.Run("autopilot state", func(t *testing.T) {
		st, err := s.root.Sys().RaftAutopilotState()
		noErr(t, err)
		same(t, "healthy, tolerance, servers", []any{st.Healthy, st.FailureTolerance, len(st.Servers)}, []any{true, 1, 3})
		same(t, "leader's status", st.Servers[st.Leader].Status, "leader")
	})
}

func (s *suite) status(t *testing.T) {
	t.Run("leader", func(t *testing.T) {
		for _, n := range s.Nodes {
			r, err := n.Client("").Sys().Leader()
			noErr(t, err)
			same(t, n.ID+" is self, address", []any{r.IsSelf, r.LeaderAddress, r.HAEnabled}, []any{n == s.n1, s.n1.URL, true})
		}
	})
	t.Run("members", func(t *testing.T) {
		r, err := s.root.Sys().HAStatus()
		noErr(t, err)
		same(t, "nodes", len(r.Nodes), 3)
	})
	t.Run("health codes", func(t *testing.T) {
		for query, want := range map[string][2]int{
			"": {200, 429}, "?standbyok=true": {200, 200}, "?standbyok": {200, 200}, "?standbycode=299": {200, 299},
			"?activecode=250": {250, 429}, "?perfstandbyok=true": {200, 429}, "?sealedcode=204&uninitcode=204": {200, 429},
		} {
			same(t, "active"+query, s.raw(t, s.n1, "GET", "/v1/sys/health"+query, "", nil).Status, want[0])
			same(t, "standby"+query, s.raw(t, s.n2, "GET", "/v1/sys/health"+query, "", nil).Status, want[1])
		}
		same(t, "nonsense", s.raw(t, s.n1, "GET", "/v1/sys/health?standbycode=x", "", nil).Status, 400)
	})
	t.Run("health body", func(t *testing.T) {
		h, err := s.root.Sys().Health()
		noErr(t, err)
		same(t, "flags", []bool{h.Initialized, h.Sealed, h.Standby}, []bool{true, false, false})
		if h.ClusterID == "" || h.ClusterName == "" || h.ServerTimeUTC == 0 {
			t.Errorf("incomplete: %+v", h)
		}
		if !strings.HasPrefix(h.Version, "1.") {
			t.Errorf("version %q is not of the API generation that clients know", h.Version)
		}
	})
	t.Run("one cluster id", func(t *testing.T) {
		ids := map[string]bool{}
		for _, n := range s.Nodes {
			st, err := n.Client("").Sys().SealStatus()
			noErr(t, err)
			ids[st.ClusterID] = true
		}
		same(t, "number of ids", len(ids), 1)
	})
	t.Run("paths without the version prefix", func(t *testing.T) {
		same(t, "status", s.raw(t, s.n1, "GET", "/sys/health", "", nil).Status, 200)
	})
}

// operations are those that move or stop nodes.
func (s *suite) operations(t *testing.T) {
	t.Run("encryption key", func(t *testing.T) {
		before, err := s.root.Sys().KeyStatus()
		noErr(t, err)
		noErr(t, s.root.Sys().Rotate())
		after, err := s.root.Sys().KeyStatus()
		noErr(t, err)
		same(t, "term", after.Term, before.Term+1)
	})
	t.Run("seal a standby", func(t *testing.T) {
		noErr(t, s.n3.Client(s.RootToken).Sys().Seal())
		s.n3.WaitHealth(503)
		_, err := s.root.Logical().Read("sys/mounts")
		noErr(t, err)
		s.n3.Unseal()
		s.n3.WaitHealth(429)
	})
	t.Run("seal needs sudo", func(t *testing.T) {
		token := s.policy(t, "no-sudo", `path "sys/*" { capabilities = ["update"] }`)
		status(t, s.as(token).Sys().Seal(), 403)
		same(t, "health", s.n1.Health(), 200)
	})
	t.Run("step down", func(t *testing.T) {
		s.WaitVoters(3)
		noErr(t, s.root.Sys().StepDown())
		harness.Await(t, "another leader", patience, func() error {
			if leader := s.Leader(); leader == s.n1 {
				return errors.New("it is still n1")
			}
			return nil
		})
	})
	t.Run("the rotated key still opens everything", func(t *testing.T) {
		leader := s.Leader()
		_, err := leader.Client(s.RootToken).Sys().ListMounts()
		noErr(t, err)
	})
	t.Run("restart", func(t *testing.T) {
		s.n2.Stop()
		s.n2.Start()
		same(t, "health", s.n2.Health(), 503)
		s.n2.Unseal()
		s.WaitVoters(3)
	})
	t.Run("remove a node", func(t *testing.T) {
		leader := s.Leader()
		gone := s.Standbys()[0]
		c := leader.Client(s.RootToken)
		_, err := c.Logical().Write("sys/storage/raft/remove-peer", map[string]any{"server_id": "nobody"})
		status(t, err, 400, "server_id")
		_, err = c.Logical().Write("sys/storage/raft/remove-peer", map[string]any{"server_id": gone.ID})
		noErr(t, err)
		secret, err := c.Logical().Read("sys/storage/raft/configuration")
		noErr(t, err)
		same(t, "servers", len(secret.Data["config"].(map[string]any)["servers"].([]any)), 2)
		gone.Stop()
	})
}

func (s *suite) snapshot(t *testing.T) {
	leader := s.Leader()
	c := leader.Client(s.RootToken)
	noErr(t, c.Sys().Mount("snap", &api.MountInput{Type: "kv-v2"}))
	kv := c.KVv2("snap")
	put := func(path string) {
		t.Helper()
		_, err := kv.Put(s.ctx(), path, map[string]any{"v": path})
		noErr(t, err)
	}
	put("kept")
	var archive []byte
	t.Run("save", func(t *testing.T) { archive = s.snapshotBytes(t, c) })
	t.Run("save through a standby", func(t *testing.T) { s.snapshotBytes(t, s.Standbys()[0].Client(s.RootToken)) })
	put("lost")
	noErr(t, c.Sys().Mount("later", &api.MountInput{Type: "kv-v2"}))
	t.Run("damage is refused", func(t *testing.T) {
		for name, bad := range map[string][]byte{
			"empty": {}, "cut off": archive[:len(archive)/2], "flipped": flip(archive, len(archive)/2), "not an archive": []byte("nothing of the kind"),
		} {
			err := c.Sys().RaftSnapshotRestore(bytes.NewReader(bad), false)
			if err == nil {
				t.Errorf("%s: restored", name)
				continue
			}
			status(t, err, 400)
		}
		_, err := kv.Get(s.ctx(), "lost")
		noErr(t, err)
	})
	t.Run("restore", func(t *testing.T) {
		noErr(t, c.Sys().RaftSnapshotRestore(bytes.NewReader(archive), false))
		s.WaitServing()
		now := s.Leader().Client(s.RootToken)
		harness.Await(t, "the restored state", patience, func() error {
			_, err := now.KVv2("snap").Get(s.ctx(), "kept")
			return err
		})
		_, err := now.KVv2("snap").Get(s.ctx(), "lost")
		if !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("reading what was written after the snapshot: %v", err)
		}
		_, err = now.KVv2("later").Put(s.ctx(), "x", map[string]any{"a": 1})
		status(t, err, 404)
	})
	t.Run("the others follow", func(t *testing.T) {
		standby := s.Standbys()[0]
		harness.Await(t, "the restored state on "+standby.ID, patience, func() error {
			if _, err := standby.Client(s.RootToken).KVv2("snap").Get(s.ctx(), "lost"); !errors.Is(err, api.ErrSecretNotFound) {
				return fmt.Errorf("it still reads what was written later: %w", err)
			}
			_, err := standby.Client(s.RootToken).KVv2("snap").Get(s.ctx(), "kept")
			return err
		})
	})
	t.Run("writes go on", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(s.ctx(), patience)
		defer cancel()
		_, err := s.Leader().Client(s.RootToken).KVv2("snap").Put(ctx, "after", map[string]any{"a": 1})
		noErr(t, err)
	})
}

func flip(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[at] ^= 0x40
	return out
}
