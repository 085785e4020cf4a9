//go:build e2e

// Destinations are held against what others have written: it needs what test/e2e/run installs.
package secretsync_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1/cloud1test"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/test/harness"
)

const (
	region    = "us-east-1"
	accessKey = "AKIAEXAMPLEEXAMPLE00"
	secretKey = "nobody/looks/at/it/but/the/suite/does+00"
)

// emulate starts the emulator of AWS that test/e2e/run has installed, until the test ends, and returns its URL.
func emulate(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(filepath.Join(root, "test", "e2e", "cloud", "venv", "bin", "moto_server"), "-H", "127.0.0.1", "-p", "0")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	said, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("%v: run test/e2e/run, which installs it", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	lines := bufio.NewReader(said)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the emulator did not start: %v", err)
		}
		if _, at, ok := strings.Cut(line, "Running on "); ok {
			go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the process
			return strings.TrimSpace(at)
		}
	}
}

// aws1 is the emulator, emptied, with faults in front.
type aws1 struct {
	api    *secretsmanager.Client // as another client uses it, with the SDK's own retries: the emulator drops a connection now and then
	faults *desttest.Faults
	front  string
	change func(*cloud1sm.Config)
}

func newAWS(t *testing.T, emulator string) *aws1 {
	t.Helper()
	p := &aws1{}
	p.faults, p.front = fronted(t, emulator, "InternalServiceError", "DescribeSecret", "GetSecretValue", "ListSecrets")
	p.api = secretsmanager.New(secretsmanager.Options{
		Region: region, BaseEndpoint: &emulator, Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	return p
}

// fronted empties the emulator, and puts faults in front of it, at a URL. trouble is the service's code for its own, reads are the actions
// that change nothing.
func fronted(t *testing.T, emulator, trouble string, reads ...string) (faults *desttest.Faults, at string) {
	t.Helper()
	answer, err := http.Post(emulator+"/moto-api/reset", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	to, err := url.Parse(emulator)
	if err != nil {
		t.Fatal(err)
	}
	faults = cloud1test.Faults(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // is signed
	}}, trouble, reads...)
	front := httptest.NewServer(faults)
	t.Cleanup(front.Close)
	return faults, front.URL
}

func (p *aws1) Open(t *testing.T) destination.Destination {
	t.Helper()
	c := &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: accessKey, SecretAccessKey: secretKey, Region: region}}
	if p.change != nil {
		p.change(c)
	}
	if problems := c.Check(); problems != nil {
		t.Fatal(problems)
	}
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	d, err := cloud1sm.Type.Open(c, destination.Env{URL: p.front, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return distinct{d}
}

// distinct gives writes of different values different tokens, as the contract has it and the service insists on.
type distinct struct{ destination.Destination }

func (d distinct) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	it.Token = fmt.Sprintf("%x", sha256.Sum256([]byte(it.Token+string(it.Value))))
	return d.Destination.Write(ctx, it, was)
}

func (p *aws1) Put(t *testing.T, name, value string) {
	t.Helper()
	_, err := p.api.PutSecretValue(t.Context(), &secretsmanager.PutSecretValueInput{SecretId: &name, SecretString: &value})
	if _, ok := errors.AsType[*types.ResourceNotFoundException](err); ok {
		_, err = p.api.CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{Name: &name, SecretString: &value})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Get asks for AWSCURRENT by name: without it the emulator answers the version that was last put, and forgets that the label
// has been moved.
func (p *aws1) Get(t *testing.T, name string) (value string, ok bool) {
	t.Helper()
	out, err := p.api.GetSecretValue(t.Context(), &secretsmanager.GetSecretValueInput{SecretId: &name, VersionStage: aws.String("AWSCURRENT")})
	if err != nil {
		return "", false
	}
	return aws.ToString(out.SecretString) + string(out.SecretBinary), true
}

func (p *aws1) Fail(f desttest.Fault) { p.faults.Set(f) }

func (p *aws1) Secrets() []string { return []string{accessKey, secretKey} }

// TestCloud1SM runs the suite, and what is AWS's own, on the emulator.
func TestCloud1SM(t *testing.T) {
	emulator := emulate(t)
	t.Run("suite", func(t *testing.T) {
		desttest.Run(t, cloud1sm.Type, func(t *testing.T) desttest.Fake { return newAWS(t, emulator) })
	})
	const name = "vault/kv_1234/my-secret"
	tests := map[string]func(*testing.T, *aws1, destination.Destination){
		"labels": func(t *testing.T, p *aws1, d destination.Destination) {
			var last destination.Held
			for _, value := range []string{"one", "two", "three"} {
				last = write(t, d, name, value)
			}
			out, err := p.api.DescribeSecret(t.Context(), &secretsmanager.DescribeSecretInput{SecretId: aws.String(name)})
			if err != nil {
				t.Fatal(err)
			}
			if labels := out.VersionIdsToStages[last.Version]; !slices.Contains(labels, "AWSCURRENT") || !slices.Contains(labels, "COFFER") || len(labels) != 2 {
				t.Errorf("labels %v", out.VersionIdsToStages)
			}
			previous, err := p.api.GetSecretValue(t.Context(), &secretsmanager.GetSecretValueInput{SecretId: aws.String(name), VersionStage: aws.String("AWSPREVIOUS")})
			if err != nil || *previous.SecretString != "two" {
				t.Errorf("the previous value: %v", err)
			}
		},
		"bytes": func(t *testing.T, p *aws1, d destination.Destination) {
			write(t, d, name, "\xff\x00")
			if got, ok := p.Get(t, name); !ok || got != "\xff\x00" {
				t.Errorf("found %q", got)
			}
		},
		"a value that comes back": func(t *testing.T, p *aws1, d destination.Destination) {
			write(t, d, name, "ours")
			p.Put(t, name, "theirs")
			write(t, d, name, "ours")
			if got, _ := p.Get(t, name); got != "ours" {
				t.Errorf("found %q", got)
			}
		},
		"deleted for good": func(t *testing.T, p *aws1, _ destination.Destination) {
			p.change = func(c *cloud1sm.Config) { c.RecoveryWindowInDays = new(int) }
			d := p.Open(t)
			first := write(t, d, name, "one")
			f, err := d.Read(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Delete(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			if f, err := d.Read(t.Context(), name); err != nil || f.State != destination.Absent {
				t.Errorf("found %+v, %v", f, err)
			}
			if again := write(t, d, name, "one"); again.ID == first.ID {
				t.Error("another secret has the same id")
			}
		},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			p := newAWS(t, emulator)
			test(t, p, p.Open(t))
		})
	}
}

func write(t *testing.T, d destination.Destination, name, value string) destination.Held {
	t.Helper()
	f, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	held, err := d.Write(t.Context(), destination.Item{Name: name, Value: []byte(value), OwnerTag: "mark", Token: "0"}, f)
	if err != nil {
		t.Fatal(err)
	}
	return held
}
