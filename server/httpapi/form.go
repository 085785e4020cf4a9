package httpapi

import (
	"encoding/json"
	"mime"
	"net/url"

	"github.com/coffer-project/coffer/engines"
)

// Limits of a posted form.
const (
	maxFormBytes  = 2 << 20
	maxFormFields = 16
)

// isForm reports whether a body is a form. Clients such as curl call everything one that they post: what begins as an
// object is JSON, whatever its name.
func isForm(contentType string, body []byte) bool {
	kind, _, _ := mime.ParseMediaType(contentType)
	return kind == "application/x-www-form-urlencoded" && len(body) > 0 && body[0] != '{'
}

// formObject turns a form into the JSON object that the same fields would be.
func formObject(body []byte) (json.RawMessage, error) {
	if len(body) > maxFormBytes {
		return nil, &engines.Error{Kind: engines.KindTooLarge, Detail: "the form is larger than 2 MiB"}
	}
	fields, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, engines.Invalid("the form is malformed")
	}
	if len(fields) > maxFormFields {
		return nil, engines.Invalid("the form has more than %d fields", maxFormFields)
	}
	object := make(map[string]string, len(fields))
	for name, values := range fields {
		if len(values) != 1 {
			return nil, engines.Invalid("a field of the form is there more than once")
		}
		object[name] = values[0]
	}
	return json.Marshal(object)
}
