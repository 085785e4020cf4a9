package cli_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

// syncPlaces are the places that scripts sync to, some for each script that wants them.
type syncPlaces struct {
	t  testing.TB
	of sync.Map // *testscript.TestScript to *syncScript
}

// syncScript are the places of a script, one of each type.
type syncScript struct {
	cloud1   *cloud1smtest.Server
	cloud2   *cloud2kvtest.Vault
	cloud3   *cloud3smtest.Server
	repohost *repohosttest.Server
	webhost  *webhosttest.Server
}

// start is the command places: it starts one place of each type and writes the configuration of a server that finds them to
// sync.hcl. The files id, key, key.json, client-secret, repo-token and web-token let in, as app.pem does for the installation 1 of the
// GitHub App 7, and other.pem is a key that does not; KEY is what is in key; TENANT, CLIENT and VAULT_URI are what cloud2-kv wants to
// know besides.
func (p *syncPlaces) start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: places")
	}
	s := &syncScript{
		cloud1: cloud1smtest.New(p.t), cloud2: cloud2kvtest.New(p.t), cloud3: cloud3smtest.New(p.t), repohost: repohosttest.New(p.t), webhost: webhosttest.New(p.t),
	}
	s.repohost.AddRepository("acme", "web")
	app, other := newRSAKey(ts), newRSAKey(ts)
	s.repohost.AddInstallation(7, &app.PublicKey, 1)
	s.webhost.AddProject("prj_shop", "")
	p.of.Store(ts, s)
	env := s.cloud3.Env()
	trust2, err := certificateOf(s.cloud2.URL)
	ts.Check(err)
	trust3, err := certificateOf(env.TokenURL)
	ts.Check(err)
	id, key := s.cloud1.Root()
	for name, text := range map[string]string{
		"cloud2.pem": trust2, "cloud3.pem": trust3,
		"id": id, "key": key, "key.json": cloud3smtest.Credentials(nil), "client-secret": cloud2kvtest.ClientSecret, "repo-token": repohosttest.Token, "web-token": webhosttest.Token,
		"app.pem": pemOfKey(app), "other.pem": pemOfKey(other),
		"sync.hcl": fmt.Sprintf(`sync {
  allow_private_addresses = true
  endpoint "cloud1-sm" { url = %q }
  endpoint "cloud2-kv" {
    url           = %q
    authority_url = %q
    ca_file       = %q
  }
  endpoint "cloud3-sm" {
    url       = %q
    token_url = %q
    ca_file   = %q
  }
  endpoint "repohost" { url = %q }
  endpoint "webhost-project" { url = %q }
}
`, s.cloud1.URL, s.cloud2.URL, s.cloud2.AuthorityURL, ts.MkAbs("cloud2.pem"), env.URL, env.TokenURL, ts.MkAbs("cloud3.pem"), s.repohost.URL, s.webhost.URL),
	} {
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
	ts.Setenv("KEY", key)
	ts.Setenv("TENANT", cloud2kvtest.TenantID)
	ts.Setenv("CLIENT", cloud2kvtest.ClientID)
	ts.Setenv("VAULT_URI", s.cloud2.URI)
}

func newRSAKey(ts *testscript.TestScript) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	ts.Check(err)
	return key
}

func pemOfKey(key *rsa.PrivateKey) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// certificateOf returns the certificate that a server of the test shows, as PEM.
func certificateOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true}) // to learn it
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var out bytes.Buffer
	for _, cert := range conn.ConnectionState().PeerCertificates {
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

func (p *syncPlaces) script(ts *testscript.TestScript) *syncScript {
	s, ok := p.of.Load(ts)
	if !ok {
		ts.Fatalf("there are no places: start them with places")
	}
	return s.(*syncScript)
}

// put is the command place-put TYPE NAME VALUE: somebody else writes a name.
func (p *syncPlaces) put(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: place-put TYPE NAME VALUE")
	}
	s, name, value := p.script(ts), args[1], args[2]
	switch args[0] {
	case "cloud1-sm":
		s.cloud1.Put(name, []byte(value))
	case "cloud2-kv":
		s.cloud2.Put(name, value, nil)
	case "cloud3-sm":
		s.cloud3.Put(name, value)
	case "repohost":
		s.repohost.Put(repohosttest.Repository("acme", "web"), name, value)
	case "webhost-project":
		s.webhost.Put("prj_shop", name, value, "production")
	default:
		ts.Fatalf("there is no place %s", args[0])
	}
}

// get is the command place-get TYPE NAME: it prints the value under a name; negated, there is none.
func (p *syncPlaces) get(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] place-get TYPE NAME")
	}
	value, ok := p.script(ts).value(args[0], args[1])
	if ok == neg {
		ts.Fatalf("%s: there is a value under %s: %v", args[0], args[1], ok)
	}
	fmt.Fprintln(ts.Stdout(), value)
}

func (s *syncScript) value(kind, name string) (value string, ok bool) {
	switch kind {
	case "cloud1-sm":
		b, ok := s.cloud1.Get(name)
		return string(b), ok
	case "cloud2-kv":
		return s.cloud2.Get(name)
	case "cloud3-sm":
		return s.cloud3.Get(name)
	case "repohost":
		return s.repohost.Get(repohosttest.Repository("acme", "web"), strings.ToUpper(name))
	case "webhost-project":
		return s.webhost.Get("prj_shop", name, "production")
	}
	return "", false
}
