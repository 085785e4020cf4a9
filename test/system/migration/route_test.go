package migration_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestImportRoute sends an import to a standby of three nodes: it needs sudo, counts for quotas, and its values are hashed in the audit log.
func TestImportRoute(t *testing.T) {
	c := harness.NewCluster(t, 3, harness.Options{})
	p := place{t, c}
	p.write("sys/mounts/kv", fields{"type": "kv", "options": fields{"version": "2"}})
	log := filepath.Join(t.TempDir(), "audit.log")
	p.write("sys/audit/file", fields{"type": "file", "options": fields{"file_path": log}})
	secret := func(value string) fields {
		return fields{"secrets": fields{"team/db": fields{
			"created_time": "2020-01-01T00:00:00.5Z", "updated_time": "2020-01-01T00:00:00.5Z",
			"versions": []any{fields{"version": 7, "created_time": "2020-01-01T00:00:00.5Z", "data": fields{"password": value}}},
		}}}
	}
	for policy, status := range map[string]int{
		`path "kv/*" { capabilities = ["create", "read", "update", "patch", "delete", "list"] }`: 403,
		`path "kv/*" { capabilities = ["sudo"] }`:                                                403,
		`path "kv/import" { capabilities = ["update", "sudo"] }`:                                 200,
	} {
		p.write("sys/policies/acl/importer", fields{"policy": policy})
		token := p.write("auth/token/create", fields{"policies": "importer"})["client_token"].(string)
		standby := c.Nodes[2]
		if standby == c.Leader() {
			standby = c.Nodes[1]
		}
		a, err := standby.Do(t.Context(), "POST", "/v1/kv/import", token, secret("hOsTiLe-VaLuE"))
		if err != nil || a.Status != status {
			t.Errorf("%s: status %d, want %d: %s %v", policy, a.Status, status, a.Body, err)
		}
	}
	for _, node := range c.Nodes {
		harness.Await(t, "the secret at "+node.ID, patience, func() error {
			a, err := node.Do(t.Context(), "GET", "/v1/kv/data/team/db", c.RootToken, nil)
			var out struct{ Data fields }
			if err == nil && a.Status == 200 {
				a.Decode(t, &out)
			}
			if got := fmt.Sprint(out.Data); got != "map[data:map[password:hOsTiLe-VaLuE] metadata:map[created_time:2020-01-01T00:00:00.5Z custom_metadata:<nil> deletion_time: destroyed:false version:7]]" {
				return fmt.Errorf("status %d, %s, %v", a.Status, got, err)
			}
			return nil
		})
	}
	// The next version is one more than the imported one.
	if got := p.write("kv/data/team/db", fields{"data": fields{"x": "y"}})["version"]; got != float64(8) {
		t.Errorf("the next version is %v, want 8", got)
	}
	record, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(record, []byte("hOsTiLe-VaLuE")) || !bytes.Contains(record, []byte(`"password":"hmac-sha256:`)) {
		t.Errorf("the audit log has the value, or no hash of it: %.2000s", record)
	}

	p.write("sys/quotas/storage/small", fields{"path": "kv", "max_bytes": 4000})
	body := secret(string(bytes.Repeat([]byte("x"), 10000)))
	body["overwrite"] = true
	p.do(429, "POST", "kv/import", c.RootToken, body)
	if got := fmt.Sprint(p.read("kv/data/team/db")["data"]); got != "map[x:y]" {
		t.Errorf("an import beyond the quota left %s", got)
	}
	// Version 1 has no such path: what is there is a secret.
	p.write("sys/mounts/old", fields{"type": "kv"})
	p.write("old/import", fields{"a": "b"})
	if got := fmt.Sprint(p.read("old/import")); got != "map[a:b]" {
		t.Errorf("a secret named import: %s", got)
	}
}
