package kubernetes_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes/kubernetestest"
)

func TestCheck(t *testing.T) {
	s := kubernetestest.New(t)
	for name, tt := range map[string]struct {
		change func(*kubernetes.Config)
		want   []string // a part of each problem, in order
	}{
		"as it is":              {func(*kubernetes.Config) {}, nil},
		"nothing at all":        {func(c *kubernetes.Config) { *c = kubernetes.Config{} }, []string{"api_server must be given", "token must be given", "namespace must be given"}},
		"a certificate":         {func(c *kubernetes.Config) { c.CACert = s.CA }, nil},
		"a file":                {func(c *kubernetes.Config) { c.CACert, c.Token = "@ca.pem", "@token" }, []string{"ca_cert must be certificates in PEM", "token must be the credential itself"}},
		"without TLS":           {func(c *kubernetes.Config) { c.APIServer = "http://cluster.example.com" }, []string{"api_server must be a URL that begins with https://"}},
		"with a password":       {func(c *kubernetes.Config) { c.APIServer = "https://a:b@cluster.example.com" }, []string{"api_server"}},
		"a namespace":           {func(c *kubernetes.Config) { c.Namespace = "kube/system" }, []string{"namespace must be"}},
		"a type":                {func(c *kubernetes.Config) { c.SecretType = "a b" }, []string{"secret_type must be"}},
		"a token of a cluster":  {func(c *kubernetes.Config) { c.SecretType = "kubernetes.io/service-account-token" }, []string{"secret_type must not be"}},
		"a newline in a header": {func(c *kubernetes.Config) { c.Token = "a\nb" }, []string{"token must be printable"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tt.change(&c)
			got := c.Check()
			if len(got) != len(tt.want) {
				t.Fatalf("%q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("%q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	a, b := config(), config()
	a.APIServer = "https://CLUSTER.example.com:6443/"
	a.Check()
	if a.Location() != b.Location() || a.Owner() != b.Owner() {
		t.Errorf("%s is not %s", a.Location(), b.Location())
	}
	b.Namespace = "other"
	if a.Location() == b.Location() || a.Owner() != b.Owner() {
		t.Errorf("%s is %s", a.Location(), b.Location())
	}
	b = config()
	b.CACert = kubernetestest.New(t).CA
	if a.Location() != b.Location() || a.Owner() == b.Owner() {
		t.Error("another certificate is the same owner")
	}
	b = config()
	b.APIServer = "https://evil.example.com:6443"
	if a.Location() == b.Location() || a.Owner() == b.Owner() {
		t.Error("another server is the same owner")
	}
	if got := a.Shown(); !reflect.DeepEqual(got, map[string]any{"api_server": "https://CLUSTER.example.com:6443", "namespace": "shop", "token": destination.Mask}) {
		t.Errorf("shown as %v", got)
	}
}

func TestNames(t *testing.T) {
	rules := kubernetes.Type.Rules
	for text, want := range map[string]string{
		"vault/kv_1234/Team/My App": "vault-kv-1234-team-my-app", "a.b": "a.b", "a..b": "a--b", ".a-": "x-a-x", "-": "x-x", "a.-b": "a--b", "ü": "x-x", "": "",
	} {
		got := rules.Normalise(text)
		if got != want || text != "" && rules.CheckName(got) != "" {
			t.Errorf("%q becomes %q (%s), want %q", text, got, rules.CheckName(got), want)
		}
	}
	for _, tag := range [][2]string{{"", "v"}, {"a b", "v"}, {"a", "b c"}, {"a", strings.Repeat("v", 64)}, {"app.kubernetes.io/managed-by", "x"}, {"A.b/c", "v"}, {"/a", "v"}} {
		if rules.CheckTag(tag[0], tag[1]) == "" {
			t.Errorf("the label %q is legal", tag)
		}
	}
	for _, tag := range [][2]string{{"team", "a"}, {"example.com/team", ""}, {"Team_1", "A.b-c"}} {
		if p := rules.CheckTag(tag[0], tag[1]); p != "" {
			t.Errorf("the label %q: %s", tag, p)
		}
	}
}
