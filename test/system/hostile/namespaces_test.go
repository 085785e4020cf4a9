package hostile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// anywhere are the operations that answer whatever namespace is named: they work without keys, so before any
// namespace is known, and without a token.
var anywhere = []string{
	"GET /sys/health", "GET /sys/init", "GET /sys/leader", "GET /sys/seal-status", "POST /sys/init",
	"POST /sys/storage/raft/join", "POST /sys/unseal",
}

// whatever are those of inNamespaces that work without keys, so that what the header names is not looked at. What they
// tell is the same everywhere.
var whatever = []string{"GET /sys/replication/dr/status", "GET /sys/replication/performance/status", "GET /sys/replication/status"}

// inNamespaces are the operations that namespaces have. A path that is not here exists in the root namespace only.
var inNamespaces = []string{
	"DELETE /sys/auth/{path}", "DELETE /sys/mounts/{path}", "DELETE /sys/namespaces/{path}", "DELETE /sys/policies/acl/{name}",
	"DELETE /sys/policies/password/{name}", "DELETE /sys/policy/{name}", "GET /sys/activation-flags", "GET /sys/auth",
	"GET /sys/auth/{path}", "GET /sys/auth/{path}/tune", "GET /sys/internal/specs/openapi",
	"GET /sys/internal/ui/authenticated-messages", "GET /sys/internal/ui/default-auth-methods",
	"GET /sys/internal/ui/feature-flags", "GET /sys/internal/ui/mounts", "GET /sys/internal/ui/mounts/{path}",
	"GET /sys/internal/ui/namespaces", "GET /sys/internal/ui/resultant-acl", "GET /sys/internal/ui/unauthenticated-messages",
	"GET /sys/internal/ui/version", "GET /sys/leases", "GET /sys/leases/count", "GET /sys/license/features",
	"GET /sys/license/status", "GET /sys/locked-users", "POST /sys/locked-users/{mount_accessor}/unlock/{alias_identifier}", "GET /sys/mounts", "GET /sys/mounts/{path}", "GET /sys/mounts/{path}/tune",
	"GET /sys/namespaces/{path}", "GET /sys/policies/acl", "GET /sys/policies/acl/{name}", "GET /sys/policies/password/{name}",
	"GET /sys/policies/password/{name}/generate", "GET /sys/policy", "GET /sys/policy/{name}", "GET /sys/remount/status/{id}",
	"GET /sys/replication/dr/status", "GET /sys/replication/performance/status", "GET /sys/replication/status",
	"GET /sys/wrapping/lookup", "LIST /sys/internal/ui/authenticated-messages/",
	"LIST /sys/internal/ui/unauthenticated-messages/", "LIST /sys/leases/lookup/{prefix}/", "LIST /sys/namespaces/{path}/",
	"LIST /sys/policies/acl/", "LIST /sys/policies/password/", "LIST /sys/policy/", "PATCH /sys/namespaces/{path}",
	"POST /sys/auth/{path}", "POST /sys/auth/{path}/tune", "POST /sys/capabilities", "POST /sys/capabilities-accessor",
	"POST /sys/capabilities-self", "POST /sys/leases/lookup", "POST /sys/leases/renew",
	"POST /sys/leases/renew/{url_lease_id}", "POST /sys/leases/revoke", "POST /sys/leases/revoke-force/{prefix}",
	"POST /sys/leases/revoke-prefix/{prefix}", "POST /sys/leases/revoke/{url_lease_id}",
	"POST /sys/mfa/validate", "POST /sys/mounts/{path}", "POST /sys/mounts/{path}/tune", "POST /sys/namespaces/api-lock/lock",
	"POST /sys/namespaces/api-lock/lock/{path}", "POST /sys/namespaces/api-lock/unlock",
	"POST /sys/namespaces/api-lock/unlock/{path}", "POST /sys/namespaces/{path}", "POST /sys/policies/acl/{name}",
	"POST /sys/policies/password/{name}", "POST /sys/policy/{name}", "POST /sys/remount", "POST /sys/renew",
	"POST /sys/renew/{url_lease_id}", "POST /sys/revoke", "POST /sys/revoke-force/{prefix}",
	"POST /sys/revoke-prefix/{prefix}", "POST /sys/revoke/{url_lease_id}", "POST /sys/wrapping/lookup",
	"POST /sys/tools/hash", "POST /sys/tools/hash/{name}", "POST /sys/tools/random", "POST /sys/tools/random/{of}", "POST /sys/tools/random/{of}/{count}",
	"POST /sys/wrapping/rewrap", "POST /sys/wrapping/unwrap", "POST /sys/wrapping/wrap",
	"DELETE /sys/sync/destinations/{type}/{name}", "GET /sys/sync/associations/destinations",
	"GET /sys/sync/associations/{mount}/{secret_name}", "GET /sys/sync/destinations/{type}/{destination}/associations",
	"GET /sys/sync/destinations/{type}/{name}", "LIST /sys/sync/associations/", "LIST /sys/sync/destinations/",
	"LIST /sys/sync/destinations/{type}/", "PATCH /sys/sync/destinations/cloud1-sm/{name}",
	"PATCH /sys/sync/destinations/cloud2-kv/{name}", "PATCH /sys/sync/destinations/cloud3-sm/{name}",
	"PATCH /sys/sync/destinations/repohost/{name}", "PATCH /sys/sync/destinations/webhost-project/{name}",
	"POST /sys/sync/destinations/cloud1-sm/{name}", "POST /sys/sync/destinations/cloud2-kv/{name}",
	"POST /sys/sync/destinations/cloud3-sm/{name}", "POST /sys/sync/destinations/repohost/{name}",
	"POST /sys/sync/destinations/webhost-project/{name}",
	"POST /sys/sync/destinations/{type}/{destination}/import",
	"PATCH /sys/sync/destinations/aws-sm/{name}", "POST /sys/sync/destinations/aws-sm/{name}",
	"PATCH /sys/sync/destinations/azure-kv/{name}", "POST /sys/sync/destinations/azure-kv/{name}",
	"PATCH /sys/sync/destinations/gcp-sm/{name}", "POST /sys/sync/destinations/gcp-sm/{name}",
	"PATCH /sys/sync/destinations/gh/{name}", "POST /sys/sync/destinations/gh/{name}",
	"PATCH /sys/sync/destinations/vercel-project/{name}", "POST /sys/sync/destinations/vercel-project/{name}",
	"LIST /sys/sync/github-apps/", "GET /sys/sync/github-apps/{name}", "POST /sys/sync/github-apps/{name}", "DELETE /sys/sync/github-apps/{name}",
	"PATCH /sys/sync/destinations/cloud1-ssm/{name}", "POST /sys/sync/destinations/cloud1-ssm/{name}",
	"PATCH /sys/sync/destinations/aws-ssm/{name}", "POST /sys/sync/destinations/aws-ssm/{name}",
	"PATCH /sys/sync/destinations/gitlab/{name}", "POST /sys/sync/destinations/gitlab/{name}",
	"PATCH /sys/sync/destinations/webhook/{name}", "POST /sys/sync/destinations/webhook/{name}",
	"PATCH /sys/sync/destinations/kubernetes/{name}", "POST /sys/sync/destinations/kubernetes/{name}",
	"POST /sys/sync/destinations/{type}/{destination}/associations/adopt",
	"POST /sys/sync/destinations/{type}/{destination}/associations/history",
	"POST /sys/sync/destinations/{type}/{destination}/associations/pause",
	"POST /sys/sync/destinations/{type}/{destination}/associations/remove",
	"POST /sys/sync/destinations/{type}/{destination}/associations/resume",
	"POST /sys/sync/destinations/{type}/{destination}/associations/retry",
	"POST /sys/sync/destinations/{type}/{destination}/associations/set",
	"POST /sys/sync/destinations/{type}/{destination}/drift", "POST /sys/sync/destinations/{type}/{destination}/plan",
	"POST /sys/sync/destinations/{type}/{name}", "POST /sys/sync/destinations/{type}/{name}/pause",
	"POST /sys/sync/destinations/{type}/{name}/resume", "POST /sys/sync/destinations/{type}/{name}/verify",
}

// TestNamespaces tries every documented sys operation in a namespace and compares what answers with the list.
// Whoever adds a path must decide: does it concern one namespace, or the whole server?
func TestNamespaces(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{})
	n := c.Nodes[0]
	p := &place{n: n, token: c.RootToken, ns: "outer"}
	n.MustDo("POST", "/v1/sys/namespaces/outer", nil)
	p.administer(t) // the cubbyhole is a token's of the namespace
	p.seed(t)
	ops := slices.DeleteFunc(documented(t, n), func(op *operation) bool { return !strings.HasPrefix(op.template, "/sys/") })
	slices.SortStableFunc(ops, func(a, b *operation) int { return strings.Compare(a.rank(), b.rank()) })
	var got, always []string
	for _, op := range ops {
		if !op.onlyInRoot(t, &place{n: n, token: p.token}, "outer"+op.target()) {
			got = append(got, op.String())
		} else if !op.onlyInRoot(t, p, strings.TrimPrefix(op.target(), "/")) {
			always = append(always, op.String())
		}
		if n.Health() != 200 {
			t.Fatalf("%v in a namespace stopped the server", op)
		}
	}
	same(t, "in a namespace one can", got, inNamespaces)
	same(t, "whatever the namespace one can", always, anywhere)
}

// onlyInRoot reports whether the operation says that it exists in the root namespace only.
func (op *operation) onlyInRoot(t *testing.T, p *place, path string) bool {
	t.Helper()
	a := p.do(t, op.method, path, op.body(nil))
	if a.Status == 403 {
		t.Errorf("%v with a root token: %.200s", op, a.Body)
	}
	return a.Status == 404 && strings.Contains(strings.Join(a.Errors(), ""), "root namespace only")
}

// inNested reports whether there is something to attack in a namespace.
func (op *operation) inNested() bool {
	if op.template == "/identity/oidc/config" { // one issuer for the whole server
		return false
	}
	return !strings.HasPrefix(op.template, "/sys/") || slices.Contains(inNamespaces, op.String())
}

// rank puts operations that change more behind those that change less.
func (op *operation) rank() string {
	switch {
	case op.method == "GET" || op.method == "LIST":
		return "1"
	case op.method == "DELETE":
		return "3"
	case strings.Contains(op.template, "seal") || strings.Contains(op.template, "step-down"):
		return "4"
	case strings.Contains(op.template, "api-lock"):
		return "5" + op.template
	}
	return "2"
}
