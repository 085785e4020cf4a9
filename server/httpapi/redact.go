package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
)

// Redaction is what a listener keeps from clients without a token: the values are empty in what needs none.
type Redaction struct {
	Addresses, Version, ClusterName bool
}

// redactHeader says what to redact in the response. Listeners remove it from what clients send and set their own; it
// travels with a request that is forwarded to the active node.
const redactHeader = "Coffer-Redact"

// Mark returns what makes the header of a request say what to redact in its response, whatever the client has put there.
func (r Redaction) Mark() func(http.Header) {
	var names []string
	for _, f := range r.fields() {
		if *f.redact {
			names = append(names, f.name)
		}
	}
	return func(h http.Header) {
		if delete(h, redactHeader); names != nil {
			h[redactHeader] = names
		}
	}
}

type redactField struct {
	name   string
	redact *bool
}

func (r *Redaction) fields() []redactField {
	return []redactField{{"addresses", &r.Addresses}, {"version", &r.Version}, {"cluster_name", &r.ClusterName}}
}

// redactable are the paths without a token that tell of the node and its cluster, relative to the namespace.
var redactable = map[string]bool{
	"sys/health": true, "sys/leader": true, "sys/seal-status": true, "sys/unseal": true,
	"sys/replication/status": true, "sys/replication/performance/status": true, "sys/replication/dr/status": true,
}

// redaction returns what is to be redacted in the response to this request.
func (x *exchange) redaction() Redaction {
	var r Redaction
	for _, f := range r.fields() {
		*f.redact = slices.Contains(x.r.Header[redactHeader], f.name)
	}
	return r
}

// redacted returns a JSON body without what the listener redacts.
func (x *exchange) redacted(path string, body []byte) ([]byte, error) {
	if len(x.r.Header[redactHeader]) == 0 || !redactable[path] {
		return body, nil
	}
	r := x.redaction()
	var content any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&content); err != nil {
		return nil, err
	}
	r.apply(content)
	out, err := json.Marshal(content)
	return append(out, '\n'), err
}

// covers reports whether the field of a response is to be redacted.
func (r Redaction) covers(field string) bool {
	switch field {
	case "leader_address", "leader_cluster_address", "api_address", "cluster_address", "primary_cluster_addr", "known_primary_cluster_addrs",
		"leader_addresses", "join_error":
		return r.Addresses
	case "version", "coffer_version", "build_date":
		return r.Version
	case "cluster_name":
		return r.ClusterName
	}
	return false
}

func (r Redaction) apply(content any) {
	switch content := content.(type) {
	case []any:
		for _, v := range content {
			r.apply(v)
		}
	case map[string]any:
		for field, v := range content {
			_, list := v.([]any)
			switch {
			case r.covers(field) && list:
				content[field] = []any{}
			case r.covers(field):
				content[field] = ""
			default:
				r.apply(v)
			}
		}
	}
}
