//go:build e2e

package plugin_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/apiserver"
)

const (
	core = "/api/v1/namespaces/"
	rbac = "/apis/rbac.authorization.k8s.io/v1/"
)

// grant binds a role of the whole cluster to a service account.
func grant(t *testing.T, api *apiserver.Server, role, namespace, account string) {
	t.Helper()
	api.Do(t, http.MethodPost, rbac+"clusterrolebindings", apiserver.Object{
		"metadata": apiserver.Object{"name": role + "-" + account},
		"roleRef":  apiserver.Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": []apiserver.Object{{"kind": "ServiceAccount", "name": account, "namespace": namespace}},
	}, nil)
}

// kubernetesLogin enables kubernetes, with which pods log in by what Kubernetes' API server says of their tokens.
func kubernetesLogin(t *testing.T, c *harness.Cluster, api *apiserver.Server) counterpart {
	n := c.Leader()
	api.NewNamespace(t, "shop", "web")
	api.NewNamespace(t, "coffer", "reviewer")
	grant(t, api, "system:auth-delegator", "coffer", "reviewer")
	documented(t, c, "pods.md", "## Log pods in with Kubernetes", map[string]string{"ca.crt": api.CA, "reviewer-token": api.NewToken(t, "coffer", "reviewer", 24*time.Hour)},
		"https://kubernetes.example.com:6443", api.URL.String(), "names=web ", "names=web,gone ")
	n.MustDo("POST", "/v1/auth/kubernetes/role/other", map[string]any{
		"bound_service_account_names": "mail", "bound_service_account_namespaces": "shop", "token_policies": "app",
	})
	login := func(n *harness.Node, role, token string) (harness.Answer, error) {
		return n.Do(t.Context(), "POST", "/v1/auth/kubernetes/login", "", map[string]any{"role": role, "jwt": token})
	}
	pod := api.NewToken(t, "shop", "web", time.Hour)
	harness.Await(t, "the reviewer's role to apply", patience, func() error {
		if a, err := login(n, "app", pod); err != nil || a.Status != 200 {
			return fmt.Errorf("status %d: %s, %v", a.Status, a.Body, err)
		}
		return nil
	})
	api.Do(t, http.MethodPost, core+"shop/serviceaccounts", apiserver.Object{"metadata": apiserver.Object{"name": "gone"}}, nil)
	gone := api.NewToken(t, "shop", "gone", time.Hour)
	api.Do(t, http.MethodDelete, core+"shop/serviceaccounts/gone", nil, nil)
	head, signature, _ := strings.Cut(pod[strings.Index(pod, ".")+1:], ".")
	for what, a := range map[string][2]string{
		"a role of another service account":    {"other", pod},
		"a service account that is gone":       {"app", gone},
		"a forged token":                       {"app", pod[:strings.Index(pod, ".")+1] + head + "." + strings.Repeat("A", len(signature))},
		"a service account of another project": {"app", api.NewToken(t, "coffer", "reviewer", time.Hour)},
	} {
		if a, err := login(n, a[0], a[1]); err != nil || a.Status == 200 {
			t.Errorf("%s: status %d, %v", what, a.Status, err)
		}
	}
	loginByCommand(t, c, pod, "-method=kubernetes")
	return byLogin(t, "kubernetes login", func(n *harness.Node) (harness.Answer, error) { return login(n, "app", pod) })
}

// kubernetesEngine enables the kubernetes secrets engine, with a service account that may do what its authors' documentation says.
func kubernetesEngine(t *testing.T, n *harness.Node, api *apiserver.Server) counterpart {
	api.NewNamespace(t, "jobs", "coffer")
	api.Do(t, http.MethodPost, rbac+"clusterroles", `
metadata: {name: coffer-secrets}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get]}
- {apiGroups: [""], resources: [serviceaccounts, serviceaccounts/token], verbs: [create, update, delete]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings, clusterrolebindings], verbs: [create, update, delete]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, clusterroles], verbs: [bind, escalate, create, update, delete]}
`, nil)
	grant(t, api, "coffer-secrets", "jobs", "coffer")
	n.MustDo("POST", "/v1/sys/mounts/kubernetes", map[string]any{"type": "kubernetes"})
	n.MustDo("POST", "/v1/kubernetes/config", map[string]any{
		"kubernetes_host": api.URL.String(), "kubernetes_ca_cert": api.CA, "disable_local_ca_jwt": true,
		"service_account_jwt": api.NewToken(t, "jobs", "coffer", 24*time.Hour),
	})
	n.MustDo("POST", "/v1/kubernetes/roles/job", map[string]any{
		"allowed_kubernetes_namespaces": "jobs", "token_default_ttl": "10m", "token_max_ttl": "1h",
		"generated_role_rules": `{"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`,
	})
	objects := func(account string) []string {
		return []string{core + "jobs/serviceaccounts/" + account, rbac + "namespaces/jobs/rolebindings/" + account, rbac + "namespaces/jobs/roles/" + account}
	}
	create := func(n *harness.Node) (lease, error) {
		l, err := issue(n, "POST", "kubernetes/creds/job", map[string]any{"kubernetes_namespace": "jobs"})
		if err != nil {
			return l, err
		}
		if l.ID == "" || l.Seconds < 590 || l.Seconds > 600 || l.Renewable {
			return l, fmt.Errorf("lease %q of %d seconds, renewable: %v", l.ID, l.Seconds, l.Renewable)
		}
		for _, path := range objects(l.Data["service_account_name"]) {
			if status, said := api.Try(t, http.MethodGet, path, nil, nil); status != http.StatusOK {
				return l, fmt.Errorf("GET %s: %d %s", path, status, said)
			}
		}
		// The API server learns of the role a moment later.
		harness.Await(t, "the token to be good", patience, func() error {
			if status, said := api.TryAs(t, l.Data["service_account_token"], http.MethodGet, core+"jobs/configmaps", nil, nil); status != http.StatusOK {
				return fmt.Errorf("%d %s", status, said)
			}
			return nil
		})
		if status, _ := api.TryAs(t, l.Data["service_account_token"], http.MethodGet, core+"jobs/secrets", nil, nil); status != http.StatusForbidden {
			return l, fmt.Errorf("what the role does not allow: status %d", status)
		}
		return l, nil
	}
	remove := func(n *harness.Node, l lease) error {
		if err := revoke(n, l); err != nil {
			return err
		}
		for _, path := range objects(l.Data["service_account_name"]) {
			if status, _ := api.Try(t, http.MethodGet, path, nil, nil); status != http.StatusNotFound {
				return fmt.Errorf("GET %s: %d after the lease was revoked", path, status)
			}
		}
		return nil
	}
	var held lease
	return counterpart{
		name: "kubernetes secrets",
		use: func(n *harness.Node) error {
			l, err := create(n)
			if err != nil {
				return err
			}
			if err := request(n, "POST", "sys/leases/renew", map[string]any{"lease_id": l.ID}); err == nil {
				return fmt.Errorf("lease %s is not renewable, and was renewed", l.ID)
			}
			return remove(n, l)
		},
		before: func(n *harness.Node) (err error) { held, err = create(n); return err },
		after:  func(n *harness.Node) error { return remove(n, held) },
	}
}
