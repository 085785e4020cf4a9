package secretsync_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// newGitHub returns a service that runs, github.com, which has the repository octo/app and the installation 1 of the app 7, and a GitHub
// Enterprise Server with the same repository.
func newGitHub(t *testing.T) (r *rig, com, corp *repohosttest.Server, corpURL string, key *rsa.PrivateKey) {
	t.Helper()
	key = newKey(t)
	com = repohosttest.New(t)
	corp, corpURL, ca := repohosttest.NewTLS(t)
	for _, s := range []*repohosttest.Server{com, corp} {
		s.AddRepository("octo", "app")
		s.AddInstallation(7, &key.PublicKey, 1)
	}
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	r = rigOf(t, nil, secretsync.Options{Types: []destination.Type{repohost.Type}, Operator: connection.Operator{
		AllowPrivate: true, Endpoints: map[string]connection.Endpoint{"repohost": {URL: com.URL, CAFile: caFile}},
	}})
	t.Cleanup(r.start())
	r.kv.Put("a", "k", "the-value")
	return r, com, corp, corpURL, key
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func pemOf(key *rsa.PrivateKey) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// awaits waits until the only association of a destination has a status, and returns the causes.
func (r *rig) awaits(path, want string) string {
	r.t.Helper()
	got, causes := "", ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		all, _ := r.Data(r.Must(engines.Read, path+"/associations", nil))["associated_secrets"].(map[string]any)
		for _, e := range all {
			got, _ = e.(map[string]any)["sync_status"].(string)
			causes, _ = e.(map[string]any)["cause"].(string)
		}
		if got == want {
			return causes
		}
	}
	r.t.Fatalf("%s is %s (%s), want %s", path, got, causes, want)
	return ""
}

const (
	appPath = "sync/github-apps/deployer"
	appDest = "sync/destinations/repohost/d"
)

var appRepo = repohosttest.Repository("octo", "app")

func appFields(more map[string]any) map[string]any {
	fields := map[string]any{"app_name": "deployer", "installation_id": 1, "repository_owner": "octo", "repository_name": "app", "secret_name_template": "{{ .SecretKey }}"}
	for name, value := range more {
		fields[name] = value
	}
	return fields
}

func TestGitHubApps(t *testing.T) {
	r, _, _, _, key := newGitHub(t)
	r.Fails(engines.KindNotFound, engines.List, "sync/github-apps", nil)
	r.Fails(engines.KindNotFound, engines.Read, appPath, nil)
	for field, body := range map[string]map[string]any{
		"app_id":         {"private_key": pemOf(key)},
		"private_key":    {"app_id": 7},
		"*****":          {"app_id": 7, "private_key": destination.Mask},
		"a file":         {"app_id": 7, "private_key": "@key.pem"},
		"enterprise_url": {"app_id": 7, "private_key": pemOf(key), "enterprise_url": "http://ghe.corp"},
	} {
		text := r.Fails(engines.KindInvalid, engines.Update, appPath, body)
		if !strings.Contains(text, `field "`) || strings.Contains(text, "BEGIN") {
			t.Errorf("%s: %s", field, text)
		}
	}
	made := r.Data(r.Must(engines.Update, appPath, map[string]any{"app_id": "7", "private_key": pemOf(key)}))
	read := r.Data(r.Must(engines.Read, appPath, nil))
	same(t, "what the write answers", made, read)
	print, _ := read["fingerprint"].(string)
	if read["name"] != "deployer" || fmt.Sprint(read["app_id"]) != "7" || read["private_key"] != destination.Mask || !strings.HasPrefix(print, "SHA256:") {
		t.Errorf("%v", read)
	}
	r.Must(engines.Update, appPath, map[string]any{"private_key": destination.Mask})
	same(t, "after the mask was written", r.Data(r.Must(engines.Read, appPath, nil))["fingerprint"], print)
	// Neither is the key used at another installation of GitHub by a caller who does not know it.
	for field, body := range map[string]map[string]any{"app_id": {"app_id": 8}, "enterprise_url": {"enterprise_url": "https://evil.example"}} {
		if text := r.Fails(engines.KindInvalid, engines.Update, appPath, body); !strings.Contains(text, `field "private_key": give it, too`) {
			t.Errorf("%s: %s", field, text)
		}
	}
	same(t, "the list", r.Data(r.Must(engines.List, "sync/github-apps", nil))["keys"], []string{"deployer"})
	// Namespaces have their own.
	r.Mount.Mount.NamespaceID = "n1"
	r.Fails(engines.KindNotFound, engines.Read, appPath, nil)
	if text := r.Fails(engines.KindInvalid, engines.Update, appDest, appFields(nil)); !strings.Contains(text, `there is no GitHub App "deployer" in this namespace`) {
		t.Errorf("%s", text)
	}
	r.Mount.Mount.NamespaceID = "root"
	r.Must(engines.Update, appDest, appFields(nil))
	read = r.Data(r.Must(engines.Read, appDest, nil))["connection_details"].(map[string]any)
	if read["app_name"] != "deployer" || fmt.Sprint(read["installation_id"]) != "1" || read["access_token"] != nil {
		t.Errorf("%v", read)
	}
	if text := r.Fails(engines.KindInvalid, engines.Delete, appPath, nil); !strings.Contains(text, "repohost/d") {
		t.Errorf("%s", text)
	}
	if text := r.Fails(engines.KindInvalid, engines.Update, appPath, map[string]any{"private_key": pemOf(key), "enterprise_url": "https://ghe.corp"}); !strings.Contains(text, "repohost/d") {
		t.Errorf("%s", text)
	}
	r.Fails(engines.KindInvalid, engines.Patch, appDest, map[string]any{"access_token": "abc"})
	r.Must(engines.Patch, appDest, map[string]any{"access_token": "abc", "app_name": nil, "installation_id": nil})
	r.Must(engines.Delete, appPath, nil)
	r.Fails(engines.KindNotFound, engines.Read, appPath, nil)
}

// A destination signs in as its app, and is opened again with the app's new key when that is written.
func TestDestinationsFollowTheirApp(t *testing.T) {
	r, com, _, _, key := newGitHub(t)
	r.Must(engines.Update, appPath, map[string]any{"app_id": 7, "private_key": pemOf(newKey(t))})
	r.Must(engines.Update, appDest, appFields(nil))
	r.Must(engines.Update, appDest+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
	if cause := r.awaits(appDest, state.ClientError); !strings.Contains(cause, "app_id and private_key do not belong together") {
		t.Errorf("the cause is %q", cause)
	}
	r.Must(engines.Update, appPath, map[string]any{"private_key": pemOf(key)})
	r.awaits(appDest, state.Synced)
	if got, _ := com.Get(appRepo, "K"); got != "the-value" {
		t.Errorf("%q is there", got)
	}
}

// github.com and a GitHub Enterprise Server are destinations of one server. Repositories of the same name are different places.
func TestGitHubSideBySide(t *testing.T) {
	r, com, corp, corpURL, key := newGitHub(t)
	r.Must(engines.Update, "sync/github-apps/corp", map[string]any{"app_id": 7, "private_key": pemOf(key), "enterprise_url": corpURL + "/"})
	token := map[string]any{"access_token": repohosttest.Token, "repository_owner": "octo", "repository_name": "app", "secret_name_template": "{{ .SecretKey }}"}
	const comDest = "sync/destinations/repohost/com"
	r.Must(engines.Update, comDest, token)
	if text := r.Fails(engines.KindInvalid, engines.Update, appDest, appFields(map[string]any{"app_name": "corp"})); !strings.Contains(text, "enterprise_url") {
		t.Errorf("the key of the app was to be used at github.com: %s", text)
	}
	read := r.Data(r.Must(engines.Update, appDest, appFields(map[string]any{"app_name": "corp", "enterprise_url": corpURL})))
	same(t, "enterprise_url", read["connection_details"].(map[string]any)["enterprise_url"], corpURL)
	for _, dest := range []string{comDest, appDest} {
		r.Must(engines.Update, dest+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.awaits(dest, state.Synced)
	}
	for name, s := range map[string]*repohosttest.Server{"github.com": com, "the GitHub Enterprise Server": corp} {
		if got, _ := s.Get(appRepo, "K"); got != "the-value" {
			t.Errorf("%s has %q", name, got)
		}
	}
	// Stored tokens go nowhere else, and destinations with associations do not move.
	text := r.Fails(engines.KindInvalid, engines.Patch, comDest, map[string]any{"enterprise_url": "https://evil.example"})
	for _, want := range []string{`field "access_token": give it, too`, "would be another place"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// The operator decides whether a destination may be at a private address.
func TestEnterpriseURLIsGuarded(t *testing.T) {
	_, url, _ := repohosttest.NewTLS(t)
	w := syncsim.NewWorld()
	svc := secretsync.New(secretsync.Options{Host: w.Node(), Types: []destination.Type{repohost.Type}})
	for _, at := range []string{url, "https://10.1.2.3", "https://169.254.169.254"} {
		c := &repohost.Config{AccessToken: repohosttest.Token, EnterpriseURL: at, RepositoryOwner: "octo", RepisitoryName: "app"}
		if problems := c.Check(); problems != nil {
			t.Fatal(problems)
		}
		config, err := state.EncodeConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		d, err := svc.Pool.Open(&state.Destination{NS: "root", Type: "repohost", Name: "d", Config: config, Settings: state.Settings{Network: state.Network{DisableStrict: at == url}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Read(t.Context(), "A")
		if err == nil || !strings.Contains(err.Error(), "secret sync does not connect to") {
			t.Errorf("%s: %v", at, err)
		}
		d.Close() //nolint:errcheck // it was never connected
	}
}
