package harness

import (
	"fmt"
	"strings"
	"time"
)

// Replication is what sys/replication/performance/status says.
type Replication struct {
	Mode             string
	State            string
	Phase            string
	Exact            bool
	Reason           string
	Position         string // "epoch:index"
	Epoch            uint64
	ClusterID        string   `json:"cluster_id"`
	SetID            string   `json:"set_id"`
	Connection       string   `json:"connection_state"`
	LastWAL          uint64   `json:"last_performance_wal"`
	LastRemoteWAL    uint64   `json:"last_remote_wal"`
	Root             string   `json:"merkle_root"`
	KnownSecondaries []string `json:"known_secondaries"`
	Final            bool     `json:"primary_final"` // the primary was demoted, and everything has arrived
	Quarantined      int      `json:"units_quarantined"`
	LagEntries       uint64   `json:"lag_entries"`
	LagSeconds       float64  `json:"lag_seconds"`
	Secondaries      []struct {
		ID         string `json:"node_id"`
		ClusterID  string `json:"cluster_id"`
		Connection string `json:"connection_status"`
	}
	Repair *struct {
		Cause   string
		Running bool
		Keys    int
		Bytes   int64
	} `json:"last_repair"`
}

const replicationPath = "/v1/sys/replication/performance/"

// Replication returns the status as the node knows it.
func (n *Node) Replication() (Replication, error) {
	ctx, cancel := contextFor(10 * time.Second)
	defer cancel()
	a, err := n.Do(ctx, "GET", replicationPath+"status", "", nil)
	if err != nil {
		return Replication{}, err
	}
	if a.Status != 200 {
		return Replication{}, fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	var out struct{ Data Replication }
	a.Decode(n.c.t, &out)
	return out.Data, nil
}

// Replication returns the status as the active node knows it.
func (c *Cluster) Replication() Replication {
	c.t.Helper()
	var r Replication
	Await(c.t, "the status of replication", c.opts.ReadyIn, func() (err error) {
		r, err = c.Leader().Replication()
		return err
	})
	return r
}

// Replicate makes the first cluster a primary, unless it is one, and the second a secondary of it, and returns when that
// has everything and follows. What the secondary had is gone: its RootToken is then one of AddOperator.
func Replicate(primary, secondary *Cluster, id string) {
	primary.t.Helper()
	if primary.Replication().Mode != "primary" {
		primary.EnablePrimary()
	}
	primary.AddOperator()
	secondary.EnableSecondary(primary, primary.SecondaryToken(id))
	secondary.Adopt(primary)
	secondary.AwaitStreaming()
	secondary.LogIn()
}

// EnablePrimary makes the cluster a primary.
func (c *Cluster) EnablePrimary() {
	c.t.Helper()
	c.Leader().MustDo("POST", replicationPath+"primary/enable", map[string]any{})
	c.AwaitReplication("to be a primary", func(r Replication) bool { return r.Mode == "primary" && r.State == "running" })
}

// SecondaryToken returns a new activation token.
func (c *Cluster) SecondaryToken(id string) string {
	c.t.Helper()
	var out struct {
		Wrap struct{ Token string } `json:"wrap_info"`
	}
	c.Leader().MustDo("POST", replicationPath+"primary/secondary-token", map[string]any{"id": id}).Decode(c.t, &out)
	if strings.Count(out.Wrap.Token, ".") != 2 {
		c.t.Fatalf("the activation token is no JWT")
	}
	return out.Wrap.Token
}

// EnableSecondary makes the cluster a secondary of another and returns when that is under way.
func (c *Cluster) EnableSecondary(primary *Cluster, token string) {
	c.t.Helper()
	c.Leader().MustDo("POST", replicationPath+"secondary/enable", c.activation(primary, token))
	c.AwaitReplication("to be a secondary", func(r Replication) bool { return r.Mode == "secondary" })
}

// UpdatePrimary makes a secondary follow another cluster of its set.
func (c *Cluster) UpdatePrimary(primary *Cluster, token string) {
	c.t.Helper()
	c.Leader().MustDo("POST", replicationPath+"secondary/update-primary", c.activation(primary, token))
}

func (c *Cluster) activation(primary *Cluster, token string) map[string]any {
	return map[string]any{"token": token, "ca_file": primary.CAFile}
}

// AwaitReplication waits until the status of the active node is as wanted.
func (c *Cluster) AwaitReplication(what string, is func(Replication) bool) {
	c.t.Helper()
	Await(c.t, what, 2*c.opts.ReadyIn, func() error {
		r, err := c.Leader().Replication()
		if err != nil || !is(r) {
			return fmt.Errorf("%+v, %v", r, err)
		}
		return nil
	})
}

// AwaitStreaming waits until a secondary has everything and follows.
func (c *Cluster) AwaitStreaming() {
	c.t.Helper()
	c.AwaitReplication("streaming", func(r Replication) bool {
		return r.Mode == "secondary" && r.Phase == "streaming" && r.Connection == "ready" && r.Exact
	})
}

// AwaitHead waits until a secondary has all that its primary has written so far, and is exact.
func (c *Cluster) AwaitHead(primary *Cluster) {
	c.t.Helper()
	text := primary.Replication().Position
	head := parsePosition(text)
	if head.epoch == 0 {
		c.t.Fatalf("the primary's position is %q", text)
	}
	c.AwaitReplication("position "+text, func(r Replication) bool {
		at := parsePosition(r.Position)
		return r.Phase == "streaming" && r.Exact && at.epoch == head.epoch && at.index >= head.index
	})
}

// position is one in the history of a set: indexes of different epochs are not to be compared.
type position struct{ epoch, index uint64 }

func parsePosition(text string) (p position) {
	if _, err := fmt.Sscanf(text, "%d:%d", &p.epoch, &p.index); err != nil {
		return position{}
	}
	return p
}

// The operator of AddOperator may do everything, on every cluster that the primary's policies reach.
const (
	operatorMount  = "operators"
	operatorName   = "operator"
	operatorPolicy = `path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }
path "+/*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }`
)

// AddOperator adds a user who can log in on the primary and on its secondaries, unless there is one.
func (c *Cluster) AddOperator() {
	c.t.Helper()
	if c.operator != "" {
		return
	}
	c.operator = sealKey()
	c.Create("/v1/sys/policies/acl/"+operatorMount, map[string]any{"policy": operatorPolicy})
	c.Create("/v1/sys/auth/"+operatorMount, map[string]any{"type": "userpass"})
	c.Create("/v1/auth/"+operatorMount+"/users/"+operatorName, map[string]any{"password": c.operator, "token_policies": operatorMount})
}

// Adopt makes the operator of the primary known here, for LogIn.
func (c *Cluster) Adopt(primary *Cluster) { c.operator = primary.operator }

// LogIn makes a token of the operator the RootToken.
func (c *Cluster) LogIn() {
	c.t.Helper()
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	Await(c.t, "a login of the operator", c.opts.ReadyIn, func() error {
		ctx, cancel := contextFor(20 * time.Second)
		defer cancel()
		a, err := c.Leader().Do(ctx, "POST", "/v1/auth/"+operatorMount+"/login/"+operatorName, "", map[string]any{"password": c.operator})
		if err != nil || a.Status != 200 {
			return fmt.Errorf("status %d, %v: %.200s", a.Status, err, a.Body)
		}
		a.Decode(c.t, &out)
		return nil
	})
	c.RootToken = out.Auth.Token
}

// SealKey returns the key of the static seal, as its configuration has it.
func (c *Cluster) SealKey() string { return c.seal }
