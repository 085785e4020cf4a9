package secretsync_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
	"github.com/coffer-project/coffer/test/harness"
)

type object = map[string]any

// destinations are where secrets are synced to, one of each type.
type places struct {
	one   *cloud1smtest.Server
	two   *cloud2kvtest.Vault
	three *cloud3smtest.Server
	repo  *repohosttest.Server
	web   *webhosttest.Server
	plain map[string]place
}

func newPlaces(t *testing.T) *places {
	t.Helper()
	p := &places{cloud1smtest.New(t), cloud2kvtest.New(t), cloud3smtest.New(t), repohosttest.New(t), webhosttest.New(t), newPlainPlaces(t)}
	p.repo.AddRepository("acme", "web")
	p.repo.AddRepository("acme", "api")
	p.web.AddProject("prj_shop", "")
	return p
}

// stanza is what the operator says, so that servers find the destinations. private is allow_private_addresses.
func (p *places) stanza(t *testing.T, private bool) string {
	t.Helper()
	dir, env := t.TempDir(), p.three.Env()
	trust := func(name, at string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, certificateOf(t, at), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var b strings.Builder
	endpoint := func(kind string, lines ...string) {
		fmt.Fprintf(&b, "  endpoint %q {\n", kind)
		for i := 0; i < len(lines); i += 2 {
			fmt.Fprintf(&b, "    %s = %q\n", lines[i], lines[i+1])
		}
		b.WriteString("  }\n")
	}
	endpoint("cloud1-sm", "url", p.one.URL)
	endpoint("cloud2-kv", "url", p.two.URL, "authority_url", p.two.AuthorityURL, "ca_file", trust("two.pem", p.two.URL))
	endpoint("cloud3-sm", "url", env.URL, "token_url", env.TokenURL, "ca_file", trust("three.pem", env.TokenURL))
	endpoint("repohost", "url", p.repo.URL)
	endpoint("webhost-project", "url", p.web.URL)
	for _, kind := range slices.Sorted(maps.Keys(p.plain)) {
		endpoint(kind, "url", p.plain[kind].url)
	}
	return fmt.Sprintf("sync {\n  allow_private_addresses = %v\n%s}\n", private, b.String())
}

// certificateOf returns the certificate that a server of the test shows.
func certificateOf(t *testing.T, at string) []byte {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true}) // #nosec G402 -- to learn it
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	var out bytes.Buffer
	for _, cert := range conn.ConnectionState().PeerCertificates {
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// get returns what another client of a destination reads.
func (p *places) get(kind, name string) (value string, ok bool) {
	switch kind {
	case "cloud1-sm":
		raw, ok := p.one.Get(name)
		return string(raw), ok
	case "cloud2-kv":
		return p.two.Get(name)
	case "cloud3-sm":
		return p.three.Get(name)
	case "repohost":
		return p.repo.Get(repohosttest.Repository("acme", "web"), name)
	case "webhost-project":
		return p.web.Get("prj_shop", name, "production")
	}
	return p.plain[kind].get(name)
}

// put writes a name as another client does.
func (p *places) put(kind, name, value string) {
	switch kind {
	case "cloud1-sm":
		p.one.Put(name, []byte(value))
	case "cloud2-kv":
		p.two.Put(name, value, nil)
	case "cloud3-sm":
		p.three.Put(name, value)
	case "repohost":
		p.repo.Put(repohosttest.Repository("acme", "web"), name, value)
	case "webhost-project":
		p.web.Put("prj_shop", name, value, "production")
	default:
		p.plain[kind].put(name, value)
	}
}

// secrets are the credentials that destinations are configured with.
func (p *places) secrets() []string {
	id, key := p.one.Root()
	body := strings.Split(strings.TrimSpace(cloud3smtest.PrivateKey()), "\n")
	all := []string{id, key, cloud2kvtest.ClientSecret, body[1], body[2], repohosttest.Token, webhosttest.Token}
	for _, at := range p.plain {
		all = append(all, at.secret)
	}
	return all
}

// fields are a whole configuration of a destination.
func (p *places) fields(kind string, more ...object) object {
	id, key := p.one.Root()
	all := maps.Clone(map[string]object{
		"cloud1-sm":       {"access_key_id": id, "secret_access_key": key, "region": p.one.Region},
		"cloud2-kv":       {"key_vault_uri": p.two.URI, "client_id": cloud2kvtest.ClientID, "client_secret": cloud2kvtest.ClientSecret, "tenant_id": cloud2kvtest.TenantID},
		"cloud3-sm":       {"credentials": cloud3smtest.Credentials(nil)},
		"repohost":        {"access_token": repohosttest.Token, "repository_owner": "acme", "repisitory_name": "web"},
		"webhost-project": {"access_token": webhosttest.Token, "project_id": "prj_shop", "deployment_environments": "production"},
	}[kind])
	if at, ok := p.plain[kind]; ok {
		all = maps.Clone(at.fields)
	}
	for _, o := range more {
		maps.Copy(all, o)
	}
	return all
}

// site is a server with the destinations that it reaches.
type site struct {
	*places
	t     *testing.T
	c     *harness.Cluster
	n     *harness.Node // which requests go to
	ns    string        // which they are about
	token string
}

// newSite starts a server of one node.
func newSite(t *testing.T, prefix string) *site {
	t.Helper()
	p := newPlaces(t)
	c := harness.NewCluster(t, 1, harness.Options{Prefix: prefix, Config: p.stanza(t, true)})
	return &site{places: p, t: t, c: c, n: c.Nodes[0], token: c.RootToken}
}

func (s *site) in(t *testing.T) *site {
	sub := *s
	sub.t = t
	return &sub
}

func (s *site) as(token string) *site {
	other := *s
	other.token = token
	return &other
}

func (s *site) within(ns string) *site {
	other := *s
	other.ns = ns
	return &other
}

// do sends a request.
func (s *site) do(verb, path string, body any, header ...string) harness.Answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	header = append(header, "X-Vault-Consistency", "linearizable")
	if s.ns != "" {
		header = append(header, "X-Vault-Namespace", s.ns)
	}
	if verb == "PATCH" {
		header = append(header, "Content-Type", "application/merge-patch+json")
	}
	a, err := s.n.Do(ctx, verb, "/v1/"+path, s.token, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", verb, path, err)
	}
	return a
}

// must sends a request that has to succeed and returns its data.
func (s *site) must(verb, path string, body any) object {
	s.t.Helper()
	a := s.do(verb, path, body)
	if a.Status >= 300 {
		s.t.Fatalf("%s %s: status %d: %.500s", verb, path, a.Status, a.Body)
	}
	var out struct{ Data object }
	if a.Status != 204 {
		a.Decode(s.t, &out)
	}
	return out.Data
}

// rejected sends a request that has to fail, with a text that has all of the words.
func (s *site) rejected(status int, verb, path string, body any, words ...string) {
	s.t.Helper()
	a := s.do(verb, path, body)
	text := strings.Join(a.Errors(), "; ")
	if a.Status != status {
		s.t.Errorf("%s %s: status %d, want %d: %.500s", verb, path, a.Status, status, a.Body)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			s.t.Errorf("%s %s: %q, want something with %q", verb, path, text, word)
		}
	}
	for _, secret := range s.secrets() {
		if bytes.Contains(a.Body, []byte(secret)) {
			s.t.Errorf("%s %s: the error tells a credential", verb, path)
		}
	}
}

const destinations = "sys/sync/destinations/"

// dest makes a destination and returns its path.
func (s *site) dest(kind, name string, more ...object) string {
	s.t.Helper()
	s.must("POST", destinations+kind+"/"+name, s.fields(kind, more...))
	return destinations + kind + "/" + name
}

// mount mounts a KV version 2 engine and returns its accessor.
func (s *site) mount(path string) string {
	s.t.Helper()
	s.must("POST", "sys/mounts/"+path, object{"type": "kv", "options": object{"version": "2"}})
	accessor, _ := s.must("GET", "sys/mounts/"+path, nil)["accessor"].(string)
	return accessor
}

// secret writes a secret: keys and values in turn.
func (s *site) secret(mount, name string, pairs ...any) {
	s.t.Helper()
	data := object{}
	for i := 0; i+1 < len(pairs); i += 2 {
		data[pairs[i].(string)] = pairs[i+1]
	}
	s.must("POST", mount+"/data/"+name, object{"data": data})
}

// entry is what clients read of a secret.
type entry struct {
	Accessor, Mount, Cause, Code, Drift string
	Secret                              string `json:"secret_name"`
	Prefix                              string `json:"secret_prefix"`
	Key                                 string `json:"sub_key"`
	Status                              string `json:"sync_status"`
	Name                                string `json:"external_name"`
	ExternalVersion                     string `json:"external_version"`
	UpdatedAt                           string `json:"updated_at"`
	LastSuccess                         string `json:"last_success"`
	NextRetry                           string `json:"next_retry"`
	Version, Attempts                   int
}

func entriesOf(t *testing.T, data object) map[string]entry {
	t.Helper()
	var out map[string]entry
	text, err := json.Marshal(data["associated_secrets"])
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func only(t *testing.T, all map[string]entry) entry {
	t.Helper()
	if len(all) != 1 {
		t.Fatalf("%d entries, want one: %+v", len(all), all)
	}
	for _, e := range all {
		return e
	}
	return entry{}
}

// associate associates a secret and returns its entries.
func (s *site) associate(dest, mount, secret string, more ...object) map[string]entry {
	s.t.Helper()
	body := object{"mount": mount, "secret_name": secret}
	for _, o := range more {
		maps.Copy(body, o)
	}
	return entriesOf(s.t, s.must("POST", dest+"/associations/set", body))
}

func (s *site) entries(dest string) map[string]entry {
	s.t.Helper()
	return entriesOf(s.t, s.must("GET", dest+"/associations", nil))
}

// await waits until all secrets of a destination have a status, and returns them.
func (s *site) await(dest, status string, words ...string) map[string]entry {
	s.t.Helper()
	var all map[string]entry
	harness.Await(s.t, dest+" to be "+status, 30*time.Second, func() error {
		all = s.entries(dest)
		for key, e := range all {
			if e.Status != status {
				return fmt.Errorf("%s: %+v", key, e)
			}
			for _, word := range words {
				if !strings.Contains(e.Cause, word) {
					return fmt.Errorf("%s: %+v", key, e)
				}
			}
		}
		return nil
	})
	return all
}

// has waits until a name has a value; has no value with "".
func (s *site) has(kind, name, value string) {
	s.t.Helper()
	harness.Await(s.t, kind+" "+name, 30*time.Second, func() error {
		if got, ok := s.get(kind, name); ok != (value != "") || got != value {
			return fmt.Errorf("it is %q, %v, want %q", got, ok, value)
		}
		return nil
	})
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	g, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(g, w) {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

func (s *site) accessor(mount string) string {
	s.t.Helper()
	accessor, _ := s.must("GET", "sys/mounts/"+mount, nil)["accessor"].(string)
	return accessor
}

// eventually waits until a destination is as it should be. A redeployment begins half a minute after the change.
func (s *site) eventually(d string, is func(object) error) {
	s.t.Helper()
	harness.Await(s.t, d, 2*time.Minute, func() error { return is(s.must("GET", d, nil)) })
}

// vanishes waits until a destination is not there any more.
func (s *site) vanishes(d string) {
	s.t.Helper()
	harness.Await(s.t, d+" to vanish", 30*time.Second, func() error {
		if a := s.do("GET", d, nil); a.Status != 404 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
}
