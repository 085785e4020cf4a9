package cloud2kvtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of the vendor's.
const (
	maxValue       = 25600
	maxTags        = 15
	maxTag         = 256
	maxContentType = 255
	maxResults     = 25
)

var (
	nameForm = regexp.MustCompile(`^[0-9A-Za-z-]{1,127}$`)
	// versionForm has the versions of the API that all clouds know.
	versionForm = regexp.MustCompile(`^7\.[2-5]$`)
)

// problem is an error of the vault's.
type problem struct {
	status            int
	code, text, inner string
}

func (p *problem) write(w http.ResponseWriter) {
	e := map[string]any{"code": p.code, "message": p.text}
	if p.inner != "" {
		e["innererror"] = map[string]string{"code": p.inner}
	}
	answer(w, p.status, map[string]any{"error": e})
}

func bad(format string, args ...any) *problem {
	return &problem{status: http.StatusBadRequest, code: "BadParameter", text: fmt.Sprintf(format, args...)}
}

func notFound(name string) *problem {
	return &problem{status: http.StatusNotFound, code: "SecretNotFound", text: "A secret with (name/id) " + name + " was not found in this key vault. If you recently deleted this secret you may be able to recover it using the correct recovery command."}
}

func deletedNotFound(name string) *problem {
	return &problem{status: http.StatusNotFound, code: "SecretNotFound", text: "Deleted Secret not found: " + name}
}

func conflict(inner, text string) *problem {
	return &problem{status: http.StatusConflict, code: "Conflict", text: text, inner: inner}
}

// serve lets the one in who stands in front.
func (v *Vault) serve(w http.ResponseWriter, r *http.Request) {
	v.front.Do(func() {
		v.served = http.HandlerFunc(v.vault)
		if v.Front != nil {
			v.served = v.Front(v.served)
		}
	})
	v.served.ServeHTTP(w, r)
}

// vault answers as a vault does: first who it is, then what is wanted.
func (v *Vault) vault(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", v.time().UTC().Format(http.TimeFormat))
	if p := v.challenge(w, r); p != nil {
		p.write(w)
		return
	}
	v.mu.Lock()
	v.calls = append(v.calls, r.Method+" "+r.URL.Path)
	before := v.before
	v.mu.Unlock()
	if before != nil {
		before(r.Method, r.URL.Path)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	v.mu.Lock()
	result, p := v.route(r, body)
	v.mu.Unlock()
	switch {
	case p != nil:
		p.write(w)
	case result == nil:
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusNoContent)
	default:
		answer(w, http.StatusOK, result)
	}
}

func (v *Vault) time() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now()
}

func (v *Vault) challenge(w http.ResponseWriter, r *http.Request) *problem {
	v.mu.Lock()
	defer v.mu.Unlock()
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if ok && v.tokens[token] && v.tenant == TenantID {
		return nil
	}
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer authorization="https://login.windows.net/%s", resource="%s"`, v.tenant, v.resource))
	p := &problem{status: http.StatusUnauthorized, code: "Unauthorized", text: "AKV10000: Request is missing a Bearer or PoP token."}
	if ok {
		p.text = "AKV10032: Invalid issuer. Expected one of https://sts.windows.net/" + v.tenant + "/, found another."
	}
	return p
}

// route finds out what is wanted. A result of nil is 204.
func (v *Vault) route(r *http.Request, body []byte) (any, *problem) {
	if !versionForm.MatchString(r.URL.Query().Get("api-version")) {
		return nil, bad("The request has no api-version, or one that is not supported.")
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	parts = append(parts, "", "", "")[:max(len(parts), 3)]
	kind, name, rest := parts[0], parts[1], parts[2]
	if len(parts) > 3 || kind != "secrets" && kind != "deletedsecrets" {
		return nil, &problem{status: http.StatusNotFound, code: "NotFound", text: "Resource not found"}
	}
	permission, act := v.action(r, body, kind, name, rest)
	if act == nil {
		return nil, &problem{status: http.StatusMethodNotAllowed, code: "MethodNotAllowed", text: "The method is not allowed here."}
	}
	if !v.permissions[permission] {
		return nil, &problem{status: http.StatusForbidden, code: "Forbidden", inner: "ForbiddenByPolicy", text: "The user, group or application 'appid=" + ClientID + "' does not have secrets " + permission + " permission on key vault '" + Host + "'."}
	}
	if name != "" && !nameForm.MatchString(name) {
		return nil, bad("The request URI contains an invalid name: %s", name)
	}
	return act()
}

type action func() (any, *problem)

func (v *Vault) action(r *http.Request, body []byte, kind, name, rest string) (permission string, act action) {
	o := v.secrets[strings.ToLower(name)]
	switch live := kind == "secrets"; {
	case name == "" && r.Method == http.MethodGet:
		return "list", func() (any, *problem) { return v.list(r, kind) }
	case live && rest == "versions" && r.Method == http.MethodGet:
		return "list", func() (any, *problem) { return v.versions(r, o, name) }
	case live && r.Method == http.MethodGet:
		return "get", func() (any, *problem) { return v.get(r, o, name, rest) }
	case live && rest == "" && r.Method == http.MethodPut:
		return "set", func() (any, *problem) { return v.set(r, body, o, name) }
	case live && r.Method == http.MethodPatch:
		return "set", func() (any, *problem) { return v.update(r, body, o, name, rest) }
	case live && rest == "" && r.Method == http.MethodDelete:
		return "delete", func() (any, *problem) { return v.delete(r, o, name) }
	case !live && rest == "" && r.Method == http.MethodGet:
		return "get", func() (any, *problem) { return v.getDeleted(r, o, name) }
	case !live && rest == "" && r.Method == http.MethodDelete:
		return "purge", func() (any, *problem) { return v.purge(o, name) }
	case !live && rest == "recover" && r.Method == http.MethodPost:
		return "recover", func() (any, *problem) { return v.recover(r, o, name) }
	}
	return "", nil
}

// live reports whether a name is in use, which takes some looks after it was recovered.
func (o *object) live() bool {
	if o == nil || !o.deleted.IsZero() {
		return false
	}
	if o.busy == "recovering" && o.left != 0 {
		o.left--
		return false
	}
	return true
}

// isDeleted reports whether a name is deleted for good, which takes some looks.
func (o *object) isDeleted() bool {
	if o == nil || o.deleted.IsZero() {
		return false
	}
	if o.left != 0 {
		o.left--
		return false
	}
	o.busy = ""
	return true
}

func (v *Vault) get(r *http.Request, o *object, name, id string) (any, *problem) {
	if !o.live() {
		return nil, notFound(name)
	}
	n := o.newest()
	if id != "" {
		i := slices.IndexFunc(o.versions, func(n *version) bool { return n.id == id })
		if i < 0 {
			return nil, notFound(name + "/" + id)
		}
		n = o.versions[i]
	}
	if !n.enabled {
		return nil, &problem{status: http.StatusForbidden, code: "Forbidden", inner: "SecretDisabled", text: "Operation get is not allowed on a disabled secret."}
	}
	b := bundle(r, o.name, n)
	b["value"] = n.value
	return b, nil
}

// bundle is what the vault says of a version.
func bundle(r *http.Request, name string, n *version) map[string]any {
	attributes := map[string]any{
		"enabled": n.enabled, "created": n.created.Unix(), "updated": n.updated.Unix(),
		"recoveryLevel": "CustomizedRecoverable+Purgeable", "recoverableDays": 7,
	}
	if n.notBefore != 0 {
		attributes["nbf"] = n.notBefore
	}
	if n.expires != 0 {
		attributes["exp"] = n.expires
	}
	b := map[string]any{"id": base(r) + "/secrets/" + name + "/" + n.id, "attributes": attributes}
	if n.contentType != "" {
		b["contentType"] = n.contentType
	}
	if len(n.tags) > 0 {
		b["tags"] = n.tags
	}
	if n.managed {
		b["managed"] = true
	}
	return b
}

func base(r *http.Request) string { return "https://" + r.Host }

func deletedBundle(r *http.Request, o *object) map[string]any {
	b := bundle(r, o.name, o.newest())
	b["recoveryId"] = base(r) + "/deletedsecrets/" + o.name
	b["deletedDate"], b["scheduledPurgeDate"] = o.deleted.Unix(), o.deleted.AddDate(0, 0, 7).Unix()
	return b
}

// input is the body of a write.
type input struct {
	Value       *string           `json:"value"`
	ContentType *string           `json:"contentType"`
	Tags        map[string]string `json:"tags"`
	Attributes  struct {
		Enabled   *bool  `json:"enabled"`
		NotBefore *int64 `json:"nbf"`
		Expires   *int64 `json:"exp"`
	} `json:"attributes"`
}

// read decodes the body of a write and holds it to the limits.
func read(r *http.Request, body []byte) (*input, *problem) {
	if mime, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); mime != "application/json" {
		return nil, bad("Content-Type must be application/json.")
	}
	in := &input{}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil || !utf8.Valid(body) || d.More() {
		return nil, bad("The request body could not be read: %s", body)
	}
	if in.Value != nil && len(*in.Value) > maxValue {
		return nil, bad("Secret value exceeds the maximum of %d: %s", maxValue, *in.Value)
	}
	if in.ContentType != nil && len(*in.ContentType) > maxContentType {
		return nil, bad("contentType is too long")
	}
	if len(in.Tags) > maxTags {
		return nil, bad("The number of tags exceeds the maximum of %d.", maxTags)
	}
	for key, value := range in.Tags {
		if key == "" || len(key) > maxTag || len(value) > maxTag {
			return nil, bad("Tag %s is not valid.", key)
		}
	}
	return in, nil
}

// apply makes a version what a write says.
func (in *input) apply(n *version) {
	if in.ContentType != nil {
		n.contentType = *in.ContentType
	}
	if in.Tags != nil {
		n.tags = maps.Clone(in.Tags)
	}
	if a := in.Attributes; a.Enabled != nil {
		n.enabled = *a.Enabled
	}
	if a := in.Attributes; a.NotBefore != nil {
		n.notBefore = *a.NotBefore
	}
	if a := in.Attributes; a.Expires != nil {
		n.expires = *a.Expires
	}
}

func (v *Vault) set(r *http.Request, body []byte, o *object, name string) (any, *problem) {
	in, p := read(r, body)
	switch {
	case p != nil:
		return nil, p
	case in.Value == nil:
		return nil, bad("The property value is required.")
	}
	if o != nil {
		switch {
		case o.busy == "deleting" && o.left != 0:
			return nil, conflict("ObjectIsBeingDeleted", "Secret "+name+" is currently being deleted and cannot be re-created; retry later.")
		case !o.deleted.IsZero():
			return nil, conflict("ObjectIsDeletedButRecoverable", "Secret "+name+" is currently in a deleted but recoverable state, and its name cannot be reused; in this state, the secret can only be recovered or purged.")
		case o.busy == "recovering" && (o.left != 0 || o.rejects != 0):
			if o.left == 0 {
				o.rejects--
			}
			return nil, conflict("ObjectIsBeingRecovered", "Secret "+name+" is currently being recovered and cannot be re-created; retry later.")
		case o.newest().managed:
			return nil, conflict("", "Secret "+name+" belongs to a certificate.")
		}
	}
	n := &version{value: *in.Value, enabled: true}
	in.apply(n)
	o = v.add(name, n)
	b := bundle(r, o.name, n)
	b["value"] = n.value
	return b, nil
}

func (v *Vault) update(r *http.Request, body []byte, o *object, name, id string) (any, *problem) {
	in, p := read(r, body)
	if p != nil {
		return nil, p
	}
	if !o.live() {
		return nil, notFound(name)
	}
	n := o.newest()
	for _, other := range o.versions {
		if other.id == id {
			n = other
		}
	}
	if id != "" && n.id != id {
		return nil, notFound(name + "/" + id)
	}
	in.apply(n)
	n.updated = v.now()
	return bundle(r, o.name, n), nil
}

func (v *Vault) delete(r *http.Request, o *object, name string) (any, *problem) {
	switch {
	case o != nil && o.busy == "deleting" && o.left != 0:
		return nil, conflict("ObjectIsBeingDeleted", "Secret "+name+" is currently being deleted.")
	case !o.live():
		return nil, notFound(name)
	}
	o.deleted, o.busy, o.left = v.now(), "deleting", v.lag
	return deletedBundle(r, o), nil
}

func (v *Vault) getDeleted(r *http.Request, o *object, name string) (any, *problem) {
	if !o.isDeleted() {
		return nil, deletedNotFound(name)
	}
	return deletedBundle(r, o), nil
}

func (v *Vault) purge(o *object, name string) (any, *problem) {
	if !o.isDeleted() {
		return nil, deletedNotFound(name)
	}
	delete(v.secrets, strings.ToLower(name))
	return nil, nil
}

func (v *Vault) recover(r *http.Request, o *object, name string) (any, *problem) {
	switch {
	case o != nil && o.busy == "deleting" && o.left != 0:
		return nil, conflict("ObjectIsBeingDeleted", "Secret "+name+" is currently being deleted.")
	case !o.isDeleted():
		return nil, deletedNotFound(name)
	}
	o.deleted, o.busy, o.left, o.rejects = time.Time{}, "recovering", v.lag, max(v.lag, 0)
	return bundle(r, o.name, o.newest()), nil
}
