//go:build e2e

package secretsync_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/kubernetes/kubernetestest"
)

// party is an API server that is asked the same as another one. It remembers what the last response said of a Secret.
type party struct {
	client     *http.Client
	url, token string
	uid, rv    string
}

// outcome is what clients go by.
type outcome struct {
	Status       int
	Kind, Reason string // of the response
	About        string // the kind that an error is about
	Allowed      bool   // of a review
	Type         string
	Data         map[string][]byte
	Same         bool // it has the version that was last seen
}

// ask makes a call. UID and VERSION in a body stand for those of the Secret that was last seen.
func (p *party) ask(t *testing.T, method, path, content, body string) outcome {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, strings.NewReader(strings.NewReplacer("UID", p.uid, "VERSION", p.rv).Replace(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	if body != "" {
		r.Header.Set("Content-Type", content)
	}
	resp, err := p.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Kind, Reason, Type string
		Metadata           struct{ UID, ResourceVersion string }
		Details            struct{ Kind string }
		Data               map[string][]byte
	}
	var review struct{ Status struct{ Allowed bool } }
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
	}
	_ = json.Unmarshal(text, &review) // of an error, status is a text
	out := outcome{
		Status: resp.StatusCode, Kind: s.Kind, Reason: s.Reason, About: s.Details.Kind, Allowed: review.Status.Allowed, Type: s.Type, Data: s.Data,
		Same: s.Metadata.ResourceVersion != "" && s.Metadata.ResourceVersion == p.rv,
	}
	if s.Kind == "Secret" && s.Metadata.ResourceVersion != "" {
		p.uid, p.rv = s.Metadata.UID, s.Metadata.ResourceVersion
	}
	return out
}

// compare asks the fake that other tests use, and Kubernetes' own API server, the same.
func (n *space) compare(t *testing.T) {
	const merge, plain = "application/merge-patch+json", "application/json"
	_ = n.Open(t).Close() // the Role applies
	fake := kubernetestest.New(t)
	fake.AddNamespace(n.name)
	bare := httptest.NewServer(fake) // without the contract, which no illegal request passes
	t.Cleanup(bare.Close)
	parties := map[string]*party{
		"own":  {client: n.Client, url: n.URL.String(), token: n.token},
		"fake": {client: &http.Client{}, url: bare.URL, token: kubernetestest.Token},
	}
	secrets := strings.TrimSuffix(n.path(""), "/")
	a := secrets + "/a"
	made := func(name, more string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q}%s}`, name, more)
	}
	large := base64.StdEncoding.EncodeToString(make([]byte, 1<<20))
	for _, step := range []struct{ what, method, path, content, body string }{
		{"none", "GET", a, "", ""},
		{"a patch of none", "PATCH", a, merge, `{"data":{"k":"dg=="}}`},
		{"a deletion of none", "DELETE", a, plain, `{"preconditions":{"uid":"x"}}`},
		{"a new one, dry", "POST", secrets + "?dryRun=All", plain, made("a", `,"data":{"k":"dg=="}`)},
		{"still none", "GET", a, "", ""},
		{"a new one", "POST", secrets, plain, made("a", `,"data":{"k":"dg=="}`)},
		{"again", "POST", secrets, plain, made("a", "")},
		{"again, dry", "POST", secrets + "?dryRun=All", plain, made("a", "")},
		{"it", "GET", a, "", ""},
		{"an illegal name", "POST", secrets, plain, made("A_", "")},
		{"a name too long", "POST", secrets, plain, made(strings.Repeat("a", 254), "")},
		{"no name", "POST", secrets, plain, made("", "")},
		{"an illegal data key", "POST", secrets, plain, made("b", `,"data":{"not legal":"dg=="}`)},
		{"a data key of two dots", "POST", secrets, plain, made("b", `,"data":{"..":"dg=="}`)},
		{"a data key that begins with two dots", "POST", secrets, plain, made("b", `,"data":{"..b":"dg=="}`)},
		{"an empty data key", "POST", secrets, plain, made("b", `,"data":{"":"dg=="}`)},
		{"data that are not base64", "POST", secrets, plain, made("b", `,"data":{"k":"!"}`)},
		{"an illegal label", "POST", secrets, plain, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","labels":{"a b":"c"}}}`},
		{"an illegal value of a label", "POST", secrets, plain, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b","labels":{"a":"-"}}}`},
		{"another kind", "POST", secrets, plain, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}`},
		{"no JSON", "POST", secrets, plain, `{`},
		{"TLS without its keys", "POST", secrets, plain, made("b", `,"type":"kubernetes.io/tls"`)},
		{"a registry without its key", "POST", secrets, plain, made("b", `,"type":"kubernetes.io/dockerconfigjson"`)},
		{"another type", "POST", secrets, plain, made("other", `,"type":"example.com/other"`)},
		{"as large as can be", "POST", secrets, plain, made("large", `,"data":{"k":"`+large+`"}`)},
		{"too large", "POST", secrets, plain, made("b", `,"data":{"k":"`+large+`","l":"dg=="}`)},
		{"it again", "GET", a, "", ""},
		{"a patch", "PATCH", a, merge, `{"metadata":{"uid":"UID","resourceVersion":"VERSION"},"data":{"k":"dw==","l":"dg=="}}`},
		{"a patch that changes nothing", "PATCH", a, merge, `{"metadata":{"uid":"UID","resourceVersion":"VERSION"},"data":{"k":"dw=="}}`},
		{"a patch that takes data away", "PATCH", a, merge, `{"metadata":{"uid":"UID","resourceVersion":"VERSION"},"data":{"k":null}}`},
		{"a patch of another version", "PATCH", a, merge, `{"metadata":{"uid":"UID","resourceVersion":"1"},"data":{"k":"dw=="}}`},
		{"a patch of another uid", "PATCH", a, merge, `{"metadata":{"uid":"00000000-0000-4000-8000-000000000000","resourceVersion":"VERSION"},"data":{"k":"dw=="}}`},
		{"a patch of another uid and version", "PATCH", a, merge, `{"metadata":{"uid":"00000000-0000-4000-8000-000000000000","resourceVersion":"1"},"data":{"k":"dw=="}}`},
		{"a patch of the type", "PATCH", a, merge, `{"type":"example.com/other"}`},
		{"a patch of the name", "PATCH", a, merge, `{"metadata":{"name":"b"}}`},
		{"a patch with an illegal key", "PATCH", a, merge, `{"data":{"not legal":"dg=="}}`},
		{"a patch with an illegal label", "PATCH", a, merge, `{"metadata":{"labels":{"a":"-"}}}`},
		{"a patch that is too large", "PATCH", a, merge, `{"data":{"m":"` + large + `"}}`},
		{"a patch that is none", "PATCH", a, merge, `[]`},
		{"a patch of no known kind", "PATCH", a, "text/plain", `{}`},
		{"a deletion of another uid", "DELETE", a, plain, `{"preconditions":{"uid":"00000000-0000-4000-8000-000000000000"}}`},
		{"a deletion of another version", "DELETE", a, plain, `{"preconditions":{"uid":"UID","resourceVersion":"1"}}`},
		{"a deletion", "DELETE", a, plain, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"UID","resourceVersion":"VERSION"}}`},
		{"none any more", "GET", a, "", ""},
		{"an immutable one", "POST", secrets, plain, made("a", `,"immutable":true,"data":{"k":"dg=="}`)},
		{"a patch of an immutable one", "PATCH", a, merge, `{"metadata":{"uid":"UID","resourceVersion":"VERSION"},"data":{"k":"dw=="}}`},
		{"a permission", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", plain, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"namespace":"` + n.name + `","verb":"patch","resource":"secrets"}}}`},
		{"a permission for all else", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", plain, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"namespace":"` + n.name + `","verb":"patch","resource":"pods"}}}`},
	} {
		want, got := parties["own"].ask(t, step.method, step.path, step.content, step.body), parties["fake"].ask(t, step.method, step.path, step.content, step.body)
		if x, y := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); x != y {
			t.Errorf("%s: Kubernetes answers %.300s\nthe fake %.300s", step.what, x, y)
		}
	}
	parties["own"].token, parties["fake"].token = "wrong", "wrong"
	want, got := parties["own"].ask(t, "GET", a, "", ""), parties["fake"].ask(t, "GET", a, "", "")
	if fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("another token: Kubernetes answers %+v, the fake %+v", want, got)
	}
}
