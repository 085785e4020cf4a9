package cloud3sm_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func with(fields map[string]any) string { return cloud3smtest.Credentials(fields) }

func keyPEM(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func TestCheck(t *testing.T) {
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GODEBUG", "rsa1024min=0")
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name        string
		credentials string
		project     string
		locations   []string
		want        []string // parts of the problems, in order
	}{
		{"the key of a service account", with(nil), "", nil, nil},
		{"space around it", "\n" + with(nil) + "\n", " coffer-tests ", nil, nil},
		{"another project", with(nil), "other-project", nil, nil},
		{"a project of a domain", with(nil), "example.com:my-project", nil, nil},
		{"locations", with(nil), "", []string{"us-east1", "europe-west1"}, nil},
		{"no type of universe or addresses", with(map[string]any{"universe_domain": nil, "token_uri": nil, "auth_uri": nil}), "", nil, nil},
		{"an old address of the same issuer", with(map[string]any{"token_uri": "https://accounts.google.com/o/oauth2/token"}), "", nil, nil},
		{"the server's own credentials", "", "my-project", nil, nil},

		{"nothing", "", "", nil, []string{`"credentials": must be`}},
		{"a file", "@/etc/key.json", "", nil, []string{`"credentials": names a file, which the server does not read`}},
		{"a file of the process", "@/proc/self/environ", "", nil, []string{"command-line client"}},
		{"a path", "/etc/key.json", "", nil, []string{"must be a JSON object"}},
		{"a list", "[]", "", nil, []string{"must be a JSON object"}},
		{"a number for a text", `{"type":1}`, "", nil, []string{"must be a JSON object with texts"}},
		{"no type", with(map[string]any{"type": nil}), "", nil, []string{`type in it must be "service_account"`}},
		{"another type", with(map[string]any{"type": "external_account"}), "", nil, []string{`are of type "external_account"`}},
		{"a user", with(map[string]any{"type": "authorized_user"}), "", nil, []string{`are of type "authorized_user"`}},
		{"impersonation", with(map[string]any{"type": "impersonated_service_account"}), "", nil, []string{"only the key of a service account"}},
		{"an unknown type", with(map[string]any{"type": "http://127.0.0.1/"}), "", nil, []string{"type in it must be"}},
		{"a second type", strings.Replace(with(nil), "{", `{"type":"service_account","Type":"service_account",`, 1)[:60], "", nil, []string{"must be a JSON object"}},
		{"the last type counts", strings.TrimSuffix(with(nil), "}") + `,"type":"external_account"}`, "", nil, []string{`"external_account"`}},
		{"another issuer", with(map[string]any{"token_uri": "https://169.254.169.254/token"}), "", nil, []string{"token_uri in it must be https://oauth2.googleapis.com/token"}},
		{"an issuer that looks like it", with(map[string]any{"token_uri": "https://oauth2.googleapis.com@evil.example/token"}), "", nil, []string{"token_uri"}},
		{"an issuer below another", with(map[string]any{"token_uri": "https://oauth2.googleapis.com.evil.example/token"}), "", nil, []string{"token_uri"}},
		{"an issuer without TLS", with(map[string]any{"token_uri": "http://oauth2.googleapis.com/token"}), "", nil, []string{"token_uri"}},
		{"another universe", with(map[string]any{"universe_domain": "evil.example"}), "", nil, []string{"universe_domain"}},
		{"a header in the address", with(map[string]any{"client_email": "a@b.example\r\nX: y"}), "", nil, []string{"client_email"}},
		{"a header in the key's id", with(map[string]any{"private_key_id": "a\nb"}), "", nil, []string{"private_key_id"}},
		{"a path in the project", with(map[string]any{"project_id": "a/secrets/b"}), "", nil, []string{"project_id in it"}},
		{"no key", with(map[string]any{"private_key": nil}), "", nil, []string{"private_key in it must be a PEM block"}},
		{"a key of another sort", with(map[string]any{"private_key": keyPEM(t, curve)}), "", nil, []string{"must be an RSA key of 2048 bits"}},
		{"a short key", with(map[string]any{"private_key": keyPEM(t, short)}), "", nil, []string{"must be an RSA key of 2048 bits"}},
		{"no project at all", with(map[string]any{"project_id": nil}), "", nil, []string{`"project_id": must be given`}},
		{"the project's number", with(nil), "123456789012", nil, []string{`"project_id": must be the project's id and not its number`}},
		{"a path for the project", with(nil), "../other", nil, []string{`"project_id": must be the id`}},
		{"a place that is none", with(nil), "", []string{"europe/west1"}, []string{`"replication_locations": "europe/west1"`}},
		{
			"everything at once", with(map[string]any{"token_uri": "https://evil.example", "client_email": "x"}), "X", []string{"Y Z"},
			[]string{"token_uri", "client_email", `"project_id"`, `"replication_locations"`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := &cloud3sm.Config{Credentials: engines.Sensitive(test.credentials), ProjectID: test.project, Locations: test.locations}
			problems := c.Check()
			if len(problems) != len(test.want) {
				t.Fatalf("problems %q, want %d", problems, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(problems[i], want) || !strings.HasPrefix(problems[i], `field "`) {
					t.Errorf("problem %q, want %q in it", problems[i], want)
				}
				if strings.Contains(problems[i], "PRIVATE KEY") || strings.Contains(problems[i], "evil") {
					t.Errorf("%q tells what is in the credentials", problems[i])
				}
			}
		})
	}
}

func TestPlaceAndShown(t *testing.T) {
	tests := []struct {
		name   string
		config cloud3sm.Config
		place  string
		shown  map[string]any
	}{
		{"of the credentials", cloud3sm.Config{Credentials: engines.Sensitive(with(nil))}, "cloud3-sm/projects/coffer-tests",
			map[string]any{"credentials": destination.Mask}},
		{"named", cloud3sm.Config{Credentials: engines.Sensitive(with(nil)), ProjectID: "other-project", Locations: []string{"US-East1", "europe-west1", "us-east1"}},
			"cloud3-sm/projects/other-project",
			map[string]any{"credentials": destination.Mask, "project_id": "other-project", "replication_locations": []string{"europe-west1", "us-east1"}}},
		{"the server's own", cloud3sm.Config{ProjectID: "my-project"}, "cloud3-sm/projects/my-project", map[string]any{"project_id": "my-project"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := &test.config
			if problems := c.Check(); len(problems) > 0 {
				t.Fatal(problems)
			}
			if got := c.Location(); got != test.place {
				t.Errorf("place %q, want %q", got, test.place)
			}
			if got := c.Shown(); !reflect.DeepEqual(got, test.shown) {
				t.Errorf("shown as %v, want %v", got, test.shown)
			}
			if text := fmt.Sprintf("%v %+v", c, c); strings.Contains(text, "PRIVATE KEY") {
				t.Error("the configuration prints its key")
			}
		})
	}
}

// TestServersCredentials: what the configuration leaves out is in the file that the operator's environment names.
func TestServersCredentials(t *testing.T) {
	s := cloud3smtest.New(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		name, file, problem string
	}{
		{"a key", file("key", with(nil)+"\n"), ""},
		{"none named", "", "names no file"},
		{"none there", filepath.Join(dir, "missing"), "cannot be read"},
		{"another type", file("user", with(map[string]any{"type": "authorized_user"})), "authorized_user"},
		{"another file", file("link", "@"+filepath.Join(dir, "key")), "does not read"},
		{"another issuer", file("issuer", with(map[string]any{"token_uri": "https://evil.example/"})), "token_uri"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			env := s.Env()
			env.Getenv = func(name string) string {
				if name != "GOOGLE_APPLICATION_CREDENTIALS" {
					t.Errorf("it asks for %s", name)
				}
				return test.file
			}
			c := &cloud3sm.Config{ProjectID: cloud3smtest.Project}
			if problems := c.Check(); len(problems) > 0 {
				t.Fatal(problems)
			}
			d, err := cloud3sm.Type.Open(c, env)
			if test.problem != "" {
				if e := desttest.Fails(t, err, destination.BadRequest); !strings.Contains(e.Text, test.problem) || strings.Contains(e.Text, "PRIVATE") {
					t.Errorf("the text is %q", e.Text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			desttest.Write(t, d, item("one", "v"))
			if c.Credentials != "" {
				t.Error("the server's credentials are now in the configuration")
			}
		})
	}
}

func TestOperatorsAddress(t *testing.T) {
	s := cloud3smtest.New(t)
	for _, url := range []string{"ftp://127.0.0.1", "https://", "https://user@127.0.0.1", "https://127.0.0.1/path", "127.0.0.1:1", "https://127.0.0.1?q"} {
		env := s.Env()
		env.URL = url
		if _, err := cloud3sm.Type.Open(configured(nil), env); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
}

// FuzzCredentials: no credentials make it panic, and no text says what is in them.
func FuzzCredentials(f *testing.F) {
	f.Add(cloud3smtest.Credentials(nil))
	f.Add(cloud3smtest.Credentials(map[string]any{"type": "external_account"}))
	f.Add(`{"type":"service_account","private_key":"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}`)
	f.Add(`{"type":"service_account","private_key":1}`)
	f.Add("@file")
	f.Add("{")
	f.Fuzz(func(t *testing.T, text string) {
		c := &cloud3sm.Config{Credentials: engines.Sensitive(text), ProjectID: "my-project"}
		problems := c.Check()
		if again := c.Check(); !reflect.DeepEqual(again, problems) {
			t.Errorf("checked twice: %q, then %q", problems, again)
		}
		var in struct {
			Key string `json:"private_key"`
		}
		if json.Unmarshal([]byte(text), &in) == nil && len(in.Key) > 24 && strings.Contains(strings.Join(problems, " "), in.Key) {
			t.Error("a problem has the key in it")
		}
		if len(problems) == 0 && c.Credentials != "" && !strings.Contains(text, "service_account") {
			t.Error("credentials of no type are taken")
		}
	})
}
