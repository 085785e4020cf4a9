//go:build e2e

package kubernetes_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/apiserver"
)

// manifest is an object that the chart renders.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name, Namespace string }
	Data       map[string]string
}

// helm runs what test/e2e/run has built.
func helm(t *testing.T, args ...string) ([]byte, string, error) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(filepath.Join(root, "test", "e2e", "helm", "bin", "helm"), args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), out.String() + errs.String(), err
}

const chartDir = "docs/deploy/helm"

// template renders the chart for the oldest Kubernetes that it is for: Helm does not know one when it is built from its module.
func template(t *testing.T, args ...string) ([]byte, string, error) {
	t.Helper()
	return helm(t, append([]string{"template", "c", chartDir, "-n", "default", "--kube-version", "1.29.0"}, args...)...)
}

// The chart renders, a server accepts the configuration in it, and Kubernetes' API server every object, with no field that it
// does not know.
func TestChart(t *testing.T) {
	k := apiserver.Start(t)
	for _, values := range []string{"plain", "everything"} {
		t.Run(values, func(t *testing.T) {
			file := "test/e2e/helm/" + values + ".yaml"
			if _, text, err := helm(t, "lint", "--strict", chartDir, "-f", file); err != nil {
				t.Errorf("helm lint: %v\n%s", err, text)
			}
			rendered, text, err := template(t, "-f", file)
			if err != nil {
				t.Fatalf("helm template: %v\n%s", err, text)
			}
			kinds := map[string]int{}
			for m, object := range manifests(t, rendered) {
				kinds[m.Kind]++
				if m.Kind == "ConfigMap" {
					checkConfiguration(t, m.Data["coffer.hcl"])
				}
				accepts(t, k, *m, object)
			}
			want := []string{"ConfigMap", "StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
			if values == "everything" {
				want = append(want, "Ingress", "ServiceMonitor", "ClusterRoleBinding")
			}
			for _, kind := range want {
				if kinds[kind] == 0 {
					t.Errorf("no %s in the chart", kind)
				}
			}
			if len(kinds) != len(want) {
				t.Errorf("rendered %v, want %v", kinds, want)
			}
		})
	}
	for _, wrong := range []string{"image.tga=1", "replicas=4", "ingress.enabled=true", "tls.secretName=", "image.tag="} {
		_, text, err := template(t, "-f", "test/e2e/helm/plain.yaml", "--set", wrong)
		if err == nil || !strings.Contains(text, "don't meet the specifications of the schema") {
			t.Errorf("%s: %v, %s", wrong, err, text)
		}
	}
}

// The pods of docs/kubernetes.md are accepted, too, and its other objects are YAML.
func TestDocumentedPods(t *testing.T) {
	k := apiserver.Start(t)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	k.Do(t, http.MethodPost, "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: app}}", nil)
	k.Do(t, http.MethodPost, "/api/v1/namespaces/app/serviceaccounts", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: app}}", nil)
	pods := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```|kubectl apply -f - <<'EOF'\n(.*?)EOF").FindAllSubmatch(page, -1) {
		for m, object := range manifests(t, append(block[1], block[2]...)) {
			if m.Kind == "Pod" {
				pods++
				accepts(t, k, *m, object)
			}
		}
	}
	if pods != 2 {
		t.Errorf("%d pods in the page, want 2", pods)
	}
}

// manifests returns the objects in a stream of YAML, each with its text.
func manifests(t *testing.T, text []byte) map[*manifest]string {
	t.Helper()
	found := map[*manifest]string{}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var node yaml.Node
		if err := dec.Decode(&node); err == io.EOF {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		m := new(manifest)
		if err := node.Decode(m); err != nil {
			t.Fatal(err)
		}
		object, err := yaml.Marshal(&node)
		if err != nil {
			t.Fatal(err)
		}
		found[m] = string(object)
	}
}

// accepts asks the API server whether it would store the object.
func accepts(t *testing.T, k *apiserver.Server, m manifest, object string) {
	t.Helper()
	if m.Kind == "ServiceMonitor" {
		return // of a custom definition, which this API server has not got
	}
	base := "/apis/" + m.APIVersion
	if m.APIVersion == "v1" {
		base = "/api/v1"
	}
	if m.Metadata.Namespace != "" {
		base += "/namespaces/" + m.Metadata.Namespace
	}
	plural := strings.ToLower(m.Kind) + "s"
	if strings.HasSuffix(plural, "ys") {
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	} else if m.Kind == "Ingress" {
		plural = "ingresses"
	}
	status, body := k.Try(t, http.MethodPost, base+"/"+plural+"?dryRun=All&fieldValidation=Strict", object, nil)
	if status != http.StatusCreated {
		t.Errorf("the API server rejects %s %s: %d %s\n%s", m.Kind, m.Metadata.Name, status, body, object)
	}
}

// checkConfiguration has a server check the configuration of a pod.
func checkConfiguration(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text = strings.NewReplacer("/etc/coffer/tls/", dir+"/", "/var/lib/coffer", dir, "/var/backups/coffer", dir).Replace(text)
	file := filepath.Join(dir, "coffer.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(harness.Binary(t), "server", "-check", "-config="+file)
	cmd.Env = append(os.Environ(), "COFFER_RAFT_NODE_ID=c-0", "COFFER_API_ADDR=https://c-0.c-internal.default.svc:8200",
		"COFFER_CLUSTER_ADDR=c-0.c-internal.default.svc:8201", "COFFER_SEAL="+fmt.Sprintf("%064d", 7))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("server -check: %v\n%s\n%s", err, out, text)
	}
}
