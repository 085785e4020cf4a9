package record_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/audit/record"
)

// line is what the tests look at of a line.
type line struct {
	Error   string
	Request struct {
		Path, ID  string
		Data      json.RawMessage
		DataRest  *rest `json:"data_rest"`
		Query     map[string]any
		QueryRest *rest `json:"query_rest"`
		Headers   map[string][]string
	}
	Response struct {
		Data     json.RawMessage
		DataRest *rest `json:"data_rest"`
	}
}

type rest struct {
	HMAC  string
	Bytes int
}

func parsed(t testing.TB, text string) line {
	t.Helper()
	var l line
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatalf("%.300s is no JSON: %v", text, err)
	}
	return l
}

// TestDataBound: what does not fit of a body is one hash with its length, and what is recorded before it stays JSON.
func TestDataBound(t *testing.T) {
	const limit = 64 << 10
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for name, body := range map[string]string{
		"texts":                    `{"a":[` + strings.Repeat(`"",`, 1<<16) + `""]}`,
		"members":                  `{` + strings.Repeat(`"a":"",`, 1<<16) + `"b":1}`,
		"empty arrays":             `[` + strings.Repeat(`[],`, 1<<16) + `[]]`,
		"nested":                   `{"a":{"b":[{"c":[` + strings.Repeat(`"",`, 1<<16) + `""]}]},"d":1}`,
		"numbers":                  `[` + strings.Repeat(`1234567890,`, 1<<16) + `1]`,
		"a long name":              `{"first":1,` + text(1<<20) + `:1,"last":2}`,
		"a long plain text":        `{"first":1,"plain":` + text(1<<20) + `,"last":2}`,
		"a long text not in UTF-8": `{"first":1,"plain":"` + strings.Repeat("\xff", limit) + `"}`,
	} {
		for _, options := range []map[string]string{nil, {"log_raw": "true"}} {
			l := parsed(t, recorded(t, &record.Record{Request: record.Request{Data: json.RawMessage(body), PlainKeys: []string{"plain"}}}, false, options))
			r := l.Request.DataRest
			switch {
			case len(l.Request.Data) > limit+256:
				t.Errorf("%s: %d bytes are recorded", name, len(l.Request.Data))
			case r == nil:
				if len(body) > limit { // else it fits, in the clear
					t.Errorf("%s: the record does not say what is missing: %.300s", name, l.Request.Data)
				}
			case r.Bytes <= 0 || r.HMAC != hash(t, body[len(body)-r.Bytes:]):
				t.Errorf("%s: the hash of the last %d bytes is %s", name, r.Bytes, r.HMAC)
			}
			if strings.Contains(body, "first") && !strings.Contains(string(l.Request.Data), `{"first":1`) {
				t.Errorf("%s: what is before is not recorded: %.300s", name, l.Request.Data)
			}
		}
	}
	r := &record.Record{Request: record.Request{Operation: "list"}, Response: &record.Response{Data: json.RawMessage(`{"keys":[` + strings.Repeat(`"k",`, 1<<16) + `"k"]}`)}}
	if l := parsed(t, recorded(t, r, true, nil)); l.Response.DataRest == nil || len(l.Response.Data) > limit+256 {
		t.Errorf("a long list takes %d bytes of the response's record", len(l.Response.Data))
	}
	if got := recorded(t, r, true, map[string]string{"elide_list_responses": "true"}); !strings.Contains(got, `"data":{"keys":65537}`) {
		t.Errorf("a long list without its keys is recorded as %.300s", got)
	}
}

func TestQueryAndHeaderBound(t *testing.T) {
	query := url.Values{"a": make([]string, 1<<16), "b": {"1"}}
	l := parsed(t, recorded(t, &record.Record{Request: record.Request{
		Query: query, Headers: http.Header{"User-Agent": {strings.Repeat("x", 1<<20)}, "X-Correlation-Id": make([]string, 1<<16), "X-Forwarded-For": {"192.0.2.1"}},
	}}, false, nil))
	if r := l.Request.QueryRest; r == nil || l.Request.Query != nil || r.Bytes != len(query.Encode()) || r.HMAC != hash(t, query.Encode()) {
		t.Errorf("a long query is recorded as %v and %v", l.Request.Query, r)
	}
	if h := l.Request.Headers; len(h["x-correlation-id"]) != 1 || h["user-agent"][0] != hash(t, strings.Repeat("x", 1<<20)) || h["x-forwarded-for"][0] != "192.0.2.1" {
		t.Errorf("long headers are recorded as %.300v", h)
	}
}

// FuzzRecordBound is the property that the security model states: what a request without a valid token writes has a bound,
// whatever it is made of.
func FuzzRecordBound(f *testing.F) {
	f.Add([]byte(`{"a":["",""]}`), "secret/data/x", "a", "", "curl", "permission denied", uint16(1))
	f.Add([]byte(`{"a":["`), strings.Repeat("<", 2000), "\x01", "\xff", strings.Repeat("\"\\", 3000), strings.Repeat("\x02", 3000), uint16(9000))
	f.Fuzz(func(t *testing.T, body []byte, path, key, value, header, failure string, times uint16) {
		n := int(times) + 1
		if len(body)*n > 1<<20 {
			n = 1
		}
		data := []byte(strings.Repeat(string(body), n))
		if n > 1 && json.Valid(body) {
			data = []byte("[" + strings.Repeat(string(body)+",", n) + string(body) + "]")
		}
		r := &record.Record{
			Unauthenticated: true, Error: failure,
			Request: record.Request{
				ID: strings.Repeat("i", 36), LoginID: strings.Repeat("i", 36), Operation: "update", MountType: "userpass", MountPoint: path, MountAccessor: "userpass_12345678",
				MountClass: "system", ClientToken: value, NamespaceID: "abcdefgh", NamespacePath: path, Path: path, Data: data,
				Query: url.Values{key: make([]string, n), value: {value}}, RemoteAddress: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", RemotePort: 65535,
				Headers: http.Header{"User-Agent": {header}, "X-Forwarded-For": make([]string, n)},
			},
			Response: &record.Response{Data: data, Warnings: []string{failure, path}, Status: 503, Wrap: &record.Wrap{
				Token: value, Accessor: strings.Repeat("a", 36), WrappedAccessor: strings.Repeat("a", 36), CreationPath: path,
			}},
		}
		check := func(name string, response bool, options map[string]string, limit int) {
			text := recorded(t, r, response, options)
			if len(text)+1 > limit {
				t.Fatalf("%s: a body of %d bytes is recorded in %d: %.2000s", name, len(data), len(text)+1, text)
			}
			if !json.Valid([]byte(text[strings.Index(text, "{"):])) {
				t.Fatalf("%s: not JSON: %s", name, text)
			}
		}
		for _, options := range []map[string]string{nil, {"log_raw": "true"}, {"hmac_accessor": "false", "prefix": "@cee:"}} {
			of := fmt.Sprint(options)
			check("open request "+of, false, options, 1536)
			check("open response "+of, true, options, 1536)
			rejected := *r
			rejected.Brief, rejected.Response = true, nil
			r = &rejected
			check("rejected "+of, false, options, 1024)
			if raw := recorded(t, r, false, options); len(body) > 8 && !strings.Contains(path+key+value+header+failure, string(body)) && strings.Contains(raw, string(body)) {
				t.Fatalf("rejected %s: the record has the body: %s", of, raw)
			}
			whole := *r
			whole.Brief, whole.Response = false, &record.Response{Data: data, Warnings: []string{failure, path}, Status: 503}
			r = &whole
		}
	})
}
