//go:build e2e

package plugin_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// usual is the audience of tokens for Kubernetes itself.
const usual = "https://kubernetes.default.svc.cluster.local"

// reviewer answers TokenReviews as Kubernetes does, for the tokens of an issuer.
func reviewer(t *testing.T) *httptest.Server {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Spec struct {
				Token     string
				Audiences []string
			}
		}
		if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || json.NewDecoder(r.Body).Decode(&review) != nil {
			http.NotFound(w, r)
			return
		}
		claims := claimsOf(review.Spec.Token)
		wanted := review.Spec.Audiences
		if len(wanted) == 0 {
			wanted = []string{usual}
		}
		status := map[string]any{"authenticated": false}
		if slices.Contains(wanted, claims.Audience[0]) {
			status = map[string]any{"authenticated": true, "audiences": claims.Audience, "user": map[string]any{"username": claims.Subject, "uid": "u1"}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})
	}))
	t.Cleanup(s.Close)
	return s
}

type podClaims struct {
	Subject  string   `json:"sub"`
	Audience []string `json:"aud"`
}

func claimsOf(token string) podClaims {
	claims := podClaims{Audience: []string{""}}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		if body, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(body, &claims)
		}
	}
	return claims
}

// podToken is the token of a service account of the namespace app.
func podToken(t *testing.T, keys *issuer, account, audience string) string {
	return keys.token(t, map[string]any{
		"iss": usual, "sub": "system:serviceaccount:app:" + account, "aud": []string{audience},
		"kubernetes.io": map[string]any{"namespace": "app", "serviceaccount": map[string]any{"name": account, "uid": "u1"}},
	})
}

// TestPods follows docs/kubernetes.md as far as it is about Coffer: what it writes, what the pod runs, and how External Secrets, the CSI
// provider and the injector log in and read. TestShippedPlugins has Kubernetes' own API server.
func TestPods(t *testing.T) {
	t.Parallel()
	const page = "kubernetes.md"
	c := newShipped(t, 1)
	n, keys, api := c.Leader(), newIssuer(t), reviewer(t)
	documented(t, c, page, "## Let pods log in", map[string]string{"ca.pem": authority(api)},
		"=https://kubernetes.default.svc", "="+api.URL+" kubernetes_ca_cert=@ca.pem disable_local_ca_jwt=true token_reviewer_jwt="+podToken(t, keys, "reviewer", "x"))
	dir := t.TempDir()
	documented(t, c, page, "## The agent injector", nil, "kubectl", "true kubectl")

	login := func(role, token string) (int, string) {
		a, err := n.Do(t.Context(), "POST", "/v1/auth/kubernetes/login", "", map[string]any{"role": role, "jwt": token})
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		a.Decode(t, &out)
		return a.Status, out.Auth.Token
	}
	for what, try := range map[string][2]string{
		"the usual audience":      {"app", podToken(t, keys, "app", usual)},
		"another service account": {"app", podToken(t, keys, "mail", "coffer")},
		"injected, another one":   {"app-injected", podToken(t, keys, "mail", usual)},
	} {
		if status, _ := login(try[0], try[1]); status < 400 || status >= 500 {
			t.Errorf("%s: status %d", what, status)
		}
	}

	// The container of the pod.
	var pod struct {
		Spec struct{ Containers []struct{ Args []string } }
	}
	_, object, _ := strings.Cut(blocks(t, page, "## A pod", "sh"), "kubectl apply -f - <<'EOF'\n")
	object, _, _ = strings.Cut(object, "EOF\n")
	decodeYAML(t, object, &pod)
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(podToken(t, keys, "app", "coffer")), 0o600); err != nil {
		t.Fatal(err)
	}
	const address = "https://coffer.coffer.svc:8200"
	script := strings.NewReplacer(address, n.URL, "/token/token", filepath.Join(dir, "token"), "/ca/ca.crt", c.CAFile).Replace(pod.Spec.Containers[0].Args[0])
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	if out, err := shell.CombinedOutput(); err != nil || !strings.Contains(string(out), `"password":"s3cret"`) {
		t.Errorf("the pod: %v: %s", err, out)
	}

	// What the others learn: where the server is, where and as what to log in, what to read.
	var store struct {
		Spec struct {
			Provider struct {
				Vault struct {
					Server, Path string
					Auth         struct {
						Kubernetes struct {
							MountPath, Role   string
							ServiceAccountRef struct {
								Name      string
								Audiences []string
							}
						}
					}
				}
			}
		}
	}
	objects := strings.Split(blocks(t, page, "## External Secrets", "yaml"), "\n---\n")
	decodeCase(t, objects[0], &store)
	var secret struct {
		Spec struct {
			DataFrom []struct{ Extract struct{ Key string } }
		}
	}
	decodeCase(t, objects[1], &secret)
	v := store.Spec.Provider.Vault
	external := v.Auth.Kubernetes
	var class struct {
		Spec struct{ Parameters map[string]string }
	}
	decodeYAML(t, strings.Split(blocks(t, page, "## A CSI volume", "yaml"), "\n---\n")[0], &class)
	csi := class.Spec.Parameters
	var files []struct {
		SecretPath string `yaml:"secretPath"`
		SecretKey  string `yaml:"secretKey"`
	}
	decodeYAML(t, csi["objects"], &files)
	var injected struct {
		Metadata struct{ Annotations map[string]string }
	}
	decodeYAML(t, blocks(t, page, "## The agent injector", "yaml"), &injected)
	notes := injected.Metadata.Annotations
	for who, way := range map[string]struct{ server, mount, role, token, path string }{
		"External Secrets": {v.Server, external.MountPath, external.Role,
			podToken(t, keys, external.ServiceAccountRef.Name, external.ServiceAccountRef.Audiences[0]), v.Path + "/data/" + secret.Spec.DataFrom[0].Extract.Key},
		"CSI":      {csi["vaultAddress"], csi["vaultKubernetesMountPath"], csi["roleName"], podToken(t, keys, "app", csi["audience"]), files[0].SecretPath},
		"injector": {address, "kubernetes", notes["vault.hashicorp.com/role"], podToken(t, keys, "app", usual), notes["vault.hashicorp.com/agent-inject-secret-db"]},
	} {
		status, token := login(way.role, way.token)
		a, err := n.Do(t.Context(), "GET", "/v1/"+way.path, token, nil)
		if err != nil || way.server != address || way.mount != "kubernetes" || !strings.Contains(string(a.Body), `"password":"s3cret"`) {
			t.Errorf("%s, at %s, %s: a login with status %d, then %d %s, %v", who, way.server, way.mount, status, a.Status, a.Body, err)
		}
	}
	if files[0].SecretKey != "password" {
		t.Errorf("the CSI volume has the key %s", files[0].SecretKey)
	}
}

// decodeCase decodes YAML into fields whose names differ in case.
func decodeCase(t *testing.T, text string, into any) {
	t.Helper()
	var all any
	decodeYAML(t, text, &all)
	raw, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
