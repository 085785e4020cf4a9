// Package shelf is a destination of secret sync that lives in the measuring process.
package shelf

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
)

// Shelf is AWS Secrets Manager as far as a measurement needs it: it believes everybody and answers at once. Safe for concurrent
// use.
type Shelf struct {
	URL string

	mu      sync.Mutex
	regions map[string]*region
	arrived func(k *Secret, at time.Time)
	calls   int
}

// region is what a region has.
type region struct {
	secrets map[string]*Secret // by name, and by ARN
	order   []*Secret
}

// Secret is one that was created.
type Secret struct {
	ARN, Name string
	region    string
	tags      json.RawMessage
	values    map[string]string   // by version
	labels    map[string][]string // likewise
}

// Start starts a shelf that lives as long as the scope.
func Start(s *run.Scope) *Shelf {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.Check(err)
	f := &Shelf{URL: "http://" + l.Addr().String(), regions: map[string]*region{}}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: f}
	go func() { _ = server.Serve(l) }()
	s.Cleanup(func() { server.Close() })
	return f
}

// Watch has f called whenever a secret has a new value; nil: nothing is called. f must not call the shelf.
func (f *Shelf) Watch(arrived func(k *Secret, at time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived = arrived
}

// Called returns how many calls there were since the last time.
func (f *Shelf) Called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.calls
	f.calls = 0
	return n
}

// asked is what the calls that are known here may bring.
type asked struct {
	SecretID      string `json:"SecretId"`
	Name          string
	Value         string `json:"SecretString"`
	Token         string `json:"ClientRequestToken"`
	Version       string `json:"VersionId"`
	Tags          json.RawMessage
	VersionStages []string
	VersionStage  string
	To            string `json:"MoveToVersionId"`
	NextToken     string
}

// ServeHTTP implements http.Handler.
func (f *Shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in asked
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	scope := strings.Split(r.Header.Get("Authorization"), "/") // the key, the day, the region
	if len(scope) < 3 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	out, code := f.do(scope[2], action, &in)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if code != "" {
		w.WriteHeader(http.StatusBadRequest)
		out = map[string]string{"__type": code, "Message": code}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (f *Shelf) do(where, action string, in *asked) (out any, code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	at := f.regions[where]
	if at == nil {
		at = &region{secrets: map[string]*Secret{}}
		f.regions[where] = at
	}
	k := at.secrets[in.SecretID]
	switch {
	case action == "ListSecrets":
		return at.list(in.NextToken), ""
	case action == "CreateSecret" && at.secrets[in.Name] != nil:
		return nil, "ResourceExistsException"
	case action == "CreateSecret":
		k = &Secret{
			ARN: "arn:aws:secretsmanager:" + where + ":123456789012:secret:" + in.Name + "-AAAAAA", Name: in.Name, region: where, tags: in.Tags,
			values: map[string]string{in.Token: in.Value}, labels: map[string][]string{in.Token: {"AWSCURRENT"}},
		}
		at.secrets[k.ARN], at.secrets[k.Name], at.order = k, k, append(at.order, k)
		f.tell(k)
		return map[string]any{"ARN": k.ARN, "Name": k.Name, "VersionId": in.Token}, ""
	case k == nil:
		return nil, "ResourceNotFoundException"
	case action == "DescribeSecret":
		return k.show("VersionIdsToStages"), ""
	case action == "GetSecretValue":
		return map[string]any{"ARN": k.ARN, "Name": k.Name, "VersionId": in.Version, "SecretString": k.values[in.Version]}, ""
	case action == "PutSecretValue":
		for id, labels := range k.labels {
			k.labels[id] = slices.DeleteFunc(labels, func(l string) bool { return slices.Contains(in.VersionStages, l) })
		}
		k.values[in.Token], k.labels[in.Token] = in.Value, in.VersionStages
		return map[string]any{"ARN": k.ARN, "Name": k.Name, "VersionId": in.Token, "VersionStages": in.VersionStages}, ""
	case action == "UpdateSecretVersionStage":
		k.values = map[string]string{in.To: k.values[in.To]}
		k.labels = map[string][]string{in.To: append(k.labels[in.To], in.VersionStage)}
		f.tell(k)
		return map[string]any{"ARN": k.ARN, "Name": k.Name}, ""
	}
	return nil, "UnknownOperationException"
}

func (f *Shelf) tell(k *Secret) {
	if f.arrived != nil {
		f.arrived(k, time.Now())
	}
}

func (k *Secret) show(labels string) map[string]any {
	out := map[string]any{"ARN": k.ARN, "Name": k.Name, labels: k.labels}
	if k.tags != nil {
		out["Tags"] = k.tags
	}
	return out
}

func (f *region) list(after string) any {
	const page = 100
	from, _ := strconv.Atoi(after) // "" is the beginning
	to := min(from+page, len(f.order))
	all := []any{}
	for _, k := range f.order[min(from, to):to] {
		all = append(all, k.show("SecretVersionsToStages"))
	}
	out := map[string]any{"SecretList": all}
	if to < len(f.order) {
		out["NextToken"] = strconv.Itoa(to)
	}
	return out
}
