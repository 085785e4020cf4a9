package config_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// node is what a configuration needs besides.
const node = `
api_addr = "http://127.0.0.1:8200"
listener "tcp" {
  address     = "127.0.0.1:8200"
  tls_disable = true
}
storage "raft" {
  path    = "/var/lib/coffer"
  node_id = "n1"
}
`

func TestSync(t *testing.T) {
	c, err := load(t, node+`
sync {
  allow_private_addresses = true
  environment_credentials = "root"
  vendor_type_names       = false
  endpoint "repohost" {
    url     = "https://github.corp.example/api/v3"
    ca_file = "/etc/coffer/ca.pem"
  }
  endpoint "cloud2-kv" {
    url           = "https://vault.corp.example"
    authority_url = "https://login.corp.example"
  }
  endpoint "cloud3-sm" { token_url = "https://oauth2.corp.example/token" }
}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	want := map[string]config.Endpoint{
		"repohost":  {URL: "https://github.corp.example/api/v3", CAFile: "/etc/coffer/ca.pem"},
		"cloud2-kv": {URL: "https://vault.corp.example", AuthorityURL: "https://login.corp.example"},
		"cloud3-sm": {TokenURL: "https://oauth2.corp.example/token"},
	}
	if !c.Sync.NoVendorTypeNames || !c.Sync.AllowPrivate || c.Sync.EnvironmentCredentials != "root" || len(c.Sync.Endpoints) != len(want) {
		t.Errorf("the stanza is %+v", c.Sync)
	}
	for kind, e := range want {
		if c.Sync.Endpoints[kind] != e {
			t.Errorf("endpoint %q is %+v, want %+v", kind, c.Sync.Endpoints[kind], e)
		}
	}
}

// Without the stanza, destinations are where vendors have them, and private addresses stay closed.
func TestSyncDefaults(t *testing.T) {
	c, err := load(t, node)
	if err != nil {
		t.Fatal(err)
	}
	if c.Sync.NoVendorTypeNames || c.Sync.AllowPrivate || c.Sync.EnvironmentCredentials != "" || len(c.Sync.Endpoints) > 0 {
		t.Errorf("the stanza is %+v", c.Sync)
	}
}

func TestSyncProblems(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"type":           {`sync { endpoint "aws-sm" { url = "https://x.example" } }`, `sync.endpoint "aws-sm": the types are cloud1-sm, `},
		"twice":          {"sync {\n endpoint \"repohost\" { url = \"https://x.example\" }\n endpoint \"repohost\" { url = \"https://y.example\" }\n}", `sync.endpoint "repohost": there are two of them`},
		"key":            {`sync { allow_private = true }`, "allow_private"},
		"key within":     {`sync { endpoint "repohost" { uri = "https://x.example" } }`, "uri"},
		"whose":          {`sync { environment_credentials = "some" }`, `"environment_credentials" must be one of all, root, none`},
		"no URL":         {`sync { endpoint "repohost" { url = "github.corp.example" } }`, "url must be a URL"},
		"another scheme": {`sync { endpoint "cloud3-sm" { token_url = "ftp://x.example" } }`, "token_url must be a URL"},
		"a user":         {`sync { endpoint "cloud2-kv" { authority_url = "https://me:hush@x.example" } }`, "authority_url must be a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, node+tt.text)
			if err == nil {
				err = c.Complete()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("the problem is %v, want %q", err, tt.want)
			}
		})
	}
}
