package httpapi

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzForm: no form breaks it; what it accepts are the form's few fields, each once, as an object of texts that the
// checks of JSON bodies accept, too.
func FuzzForm(f *testing.F) {
	for _, seed := range []string{
		"", "=", "&&&", "RelayState=a&SAMLResponse=PHg%2B", "a=1&a=2", "a=1&%61=2", "a=%zz", "a=%", "a;b=1", "a=%00&b=\x00", "%ff=1&%fe=2",
		"a=%0d%0a", "a=<&b={\"", "a=+%2B ", strings.Repeat("a=&", 20), strings.Repeat("=%41", 100), "a" + strings.Repeat("=", 40), "{\"a\":1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = isForm("application/x-www-form-urlencoded; "+string(body), body)
		object, err := formObject(body)
		if err != nil {
			return
		}
		if err := checkJSON(object); err != nil {
			t.Fatalf("%q becomes %s: %v", body, object, err)
		}
		var got map[string]string
		if err := json.Unmarshal(object, &got); err != nil {
			t.Fatalf("%q becomes %s: %v", body, object, err)
		}
		fields, err := url.ParseQuery(string(body))
		if err != nil || len(fields) > maxFormFields {
			t.Fatalf("%q is accepted: %v", body, err)
		}
		for name, values := range fields {
			if len(values) != 1 {
				t.Errorf("%q is accepted: %q is there %d times", body, name, len(values))
			}
			if value := values[0]; utf8.ValidString(name) && utf8.ValidString(value) && got[name] != value {
				t.Errorf("%q becomes %s: %q is not %q", body, object, name, value)
			}
		}
	})
}
