package kubernetestest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const (
	pageSize  = 50 // less than is asked for
	maxSecret = 1 << 20
)

// fail answers a Status. kind is the resource that it is about.
func fail(w http.ResponseWriter, status int, reason, kind, message string) {
	desttest.Respond(w, status, map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "message": message, "reason": reason,
		"details": map[string]any{"kind": kind}, "code": status,
	})
}

// ServeHTTP implements http.Handler, without the faults and the contract.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Receive(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token != Token && token != ReadOnly {
		fail(w, http.StatusUnauthorized, "Unauthorized", "", "Unauthorized")
		return
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	allowed := func(verb string) bool { return token == Token || verb == "get" || verb == "list" }
	if r.URL.Path == reviews && r.Method == http.MethodPost {
		review(w, r, allowed)
		return
	}
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api v1 namespaces <ns> secrets [<name>]
	if len(segments) < 5 || len(segments) > 6 || !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") || segments[4] != "secrets" {
		http.NotFound(w, r)
		return
	}
	namespace, name := segments[3], ""
	if len(segments) == 6 {
		name = segments[5]
	}
	if !allowed(verb) {
		fail(w, http.StatusForbidden, "Forbidden", "secrets", "secrets is forbidden: User cannot "+verb+" resource \"secrets\"")
		return
	}
	now := s.namespaces[namespace][name]
	switch {
	case name == "" && r.Method == http.MethodGet:
		s.list(w, r, namespace)
	case name == "" && r.Method == http.MethodPost:
		s.create(w, r, namespace)
	case now == nil:
		fail(w, http.StatusNotFound, "NotFound", "secrets", fmt.Sprintf("secrets %q not found", name))
	case r.Method == http.MethodGet:
		desttest.Respond(w, http.StatusOK, now.show(true))
	case r.Method == http.MethodPatch:
		s.patch(w, r, namespace, now)
	case r.Method == http.MethodDelete:
		s.remove(w, r, namespace, now)
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "", "the server does not allow this method")
	}
}

func review(w http.ResponseWriter, r *http.Request, allowed func(string) bool) {
	var in struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			ResourceAttributes struct{ Namespace, Verb, Resource, Group string } `json:"resourceAttributes"`
		} `json:"spec"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.Kind != "SelfSubjectAccessReview" || in.APIVersion != "authorization.k8s.io/v1" || in.Spec.ResourceAttributes.Verb == "" {
		fail(w, http.StatusBadRequest, "BadRequest", "", "not a review")
		return
	}
	a := in.Spec.ResourceAttributes
	desttest.Respond(w, http.StatusCreated, map[string]any{
		"kind": in.Kind, "apiVersion": in.APIVersion, "metadata": map[string]any{}, "spec": in.Spec,
		"status": map[string]any{"allowed": a.Resource == "secrets" && a.Group == "" && allowed(a.Verb)},
	})
}

// show is a Secret as it is answered.
func (now *Secret) show(values bool) map[string]any {
	meta := map[string]any{
		"name": now.Name, "uid": now.UID, "resourceVersion": now.Version, "creationTimestamp": "2026-01-02T03:04:05Z", "labels": now.Labels, "annotations": now.Annotations,
	}
	for _, field := range []string{"labels", "annotations"} {
		if len(meta[field].(map[string]string)) == 0 {
			delete(meta, field)
		}
	}
	if now.deleting {
		meta["deletionTimestamp"] = "2026-01-02T03:04:06Z"
	}
	if !values {
		return map[string]any{"metadata": meta}
	}
	out := map[string]any{"kind": "Secret", "apiVersion": "v1", "metadata": meta, "type": now.Type}
	if now.Immutable {
		out["immutable"] = true
	}
	if len(now.Data) > 0 {
		out["data"] = now.Data
	}
	return out
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, namespace string) {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		s.t.Error("Secrets are listed with their values")
	}
	names := slices.Sorted(maps.Keys(s.namespaces[namespace]))
	from := 0
	if text := r.URL.Query().Get("continue"); text != "" {
		from, _ = strconv.Atoi(text)
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if limit == 0 || limit > pageSize {
		limit = pageSize
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	to := min(from+limit, len(names))
	if to < len(names) {
		meta["continue"] = strconv.Itoa(to)
	}
	items := []any{}
	for _, name := range names[min(from, to):to] {
		items = append(items, s.namespaces[namespace][name].show(false))
	}
	desttest.Respond(w, http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items})
}

// object is what a request says of a Secret.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Type       string            `json:"type"`
	Immutable  bool              `json:"immutable"`
	Data       map[string][]byte `json:"data"`
	StringData map[string]string `json:"stringData"`
}

var (
	subdomain  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelKey   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	dataKey    = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)
)

// problem returns why a Secret is invalid, "" if it is not.
func (in *object) problem() string {
	if !subdomain.MatchString(in.Metadata.Name) || len(in.Metadata.Name) > 253 {
		return "metadata.name: a lowercase RFC 1123 subdomain"
	}
	for key, value := range in.Metadata.Labels {
		if !labelKey.MatchString(key) || !labelValue.MatchString(value) {
			return "metadata.labels"
		}
	}
	total := 0
	for key, value := range in.Data {
		if !dataKey.MatchString(key) || key == "." || strings.HasPrefix(key, "..") {
			return "data"
		}
		total += len(value)
	}
	if total > maxSecret {
		return "data: Too long: must have at most 1048576 bytes"
	}
	for kind, keys := range map[string][]string{"kubernetes.io/tls": {"tls.crt", "tls.key"}, "kubernetes.io/dockerconfigjson": {".dockerconfigjson"}} {
		for _, key := range keys {
			if _, ok := in.Data[key]; in.Type == kind && !ok {
				return "data[" + key + "]: Required value"
			}
		}
	}
	return ""
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, namespace string) {
	var in object
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Kind != "Secret" || in.APIVersion != "v1" || in.Metadata.ResourceVersion != "" {
		fail(w, http.StatusBadRequest, "BadRequest", "", "the object is not a new Secret")
		return
	}
	if in.Type == "" {
		in.Type = "Opaque"
	}
	problem := in.problem()
	switch {
	case s.namespaces[namespace] == nil:
		fail(w, http.StatusNotFound, "NotFound", "namespaces", fmt.Sprintf("namespaces %q not found", namespace))
	case problem != "":
		fail(w, http.StatusUnprocessableEntity, "Invalid", "Secret", "Secret is invalid: "+problem)
	case s.full:
		fail(w, http.StatusForbidden, "Forbidden", "secrets", "secrets is forbidden: exceeded quota: few, requested: secrets=1, used: secrets=1, limited: secrets=1")
	case s.namespaces[namespace][in.Metadata.Name] != nil:
		fail(w, http.StatusConflict, "AlreadyExists", "secrets", fmt.Sprintf("secrets %q already exists", in.Metadata.Name))
	default:
		now := &Secret{Name: in.Metadata.Name, Type: in.Type, Labels: in.Metadata.Labels, Annotations: in.Metadata.Annotations, Data: in.Data, Immutable: in.Immutable}
		if r.URL.Query().Get("dryRun") == "All" {
			now.UID, now.Version = "dry-run", ""
		} else {
			s.store(namespace, now)
		}
		desttest.Respond(w, http.StatusCreated, now.show(true))
	}
}

// merge applies a JSON merge patch (RFC 7386).
func merge(into, patch map[string]any) map[string]any {
	out := maps.Clone(into)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(out, key)
		case map[string]any:
			old, _ := out[key].(map[string]any)
			out[key] = merge(old, value)
		default:
			out[key] = value
		}
	}
	return out
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, namespace string, now *Secret) {
	body, err := io.ReadAll(r.Body)
	if r.Header.Get("Content-Type") != "application/merge-patch+json" || err != nil {
		fail(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType", "", "only merge patches are known here")
		return
	}
	var patch, old map[string]any
	before, _ := json.Marshal(now.show(true))
	if json.Unmarshal(body, &patch) != nil || json.Unmarshal(before, &old) != nil {
		fail(w, http.StatusBadRequest, "BadRequest", "", "the patch is not an object")
		return
	}
	after, _ := json.Marshal(merge(old, patch))
	var in object
	if json.Unmarshal(after, &in) != nil {
		fail(w, http.StatusBadRequest, "BadRequest", "", "the patched object is not a Secret")
		return
	}
	problem := in.problem()
	switch {
	case in.Metadata.Name != now.Name:
		fail(w, http.StatusBadRequest, "BadRequest", "", "the name of the object does not match the name on the URL")
	case in.Metadata.ResourceVersion != now.Version:
		fail(w, http.StatusConflict, "Conflict", "secrets", "the object has been modified; please apply your changes to the latest version and try again")
	case problem != "" || in.Metadata.UID != now.UID || in.Type != now.Type || now.Immutable:
		fail(w, http.StatusUnprocessableEntity, "Invalid", "Secret", "Secret is invalid: "+problem)
	default:
		next := *now
		next.Labels, next.Annotations, next.Data = in.Metadata.Labels, in.Metadata.Annotations, in.Data
		if string(after) != string(before) {
			s.store(namespace, &next)
		}
		desttest.Respond(w, http.StatusOK, next.show(true))
	}
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, namespace string, now *Secret) {
	var in struct {
		Preconditions struct {
			UID             *string `json:"uid"`
			ResourceVersion *string `json:"resourceVersion"`
		} `json:"preconditions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil && err != io.EOF {
		fail(w, http.StatusBadRequest, "BadRequest", "", "the options are not an object")
		return
	}
	p := in.Preconditions
	if p.UID != nil && *p.UID != now.UID || p.ResourceVersion != nil && *p.ResourceVersion != now.Version {
		fail(w, http.StatusConflict, "Conflict", "Secret", "the UID or the ResourceVersion in the precondition does not match")
		return
	}
	if now.Finalizers {
		next := *now
		next.deleting = true
		s.store(namespace, &next)
		desttest.Respond(w, http.StatusOK, next.show(true))
		return
	}
	delete(s.namespaces[namespace], now.Name)
	desttest.Respond(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success", "details": map[string]any{"name": now.Name, "kind": "secrets", "uid": now.UID}})
}
