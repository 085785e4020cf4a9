//go:build e2e

package plugin_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/apiserver"
)

// TestExternalSecrets runs the External Secrets Operator itself, as make external-secrets builds it, with the objects of
// docs/kubernetes.md: the service account logs in by Kubernetes' own API server, and what a secret holds arrives, also after a change.
func TestExternalSecrets(t *testing.T) {
	const page, space = "kubernetes.md", "app"
	operator, definitions := os.Getenv("COFFER_EXTERNAL_SECRETS"), os.Getenv("COFFER_EXTERNAL_SECRETS_DEFINITIONS")
	if operator == "" || definitions == "" {
		t.Skip("only by make external-secrets, which builds the operator")
	}
	c, api := newShipped(t, 1), apiserver.Start(t)
	api.NewNamespace(t, "coffer", "reviewer")
	grant(t, api, "system:auth-delegator", "coffer", "reviewer")
	reviewer := api.NewToken(t, "coffer", "reviewer", time.Hour)
	documented(t, c, page, "## Let pods log in", map[string]string{"kubernetes.crt": api.CA},
		"=https://kubernetes.default.svc", "="+api.URL.String()+" kubernetes_ca_cert=@kubernetes.crt disable_local_ca_jwt=true token_reviewer_jwt="+reviewer)
	api.NewNamespace(t, space, "app")
	ca, err := os.ReadFile(c.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	api.Do(t, http.MethodPost, core+space+"/configmaps", apiserver.Object{
		"metadata": apiserver.Object{"name": "coffer-ca"}, "data": apiserver.Object{"ca.crt": string(ca)},
	}, nil)

	files, err := filepath.Glob(filepath.Join(definitions, "*external-secrets.io_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions in %s: %v", definitions, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		api.Do(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text), nil)
	}
	startOperator(t, operator, api)
	const objects = "/apis/external-secrets.io/v1/namespaces/" + space + "/"
	dec := yaml.NewDecoder(strings.NewReader(strings.ReplaceAll(blocks(t, page, "## External Secrets", "yaml"), "https://coffer.coffer.svc:8200", c.Leader().URL)))
	for {
		var object map[string]any
		if err := dec.Decode(&object); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		path := objects + strings.ToLower(fmt.Sprint(object["kind"])) + "s"
		harness.Await(t, "the definition of "+path, patience, func() error {
			if status, said := api.Try(t, http.MethodPost, path+"?fieldValidation=Strict", object, nil); status != http.StatusCreated {
				return fmt.Errorf("status %d: %s", status, said)
			}
			return nil
		})
	}
	arrives := func(want string) {
		t.Helper()
		harness.Await(t, "the secret in Kubernetes", patience, func() error {
			var secret struct{ Data map[string][]byte }
			if status, said := api.Try(t, http.MethodGet, core+space+"/secrets/db", nil, &secret); status != http.StatusOK {
				_, why := api.Try(t, http.MethodGet, objects+"externalsecrets/db", nil, nil)
				return fmt.Errorf("status %d: %s: %s", status, said, why)
			}
			if got := string(secret.Data["password"]); got != want || string(secret.Data["user"]) != "app" {
				return fmt.Errorf("it has %d keys, and another password", len(secret.Data))
			}
			return nil
		})
	}
	arrives("s3cret")
	c.Leader().MustDo("POST", "/v1/secret/data/app/db", map[string]any{"data": map[string]any{"user": "app", "password": "another"}})
	harness.Await(t, "the refresh to be asked for", patience, func() error { // refreshInterval is minutes
		var object apiserver.Object
		api.Do(t, http.MethodGet, objects+"externalsecrets/db", nil, &object)
		object["metadata"].(map[string]any)["annotations"] = map[string]any{"force-sync": "1"}
		if status, said := api.Try(t, http.MethodPut, objects+"externalsecrets/db", object, nil); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, said)
		}
		return nil
	})
	arrives("another")
}

// startOperator runs the operator with all rights at the API server, until the test ends.
func startOperator(t *testing.T, program string, api *apiserver.Server) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []any{map[string]any{"name": "x", "cluster": map[string]any{"server": api.URL.String(), "certificate-authority-data": base64.StdEncoding.EncodeToString([]byte(api.CA))}}},
		"users":    []any{map[string]any{"name": "x", "user": map[string]any{"token": api.Admin}}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "x", "user": "x"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "operator.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--metrics-addr=0", "--enable-leader-election=false")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+file), dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the last that the operator logged:\n%s", text[max(0, len(text)-4000):])
		}
	})
}
