//go:build e2e

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// directory is Debian's slapd on loopback, with an account for the engine, some for it to manage, and a unit for those that it makes.
type directory struct{ url string }

const (
	suffix     = "dc=example,dc=org"
	engineDN   = "cn=coffer," + suffix
	enginePass = "first-password"
)

// pool is what the library lends. Several, as a response may be lost while the active node changes.
var pool = []string{"pool-1", "pool-2", "pool-3", "pool-4", "pool-5", "pool-6"}

// newDirectory starts what test/e2e/run has unpacked, until the test ends.
func newDirectory(t *testing.T) *directory {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	unpacked, dir := filepath.Join(root, "test", "e2e", "openldap"), t.TempDir()
	libraries, err := filepath.Glob(filepath.Join(unpacked, "usr", "lib", "*-linux-gnu*"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("%s has no libraries, %v: run test/e2e/run, which unpacks slapd", unpacked, err)
	}
	schemas := filepath.Join(unpacked, "etc", "ldap", "schema")
	entries := "dn: " + suffix + "\nobjectClass: domain\ndc: example\n\ndn: ou=made," + suffix + "\nobjectClass: organizationalUnit\nou: made\n"
	for _, name := range append([]string{"coffer", "app", "service"}, pool...) {
		entries += fmt.Sprintf("\ndn: cn=%s,%s\nobjectClass: person\ncn: %s\nsn: %s\nuserPassword: %s\n", name, suffix, name, name, enginePass)
	}
	if err := os.MkdirAll(filepath.Join(dir, "db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"entries.ldif": entries,
		"slapd.conf": fmt.Sprintf(`include %[1]s/core.schema
include %[1]s/cosine.schema
include %[1]s/inetorgperson.schema
modulepath %[2]s/usr/lib/ldap
moduleload back_mdb
database mdb
suffix "%[3]s"
directory %[4]s/db
access to attrs=userPassword by dn.exact="%[5]s" write by anonymous auth by * none
access to * by dn.exact="%[5]s" write by users read by * none
`, schemas, unpacked, suffix, dir, engineDN),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(unpacked, "usr", "sbin", name), args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries[0])
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
		return cmd
	}
	if out, err := program("slapadd", "-f", filepath.Join(dir, "slapd.conf"), "-l", filepath.Join(dir, "entries.ldif")).CombinedOutput(); err != nil {
		t.Fatalf("slapadd: %v: %s", err, out)
	}
	d := &directory{url: fmt.Sprintf("ldap://127.0.0.1:%d", harness.FreePort(t))}
	server := program("slapd", "-d", "0", "-h", d.url, "-f", filepath.Join(dir, "slapd.conf"))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	harness.Await(t, "slapd", patience, func() error { return d.bind(engineDN, enginePass) })
	return d
}

// errCredentials is that of a wrong name or password.
var errCredentials = errors.New("invalid credentials")

// bind logs in to the directory.
func (d *directory) bind(dn, password string) error {
	out, err := exec.Command("ldapwhoami", "-x", "-H", d.url, "-D", dn, "-w", password).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 49 {
		return fmt.Errorf("%w of %s", errCredentials, dn)
	}
	if err != nil {
		return fmt.Errorf("ldapwhoami: %w: %s", err, out)
	}
	return nil
}

// rejects is nil if the directory does not take a password (any more).
func (d *directory) rejects(dn, password string) error {
	if err := d.bind(dn, password); !errors.Is(err, errCredentials) {
		return fmt.Errorf("%s still has a former password, or %w", dn, err)
	}
	return nil
}

// openldapEngine enables openldap, and returns what it is used for.
func openldapEngine(t *testing.T, n *harness.Node) counterpart {
	d := newDirectory(t)
	n.MustDo("POST", "/v1/sys/policies/password/ldap", map[string]any{"policy": "length = 24\nrule \"charset\" { charset = \"abcdefghij0123456789\" }"})
	n.MustDo("POST", "/v1/sys/mounts/ldap", map[string]any{"type": "openldap"})
	n.MustDo("POST", "/v1/ldap/config", map[string]any{
		"binddn": engineDN, "bindpass": enginePass, "url": d.url, "userdn": suffix, "userattr": "cn", "password_policy": "ldap",
	})
	if a, err := n.DoAsRoot("POST", "/v1/ldap/config", map[string]any{"rotation_period": "1h"}); err != nil || !strings.Contains(string(a.Body), "no schedules for root credentials") {
		t.Errorf("a schedule for the root password: %d %s, %v", a.Status, a.Body, err)
	}
	n.MustDo("POST", "/v1/ldap/static-role/service", map[string]any{"dn": "cn=service," + suffix, "username": "service", "rotation_period": "24h"})
	for role, ttl := range map[string]string{"made": "1h", "brief": "10s"} {
		n.MustDo("POST", "/v1/ldap/role/"+role, map[string]any{
			"creation_ldif": "dn: cn={{.Username}},ou=made," + suffix + "\nobjectClass: person\ncn: {{.Username}}\nsn: {{.Username}}\nuserPassword: {{.Password}}\n",
			"deletion_ldif": "dn: cn={{.Username}},ou=made," + suffix + "\nchangetype: delete\n",
			"default_ttl":   ttl, "max_ttl": "24h",
		})
	}
	n.MustDo("PUT", "/v1/sys/policies/acl/library", map[string]any{"policy": `path "ldap/library/*" { capabilities = ["update"] }`})
	n.MustDo("POST", "/v1/ldap/library/pool", map[string]any{"service_account_names": pool, "ttl": "1h", "max_ttl": "2h"})
	n.MustDo("POST", "/v1/ldap/rotate-root", nil)
	if err := d.rejects(engineDN, enginePass); err != nil {
		t.Error(err)
	}
	var made, borrowed, brief lease // issued before the active node ends
	return counterpart{
		name: "openldap",
		use: func(n *harness.Node) error {
			if err := d.static(n); err != nil {
				return err
			}
			l, err := d.dynamic(n)
			if err != nil {
				return err
			}
			if err := d.revoked(n, l); err != nil {
				return err
			}
			return d.library(n)
		},
		before: func(n *harness.Node) (err error) {
			if made, err = d.dynamic(n); err != nil {
				return err
			}
			if borrowed, err = issue(n, "POST", "ldap/library/pool/check-out", nil); err != nil {
				return err
			}
			brief, err = issue(n, "GET", "ldap/creds/brief", nil)
			return err
		},
		after: func(n *harness.Node) error {
			if err := d.revoked(n, made); err != nil {
				return err
			}
			if err := d.returned(n, borrowed); err != nil {
				return err
			}
			return d.rejects(brief.Data["distinguished_names"], brief.Data["password"]) // sooner or later, as its lease has expired
		},
	}
}

// static rotates the password of an account that exists.
func (d *directory) static(n *harness.Node) error {
	read := func() (l lease, err error) { return issue(n, "GET", "ldap/static-cred/service", nil) }
	former, err := read()
	if err != nil {
		return err
	}
	if len(former.Data["password"]) != 24 || strings.Trim(former.Data["password"], "abcdefghij0123456789") != "" {
		return errors.New("a password is not of the password policy")
	}
	if err := d.bind("cn=service,"+suffix, former.Data["password"]); err != nil {
		return err
	}
	if err := request(n, "POST", "ldap/rotate-role/service", nil); err != nil {
		return err
	}
	current, err := read()
	if err != nil {
		return err
	}
	return errors.Join(d.bind("cn=service,"+suffix, current.Data["password"]), d.rejects("cn=service,"+suffix, former.Data["password"]))
}

// dynamic creates an account that lives as long as its lease.
func (d *directory) dynamic(n *harness.Node) (lease, error) {
	l, err := issue(n, "GET", "ldap/creds/made", nil)
	if err != nil {
		return l, err
	}
	if l.ID == "" || l.Seconds != 3600 || !l.Renewable {
		return l, fmt.Errorf("lease %q of %d seconds, renewable: %v", l.ID, l.Seconds, l.Renewable)
	}
	return l, d.bind(l.Data["distinguished_names"], l.Data["password"])
}

// revoked renews a dynamic account's lease and revokes it.
func (d *directory) revoked(n *harness.Node, l lease) error {
	if d.rejects(l.Data["distinguished_names"], l.Data["password"]) == nil {
		return nil // by the former attempt
	}
	if err := request(n, "POST", "sys/leases/renew", map[string]any{"lease_id": l.ID}); err != nil {
		return err
	}
	if err := revoke(n, l); err != nil {
		return err
	}
	return d.rejects(l.Data["distinguished_names"], l.Data["password"])
}

// library borrows an account and returns it.
func (d *directory) library(n *harness.Node) error {
	l, err := issue(n, "POST", "ldap/library/pool/check-out", nil)
	if err != nil {
		return err
	}
	if err := d.bind("cn="+l.Data["service_account_name"]+","+suffix, l.Data["password"]); err != nil {
		return err
	}
	foreign, err := n.DoAsRoot("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"library"}})
	if err != nil {
		return err
	}
	var other struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	if err := json.Unmarshal(foreign.Body, &other); err != nil {
		return err
	}
	a, err := n.Do(context.Background(), "POST", "/v1/ldap/library/pool/check-in", other.Auth.Token, map[string]any{"service_account_names": l.Data["service_account_name"]})
	if err != nil || a.Status < 400 || !strings.Contains(string(a.Body), "can't be checked in") {
		return fmt.Errorf("another token returns an account: %d %s, %v", a.Status, a.Body, err)
	}
	return d.returned(n, l)
}

// returned returns a borrowed account, whose password is then another.
func (d *directory) returned(n *harness.Node, l lease) error {
	name := l.Data["service_account_name"]
	dn := "cn=" + name + "," + suffix
	if d.rejects(dn, l.Data["password"]) == nil {
		return nil // by the former attempt
	}
	if err := request(n, "POST", "ldap/library/pool/check-in", map[string]any{"service_account_names": name}); err != nil {
		return err
	}
	return d.rejects(dn, l.Data["password"])
}

// TestRotation has openldap rotate a password by its own clock, also after its process was killed.
func TestRotation(t *testing.T) {
	t.Parallel()
	c := newShipped(t, 1)
	n, d := c.Leader(), newDirectory(t)
	documented(t, c, "plugins.md", "### Rotate passwords of LDAP", map[string]string{"bind-password": enginePass}, "ldaps://ldap.example.com", d.url, "=24h", "=5s")
	for _, when := range []string{"at first", "after the end of the plugin"} {
		former, err := issue(n, "GET", "openldap/static-cred/app", nil)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if when != "at first" {
			kill(t, n)
		}
		// Nothing but the directory is asked: the process starts without a request of a client.
		harness.Await(t, "another password "+when, 2*time.Minute, func() error { return d.rejects("cn=app,"+suffix, former.Data["password"]) })
	}
}
