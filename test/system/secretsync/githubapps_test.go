package secretsync_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

// TestGitHubApps is about destinations that sign in as a GitHub App, and start a workflow after changes.
func TestGitHubApps(t *testing.T) {
	t.Parallel()
	s := newSite(t, "apps")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	s.repo.AddInstallation(12345, &key.PublicKey, 67890)
	s.repo.AddWorkflow("acme", "web", "deploy.yml")
	s.mount("kv")
	s.secret("kv", "a", "k", "v")
	const path = "sys/sync/github-apps/deployer"
	s.rejected(404, "LIST", "sys/sync/github-apps", nil)
	s.rejected(404, "GET", path, nil)
	made := s.must("POST", path, object{"app_id": 12345, "private_key": text})
	read := s.must("GET", path, nil)
	equal(t, "the answer", made, read)
	if print := fmt.Sprint(read["fingerprint"]); read["private_key"] != "*****" || !strings.HasPrefix(print, "SHA256:") {
		t.Errorf("%v", read)
	}
	equal(t, "the list", s.must("LIST", "sys/sync/github-apps", nil)["keys"], []any{"deployer"})
	d := destinations + "repohost/web"
	s.must("POST", d, object{
		"app_name": "deployer", "installation_id": 67890, "repository_owner": "acme", "repository_name": "web", "secret_name_template": "APP_{{ .SecretKey }}",
		"dispatch_workflow": "deploy.yml", "dispatch_ref": "main",
	})
	s.rejected(400, "DELETE", path, nil, "repohost/web")
	s.associate(d, "kv", "a")
	s.await(d, "SYNCED")
	if got, _ := s.repo.Get(repohosttest.Repository("acme", "web"), "APP_K"); got != "v" {
		t.Errorf("%q is there", got)
	}
	s.eventually(d, func(read object) error {
		if read["redeploy_pending"] != false || read["redeployed_at"] == nil {
			return fmt.Errorf("it is not redeployed: %v", read["redeploy_error"])
		}
		return nil
	})
	equal(t, "workflows", s.repo.Runs(), []string{"repos/acme/web/actions/workflows/deploy.yml@main"})
	s.must("DELETE", d+"?purge=true", nil)
	s.vanishes(d)
	s.must("DELETE", path, nil)
	s.rejected(404, "GET", path, nil)
}
