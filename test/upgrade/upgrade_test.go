// Package upgrade_test opens data of earlier releases with the present binary. testdata/<release>/ has, for each
// kind of seal, the data directory of a node that was stopped cleanly, packed with an inventory: keys, tokens, and
// the answers the old server gave to a list of questions. The present server has to give the same answers from that
// directory, go on from there with everything old and new, and again after a restart; a snapshot that the old
// server wrote has to bring the same to a new cluster.
//
// A release adds its directory once: see create_test.go. Files of a release are never changed afterwards.
package upgrade_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// inventory is what one data directory holds. The secrets in it protect nothing else.
type inventory struct {
	Config    string   `json:"config"`     // more lines of the server's configuration
	RootToken string   `json:"root_token"` // never expires
	Keys      []string `json:"keys"`       // key shares; none with a static seal
	Tokens    map[string]oldToken
	Questions []question
	AuditHash string `json:"audit_hash"` // of auditInput, by the audit device
}

type oldToken struct {
	ID       string
	Accessor string
	Expires  time.Time `json:",omitzero"` // zero: so late that no test sees it
}

// question is a request with the answer of the old server. A later one may answer more, but nothing else.
type question struct {
	Method, Path, Token string
	Body                json.RawMessage `json:",omitempty"`
	Status              int
	Data                json.RawMessage `json:",omitempty"`
}

const inventoryFile = "inventory.json"

const auditInput = "the same text is hashed in the same way"

// volatile fields differ from answer to answer.
var volatile = map[string]bool{"ttl": true, "encryptions": true}

// auditFile is where the audit device of every old node writes: in the working directory of its process, which
// is a new one for each test.
const auditFile = "/proc/self/cwd/audit.log"

func TestUpgrade(t *testing.T) {
	releases, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range releases {
		for _, seal := range []string{"shamir", "static"} {
			t.Run(release.Name()+" "+seal, func(t *testing.T) {
				from := absolute(t, filepath.Join("testdata", release.Name(), seal))
				c := open(t, from)
				n := c.Nodes[0]
				c.check(t, n)
				c.work(t, n)
				c.features(t, n)
				n.Stop()
				n.Start()
				c.serve(n)
				c.worked(t, n)
			})
		}
		t.Run(release.Name()+" snapshot", func(t *testing.T) {
			restore(t, absolute(t, filepath.Join("testdata", release.Name(), "shamir")))
		})
	}
}

// upgraded is a cluster of the present binary with old data.
type upgraded struct {
	*harness.Cluster
	was inventory
}

// open starts a node on a copy of the old directory.
func open(t *testing.T, from string) *upgraded {
	t.Helper()
	harness.Binary(t) // before the working directory changes
	dir := t.TempDir()
	unpack(t, from+".tar.gz", dir)
	in := readInventory(t, dir)
	t.Chdir(dir)
	c := harness.NewCluster(t, 1, harness.Options{
		Bare: true, Shamir: true, Config: in.Config, // a static seal's stanza is in Config
		Dir: func(string) string { return filepath.Join(dir, "data") },
	})
	c.RootToken, c.Keys = in.RootToken, in.Keys
	u := &upgraded{c, in}
	u.serve(c.Nodes[0])
	return u
}

// serve unseals the node if that takes keys, and waits until it is active.
func (u *upgraded) serve(n *harness.Node) {
	if len(u.Keys) > 0 {
		n.WaitHealth(503)
		n.Unseal()
	}
	n.WaitHealth(200)
}

// check asks all the questions.
func (u *upgraded) check(t *testing.T, n *harness.Node) {
	t.Helper()
	if len(u.was.Questions) < 20 {
		t.Fatalf("the inventory has only %d questions", len(u.was.Questions))
	}
	for _, q := range u.was.Questions {
		var body any
		if q.Body != nil {
			body = []byte(q.Body)
		}
		a := do(t, n, q.Method, q.Path, u.was.Tokens[q.Token].ID, body)
		if a.Status != q.Status {
			t.Errorf("%s %s as %s: status %d, was %d: %.300s", q.Method, q.Path, q.Token, a.Status, q.Status, a.Body)
			continue
		}
		if q.Data == nil {
			continue
		}
		var was any
		var is struct{ Data any }
		if err := json.Unmarshal(q.Data, &was); err != nil {
			t.Fatal(err)
		}
		a.Decode(t, &is)
		for _, difference := range lacks("data", was, is.Data) {
			t.Errorf("%s %s as %s: %s", q.Method, q.Path, q.Token, difference)
		}
	}
	var hash struct{ Hash string }
	n.MustDo("POST", "/v1/sys/audit-hash/file", map[string]any{"input": auditInput}).Decode(t, &hash)
	if hash.Hash != u.was.AuditHash {
		t.Errorf("the audit device hashes with another key than before")
	}
}

// lacks returns what of was is not in is. Objects may have more fields than they had.
func lacks(where string, was, is any) []string {
	old, ok := was.(map[string]any)
	if !ok {
		if !reflect.DeepEqual(was, is) {
			return []string{fmt.Sprintf("%s is %v, was %v", where, is, was)}
		}
		return nil
	}
	now, ok := is.(map[string]any)
	if !ok {
		return []string{fmt.Sprintf("%s is %v, was an object", where, is)}
	}
	var all []string
	for name, value := range old {
		if !volatile[name] {
			all = append(all, lacks(where+"."+name, value, now[name])...)
		}
	}
	return all
}

// restore brings the old server's snapshot into a new cluster of three.
func restore(t *testing.T, from string) {
	dir := t.TempDir()
	unpack(t, from+".tar.gz", dir)
	in := readInventory(t, dir)
	archive, err := os.ReadFile(from + ".snapshot")
	if err != nil {
		t.Fatal(err)
	}
	harness.Binary(t)
	t.Chdir(t.TempDir())
	c := harness.NewCluster(t, 3, harness.Options{Shamir: true, Config: in.Config})
	leader := c.Leader()
	if a := do(t, leader, "POST", "/v1/sys/storage/raft/snapshot-force", c.RootToken, archive); a.Status >= 300 {
		t.Fatalf("restoring: status %d: %s", a.Status, a.Body)
	}
	c.RootToken, c.Keys = in.RootToken, in.Keys
	u := &upgraded{c, in}
	for _, n := range c.Nodes {
		n.WaitHealth(503) // the state has other keys now
	}
	for _, n := range c.Nodes {
		n.Unseal()
	}
	c.WaitServing()
	c.WaitVoters(3)
	leader = c.Leader()
	u.check(t, leader)
	u.work(t, leader)
	u.features(t, leader)
	for _, n := range c.Nodes { // each has to know the new mounts before it is asked
		last := leader.MustDo("POST", "/v1/kv1/last", map[string]any{"v": "last"})
		harness.Await(t, n.ID+" to catch up", time.Minute, func() error {
			if a := do(t, n, "GET", "/v1/kv1/last", c.RootToken, nil, "X-Vault-Index", last.Header.Get("X-Vault-Index")); a.Status != 200 {
				return fmt.Errorf("status %d", a.Status)
			}
			return nil
		})
		u.worked(t, n)
	}
}

// do sends a request and wants an answer, whatever its status.
func do(t *testing.T, n *harness.Node, method, path, token string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := n.Do(ctx, method, path, token, body, header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// readInventory reads the inventory that was packed with the data: not a file of its own, because scanners for
// secrets would, rightly, stop at its tokens.
func readInventory(t *testing.T, dir string) inventory {
	t.Helper()
	var in inventory
	text, err := os.ReadFile(filepath.Join(dir, inventoryFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &in); err != nil {
		t.Fatalf("%s: %v", inventoryFile, err)
	}
	in.Tokens["root"] = oldToken{ID: in.RootToken}
	return in
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	name, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// unpack extracts the files of an archive below dir.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(packed); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(h.Name) || strings.HasSuffix(h.Name, "/") {
			t.Fatalf("%s has an entry %q", archive, h.Name)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
