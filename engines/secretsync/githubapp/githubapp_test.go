package githubapp_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
)

func TestURLs(t *testing.T) {
	for text, want := range map[string]struct{ normal, api string }{
		"":                                   {"", ""},
		"https://github.com":                 {"", ""},
		"https://API.github.com/":            {"", ""},
		"https://GitHub.Corp.example/":       {"https://github.corp.example", "https://github.corp.example/api/v3/"},
		" https://github.corp.example:443 ":  {"https://github.corp.example", "https://github.corp.example/api/v3/"},
		"https://github.corp.example/api/v3": {"https://github.corp.example", "https://github.corp.example/api/v3/"},
		"https://10.1.2.3:8443":              {"https://10.1.2.3:8443", "https://10.1.2.3:8443/api/v3/"},
		"https://[fd12::1]":                  {"https://[fd12::1]", "https://[fd12::1]/api/v3/"},
		"https://octo.ghe.com":               {"https://octo.ghe.com", "https://api.octo.ghe.com/"},
		"https://api.octo.ghe.com/":          {"https://octo.ghe.com", "https://api.octo.ghe.com/"},
	} {
		normal, problem := githubapp.NormalizeURL(text)
		if normal != want.normal || problem != "" || githubapp.APIURL(normal) != want.api {
			t.Errorf("%q: %q (%s), API %q, want %+v", text, normal, problem, githubapp.APIURL(normal), want)
		}
		if again, problem := githubapp.NormalizeURL(normal); again != normal || problem != "" {
			t.Errorf("%q: the usual form %q becomes %q (%s)", text, normal, again, problem)
		}
	}
	for _, text := range []string{
		"http://github.corp.example", "github.corp.example", "ftp://github.corp.example", "https://", "https://user:pw@github.corp.example",
		"https://github.corp.example/other", "https://github.corp.example?x=1", "https://github.corp.example#x", "https://github.corp.example.",
		"https://a b", "https://a.b.ghe.com", "https://.ghe.com", "https://git\nhub.corp", "https://" + strings.Repeat("a", 300),
		"https://github.corp.example/%2e%2e", "https://github.corp.example:port",
	} {
		if normal, problem := githubapp.NormalizeURL(text); problem == "" || normal != "" {
			t.Errorf("%q is accepted as %q", text, normal)
		} else if strings.Contains(problem, "pw") {
			t.Errorf("%q: the problem %q has the password", text, problem)
		}
	}
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestKeys(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for kind, der := range map[string][]byte{"RSA PRIVATE KEY": x509.MarshalPKCS1PrivateKey(key), "PRIVATE KEY": pkcs8} {
		got, err := githubapp.ParseKey(encode(kind, der))
		if err != nil || !got.Equal(key) {
			t.Fatalf("%s: %v", kind, err)
		}
		print := githubapp.Fingerprint(got)
		if want == "" {
			want = print
		}
		if print != want || !strings.HasPrefix(print, "SHA256:") || len(print) != len("SHA256:")+44 {
			t.Errorf("%s: the fingerprint is %q, want %q", kind, print, want)
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "a text": "the-private-key", "a file": "@key.pem", "the public key": encode("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&key.PublicKey)),
	} {
		if _, err := githubapp.ParseKey(text); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
