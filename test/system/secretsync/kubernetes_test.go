//go:build e2e

package secretsync_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/apiserver"
)

// documentedRole returns the Role that docs/sync-destinations.md wants for the destination.
func documentedRole(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "sync-destinations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "\nType `kubernetes`")
	_, after, _ = strings.Cut(after, "\n```yaml\n")
	role, _, found := strings.Cut(after, "```")
	if !found || !strings.Contains(role, "kind: Role\n") || !strings.Contains(role, "namespace: shop}") {
		t.Fatalf("docs/sync-destinations.md does not say which Role Kubernetes has to have: %q", role)
	}
	return role
}

// cluster is Kubernetes' own API server.
type cluster struct {
	*apiserver.Server
	role   string // the Role that docs/sync-destinations.md wants, YAML
	spaces int    // namespaces made
}

// space is a namespace with a service account that has the documented Role, and faults in front of the API server.
type space struct {
	*cluster
	name   string
	token  string
	front  *httptest.Server
	faults *desttest.Faults
}

func (k *cluster) newSpace(t *testing.T) *space {
	t.Helper()
	k.spaces++
	n := &space{cluster: k, name: fmt.Sprintf("shop-%d", k.spaces)}
	k.NewNamespace(t, n.name, "coffer-sync")
	n.putRole(t, http.MethodPost, "", k.role)
	k.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+n.name+"/rolebindings", object{
		"metadata": object{"name": "coffer-sync"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "coffer-sync"},
		"subjects": []object{{"kind": "ServiceAccount", "name": "coffer-sync", "namespace": n.name}},
	}, nil)
	n.token = k.NewToken(t, n.name, "coffer-sync", 365*24*time.Hour)
	n.faults = &desttest.Faults{
		Next: n.proxy(nil),
		Reads: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodGet || strings.HasPrefix(r.URL.Path, "/apis/authorization")
		},
		Throttled: func(w http.ResponseWriter, _ *http.Request, after time.Duration) {
			w.Header().Set("Retry-After", fmt.Sprint(int(after.Seconds())))
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)
		},
		Rejected: n.proxy(func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong") }).ServeHTTP,
	}
	n.front = httptest.NewUnstartedServer(n.faults)
	n.front.Config.ErrorLog = log.New(io.Discard, "", 0) // of calls that are cut off
	n.front.StartTLS()
	t.Cleanup(n.front.Close)
	return n
}

func (n *space) putRole(t *testing.T, method, path, role string) {
	t.Helper()
	role = strings.Replace(role, "namespace: shop}", "namespace: "+n.name+"}", 1)
	n.Do(t, method, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+n.name+"/roles"+path, role, nil)
}

// proxy passes requests on to the API server.
func (n *space) proxy(change func(*http.Request)) http.Handler {
	return &httputil.ReverseProxy{
		Transport: n.Client.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(n.URL)
			if change != nil {
				change(r.Out)
			}
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

// config is that of the API server itself.
func (n *space) config() kubernetes.Config {
	return kubernetes.Config{APIServer: n.URL.String(), CACert: n.CA, Token: engines.Sensitive(n.token), Namespace: n.name}
}

func openKubernetes(t *testing.T, c kubernetes.Config) destination.Destination {
	t.Helper()
	if problems := c.Check(); problems != nil {
		t.Fatal(problems)
	}
	d, err := kubernetes.Type.Open(&c, destination.Env{
		Client: &http.Client{}, Dial: new(net.Dialer).DialContext, TLS: &tls.Config{MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Open waits until the API server has noticed the Role.
func (n *space) Open(t *testing.T) destination.Destination {
	t.Helper()
	c := n.config()
	c.APIServer, c.CACert = n.front.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.front.Certificate().Raw}))
	d := openKubernetes(t, c)
	harness.Await(t, "the Role to apply", 20*time.Second, func() error { return failedCheck(d.Verify(t.Context())) })
	return d
}

func failedCheck(checks []destination.Check) error {
	for _, c := range checks {
		if !c.OK && !c.Unknown {
			return errors.New(c.Name + ": " + c.Text)
		}
	}
	return nil
}

func (n *space) path(name string) string { return "/api/v1/namespaces/" + n.name + "/secrets/" + name }

func (n *space) Put(t *testing.T, name, value string) {
	t.Helper()
	n.apply(t, name, object{"data": map[string][]byte{"value": []byte(value)}})
}

// apply replaces a Secret, or creates it.
func (n *space) apply(t *testing.T, name string, fields object) {
	t.Helper()
	meta, ok := fields["metadata"].(object)
	if !ok {
		meta = object{}
	}
	meta["name"] = name
	fields["metadata"], fields["kind"], fields["apiVersion"] = meta, "Secret", "v1"
	method, path := http.MethodPut, n.path(name)
	if _, ok := n.secret(t, name); !ok {
		method, path = http.MethodPost, n.path("")
	}
	n.Do(t, method, strings.TrimSuffix(path, "/"), fields, nil)
}

// shown is a Secret as the API server shows it.
type shown struct {
	Metadata struct {
		Labels        map[string]string
		Annotations   map[string]string
		ManagedFields []struct{ Manager string }
	}
	Type string
	Data map[string][]byte
}

func (n *space) secret(t *testing.T, name string) (shown, bool) {
	t.Helper()
	var s shown
	status, said := n.Try(t, http.MethodGet, n.path(name), "", &s)
	if status != http.StatusOK && status != http.StatusNotFound {
		t.Fatalf("status %d: %s", status, said)
	}
	return s, status == http.StatusOK
}

func (n *space) Get(t *testing.T, name string) (value string, ok bool) {
	t.Helper()
	s, ok := n.secret(t, name)
	if ok && len(s.Data) != 1 {
		t.Errorf("%s has %d data keys", name, len(s.Data))
	}
	return string(s.Data["value"]), ok
}

func (n *space) Fail(f desttest.Fault) { n.faults.Set(f) }

func (n *space) Secrets() []string { return []string{n.token} }

// TestKubernetes runs the suite, and what is Kubernetes' own, on its API server, with a token of a service account that may do
// what docs/sync-destinations.md says.
func TestKubernetes(t *testing.T) {
	k := &cluster{Server: apiserver.Start(t), role: documentedRole(t)}
	t.Run("suite", func(t *testing.T) {
		desttest.Run(t, kubernetes.Type, func(t *testing.T) desttest.Fake { return k.newSpace(t) })
	})
	whole := func(name, value string) destination.Item {
		return destination.Item{Name: name, Value: []byte(value), Object: true, OwnerTag: "mark", Token: "0"}
	}
	for what, test := range map[string]func(*testing.T, *space, destination.Destination){
		"data keys": func(t *testing.T, n *space, d destination.Destination) {
			for _, value := range []string{`{"password":"the-value","tls.crt":"line\nline","user":"shop"}`, `{"password":"<a&b>"}`, `{}`, `{"user":"shop"}`} {
				held := desttest.Write(t, d, whole("app", value))
				f := desttest.Read(t, d, "app")
				if !f.Known || string(f.Value) != value || f.OwnerTag != "mark" || f.ID != held.ID || f.Version != held.Version {
					t.Errorf("%s is read as %s, %+v", value, f.Value, f)
				}
			}
			s, _ := n.secret(t, "app")
			if len(s.Data) != 1 || string(s.Data["user"]) != "shop" || s.Type != "Opaque" || s.Metadata.Labels["app.kubernetes.io/managed-by"] != "coffer" || s.Metadata.ManagedFields[0].Manager != "coffer" {
				t.Errorf("it is %+v", s)
			}
		},
		"adopted": func(t *testing.T, n *space, d destination.Destination) {
			n.apply(t, "app", object{
				"type": "kubernetes.io/basic-auth", "stringData": object{"username": "u", "password": "p"},
				"metadata": object{"labels": object{"team": "a", "old": "x"}, "annotations": object{"note": "n"}},
			})
			f := desttest.Read(t, d, "app")
			if !f.Known || string(f.Value) != `{"password":"p","username":"u"}` || f.OwnerTag != "" {
				t.Errorf("read as %s, %+v", f.Value, f)
			}
			it := whole("app", `{"username":"v"}`)
			it.Tags, it.OldTags = map[string]string{"stage": "test", "example.com/zone": "1"}, []string{"old"}
			if _, err := d.Write(t.Context(), it, f); err != nil {
				t.Fatal(err)
			}
			s, _ := n.secret(t, "app")
			labels, _ := json.Marshal(s.Metadata.Labels)
			if string(labels) != `{"app.kubernetes.io/managed-by":"coffer","example.com/zone":"1","stage":"test","team":"a"}` ||
				s.Type != "kubernetes.io/basic-auth" || s.Metadata.Annotations["note"] != "n" || len(s.Data) != 1 {
				t.Errorf("it is %+v", s)
			}
		},
		"types": func(t *testing.T, n *space, _ destination.Destination) {
			c := n.config()
			c.SecretType = "kubernetes.io/tls"
			d := openKubernetes(t, c)
			defer d.Close()
			if err := failedCheck(d.Verify(t.Context())); err != nil {
				t.Error(err)
			}
			_, err := d.Write(t.Context(), whole("cert", `{"a":"the-value"}`), destination.Found{Name: "cert"})
			if e := desttest.Fails(t, err, destination.BadRequest, n.token); !strings.Contains(e.Text, "type") {
				t.Errorf("%+v", e)
			}
			desttest.Write(t, d, whole("cert", `{"tls.crt":"c","tls.key":"k"}`))
			if s, _ := n.secret(t, "cert"); s.Type != "kubernetes.io/tls" || len(s.Data) != 2 {
				t.Errorf("it is %+v", s)
			}
		},
		"what cannot be changed": func(t *testing.T, n *space, d destination.Destination) {
			n.apply(t, "fixed", object{"immutable": true, "stringData": object{"a": "b"}})
			_, err := d.Write(t.Context(), whole("fixed", `{"a":"the-value"}`), desttest.Read(t, d, "fixed"))
			if e := desttest.Fails(t, err, destination.BadRequest, n.token); !strings.Contains(e.Text, "immutable") {
				t.Errorf("%+v", e)
			}
			n.apply(t, "held", object{"metadata": object{"finalizers": []string{"example.com/wait"}}})
			if err := d.Delete(t.Context(), desttest.Read(t, d, "held")); err != nil {
				t.Fatal(err)
			}
			_, err = d.Write(t.Context(), whole("held", `{"a":"the-value"}`), desttest.Read(t, d, "held"))
			desttest.Fails(t, err, destination.Recovering, n.token)
			n.apply(t, "held", object{"metadata": object{"finalizers": []string{}}})
			if f := desttest.Read(t, d, "held"); f.State != destination.Absent {
				t.Errorf("found %+v", f)
			}
		},
		"a full namespace": func(t *testing.T, n *space, d destination.Destination) {
			quotas, quota := "/api/v1/namespaces/"+n.name+"/resourcequotas", object{"metadata": object{"name": "few"}, "spec": object{"hard": object{"count/secrets": "0"}}}
			n.Do(t, http.MethodPost, quotas, quota, nil)
			quota["status"] = object{"hard": object{"count/secrets": "0"}, "used": object{"count/secrets": "0"}} // by what counts in a whole cluster
			n.Do(t, http.MethodPut, quotas+"/few/status", quota, nil)
			harness.Await(t, "the quota to apply", 20*time.Second, func() error {
				if err := failedCheck(d.Verify(t.Context())); err == nil || !strings.Contains(err.Error(), "ResourceQuota") {
					return fmt.Errorf("verify: %v", err)
				}
				return nil
			})
			_, err := d.Write(t.Context(), whole("app", `{"a":"the-value"}`), destination.Found{Name: "app"})
			desttest.Fails(t, err, destination.Quota, n.token)
		},
		"a name that is made anew": func(t *testing.T, n *space, d destination.Destination) {
			desttest.Write(t, d, whole("app", `{"a":"the-value"}`))
			was := desttest.Read(t, d, "app")
			n.Do(t, http.MethodDelete, n.path("app"), nil, nil)
			_, err := d.Write(t.Context(), whole("app", `{"a":"the-value-2"}`), was)
			desttest.Fails(t, err, destination.Changed, n.token)
			n.Put(t, "app", "theirs")
			_, err = d.Write(t.Context(), whole("app", `{"a":"the-value-2"}`), was)
			desttest.Fails(t, err, destination.Changed, n.token)
			desttest.Fails(t, d.Delete(t.Context(), was), destination.Changed, n.token)
			if got, _ := n.Get(t, "app"); got != "theirs" {
				t.Errorf("it is %q", got)
			}
		},
		"a namespace that is not there": func(t *testing.T, n *space, _ destination.Destination) {
			rbac := "/apis/rbac.authorization.k8s.io/v1/"
			n.Do(t, http.MethodPost, rbac+"clusterroles", object{"metadata": object{"name": n.name}, "rules": []object{{"apiGroups": []string{""}, "resources": []string{"secrets"}, "verbs": []string{"*"}}}}, nil)
			n.Do(t, http.MethodPost, rbac+"clusterrolebindings", object{
				"metadata": object{"name": n.name}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": n.name},
				"subjects": []object{{"kind": "ServiceAccount", "name": "coffer-sync", "namespace": n.name}},
			}, nil)
			c := n.config()
			c.Namespace = "none"
			d := openKubernetes(t, c)
			defer d.Close()
			harness.Await(t, "the ClusterRole to apply", 20*time.Second, func() error {
				if err := failedCheck(d.Verify(t.Context())); err == nil || err.Error() != "create: the namespace does not exist" {
					return fmt.Errorf("verify: %v", err)
				}
				return nil
			})
			_, err := d.Write(t.Context(), whole("app", `{"a":"the-value"}`), destination.Found{Name: "app"})
			desttest.Fails(t, err, destination.NoLocation, n.token)
		},
		"a namespace that ends": func(t *testing.T, n *space, d destination.Destination) {
			desttest.Write(t, d, whole("app", `{"a":"the-value"}`))
			n.Do(t, http.MethodDelete, "/api/v1/namespaces/"+n.name, nil, nil)
			_, err := d.Write(t.Context(), whole("new", `{"a":"the-value"}`), destination.Found{Name: "new"})
			desttest.Fails(t, err, destination.NoLocation, n.token)
		},
		"permissions that are not there": func(t *testing.T, n *space, _ destination.Destination) {
			c := n.config()
			c.Namespace = "default"
			d := openKubernetes(t, c)
			defer d.Close()
			_, err := d.Read(t.Context(), "app")
			desttest.Fails(t, err, destination.Denied, n.token)
			_, err = d.Write(t.Context(), whole("app", `{"a":"the-value"}`), destination.Found{Name: "app"})
			desttest.Fails(t, err, destination.Denied, n.token)
			if err := failedCheck(d.Verify(t.Context())); err == nil || !strings.HasPrefix(err.Error(), "read: ") {
				t.Errorf("verify: %v", err)
			}
			c.Namespace, c.Token = n.name, "eyJhbGciOiJub25lIn0.e30.wrong"
			d = openKubernetes(t, c)
			defer d.Close()
			if err := failedCheck(d.Verify(t.Context())); err == nil || !strings.HasPrefix(err.Error(), "credentials: ") {
				t.Errorf("verify: %v", err)
			}
		},
		"each verb of the Role is needed": func(t *testing.T, n *space, d destination.Destination) {
			before, after, _ := strings.Cut(n.role, "verbs: [")
			list, after, _ := strings.Cut(after, "]")
			verbs := strings.Split(list, ", ")
			checks := map[string]string{"get": "read", "list": "list", "create": "create", "patch": "write", "delete": "delete"}
			if len(verbs) != len(checks) {
				t.Fatalf("the Role of docs/sync-destinations.md has the verbs %q", list)
			}
			for i, verb := range verbs {
				rest := strings.Join(slices.Delete(slices.Clone(verbs), i, i+1), ", ")
				n.putRole(t, http.MethodPut, "/coffer-sync", before+"verbs: ["+rest+"]"+after)
				harness.Await(t, "the Role without "+verb+" to apply", 20*time.Second, func() error {
					if err := failedCheck(d.Verify(t.Context())); err == nil || !strings.HasPrefix(err.Error(), checks[verb]+": ") || !strings.Contains(err.Error(), verb) {
						return fmt.Errorf("verify: %v", err)
					}
					return nil
				})
			}
		},
		"a token that expires": func(t *testing.T, n *space, _ destination.Destination) {
			c := n.config()
			c.Token = engines.Sensitive(n.NewToken(t, n.name, "coffer-sync", time.Hour))
			d := openKubernetes(t, c)
			defer d.Close()
			if err := failedCheck(d.Verify(t.Context())); err == nil || !strings.HasPrefix(err.Error(), "expiry: ") {
				t.Errorf("verify: %v", err)
			}
		},
		"more Secrets than a page of the list": func(t *testing.T, n *space, _ destination.Destination) {
			d := openKubernetes(t, n.config())
			defer d.Close()
			const names = 501
			var all sync.WaitGroup
			for first := range 8 {
				all.Go(func() {
					for i := first; i < names; i += 8 {
						name := fmt.Sprint("app-", i)
						if _, err := d.Write(t.Context(), whole(name, `{"a":"the-value"}`), destination.Found{Name: name}); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			seen := map[string]bool{}
			for f, err := range d.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if f.OwnerTag != "mark" || f.ID == "" || f.Version == "" {
					t.Errorf("listed %+v", f)
				}
				seen[f.Name] = true
			}
			if len(seen) != names {
				t.Errorf("%d names are listed", len(seen))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := k.newSpace(t)
			d := n.Open(t)
			defer d.Close()
			test(t, n, d)
		})
	}
	t.Run("the fake is like it", func(t *testing.T) { k.newSpace(t).compare(t) })
	t.Run("a server", func(t *testing.T) { k.newSpace(t).serve(t) })
}

// serve has a server sync to the API server itself, whose certificate is that of ca_cert.
func (n *space) serve(t *testing.T) {
	_ = n.Open(t).Close() // the Role applies
	c := harness.NewCluster(t, 1, harness.Options{Prefix: "kubernetes", Config: "sync {\n  allow_private_addresses = true\n}"})
	bao := newBao(t, c)
	write := func(path string, data object) object {
		t.Helper()
		out, err := bao.Logical().WriteWithContext(t.Context(), path, data)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if out == nil {
			return nil
		}
		return out.Data
	}
	arrives := func(want string) {
		t.Helper()
		harness.Await(t, "the Secret to be "+want, patient, func() error {
			s, _ := n.secret(t, "app")
			if data, _ := json.Marshal(s.Data); string(data) != want {
				return fmt.Errorf("it is %s", data)
			}
			return nil
		})
	}
	const destination = "sys/sync/destinations/kubernetes/shop"
	write("sys/mounts/kv", object{"type": "kv", "options": object{"version": "2"}})
	write(destination, object{
		"api_server": n.URL.String(), "ca_cert": n.CA, "token": n.token, "namespace": n.name, "secret_name_template": "{{ .SecretPath }}",
		"allowed_ports": []string{n.URL.Port()}, "allowed_ipv4_addresses": []string{"127.0.0.0/8"},
	})
	checks, _ := write(destination+"/verify", nil)["checks"].([]any)
	for _, c := range checks {
		if c.(object)["result"] != "ok" {
			t.Errorf("verify: %v", c)
		}
	}
	if len(checks) < 8 {
		t.Errorf("verify: %v", checks)
	}
	write("kv/data/app", object{"data": object{"user": "shop", "port": 5432}})
	write(destination+"/associations/set", object{"mount": "kv", "secret_name": "app"})
	arrives(`{"port":"NTQzMg==","user":"c2hvcA=="}`)
	write("kv/data/app", object{"data": object{"user": "cart"}})
	arrives(`{"user":"Y2FydA=="}`)
	if _, err := bao.Logical().DeleteWithContext(t.Context(), "kv/data/app"); err != nil {
		t.Fatal(err)
	}
	arrives("null")
	if strings.Contains(c.Nodes[0].Log(), n.token) {
		t.Error("the log has the token")
	}
}
