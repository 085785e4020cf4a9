// Package servers measures real servers over HTTP, each a process of its own: one node and three, logins, credentials,
// secret sync, what replication costs a primary, how long failover and restarts take. Each section is a function of a
// run.Bench and a run.Scope; FormMain and ProviderMain are yardsticks that run as processes, too.
package servers

import (
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

const readConns = 64

var writeConns = []int{1, 16, 64}

// secretBody is a typical small secret; writeBody carries 1 KiB.
const secretBody = `{"data":{"username":"app-user-17","password":"correct-horse-battery-staple-0123456789"}}`

var writeBody = `{"data":{"v":"` + strings.Repeat("x", 1024) + `"}}`

const policyText = `path "bench/*" { capabilities = ["create", "read", "update", "delete", "list"] }
path "auth/token/create" { capabilities = ["create", "update"] }`

// bareAnswer is as long as what Coffer answers to a read of secretBody.
var bareAnswer = answerOf(secretBody)

// answerOf is what Coffer answers to a read of a secret that was written with the body.
func answerOf(body string) string {
	return `{"request_id":"00000000-0000-0000-0000-000000000000","lease_id":"","renewable":false,"lease_duration":0,"data":{"data":` +
		strings.TrimSuffix(strings.TrimPrefix(body, `{"data":`), "}") +
		`,"metadata":{"created_time":"2026-01-01T00:00:00.123456789Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":1}},"wrap_info":null,"warnings":null,"auth":null,"mount_type":"kv"}` + "\n"
}

// dummyToken makes requests to the bare server as long as those to Coffer.
var dummyToken = strings.Repeat("t", 100)

// prepare mounts bench/ and returns a token with an ordinary policy beside the default one.
func prepare(s *run.Scope, n *harness.Node) string {
	n.MustDo("POST", "/v1/sys/mounts/bench", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.MustDo("POST", "/v1/sys/policies/acl/bench", map[string]any{"policy": policyText})
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"bench"}, "ttl": "24h"}).Decode(s, &out)
	return out.Auth.Token
}

func addr(n *harness.Node) string { return strings.TrimPrefix(n.URL, "http://") }

// reads are reads of secrets that exist, or the same bytes from the bare server.
func reads(addr, token string) run.Work {
	return run.Work{Addr: addr, Method: "GET", Path: "/v1/bench/data/k%d", Numbers: 1000, Conns: readConns, Token: token}
}

// writes are writes of new secrets, or of the same bytes to the bare server.
func writes(addr, token, prefix string, conns int) run.Work {
	return run.Work{Addr: addr, Method: "POST", Path: fmt.Sprintf("/v1/bench/data/%s%d-%%d", prefix, conns), Body: writeBody, Conns: conns, Token: token}
}

// readable writes the secrets that reads wants.
func readable(b *run.Bench, s *run.Scope, addr, token string) {
	b.Load(s, run.Work{Addr: addr, Method: "POST", Path: "/v1/bench/data/k%d", Body: secretBody, Conns: 32, Count: 1000, Token: token})
}
