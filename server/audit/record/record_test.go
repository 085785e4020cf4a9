package record_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
)

// format is that of a device with these options, and a fixed salt.
func format(t testing.TB, options map[string]string) *record.Format {
	t.Helper()
	style, err := device.Config{Type: "syslog", Options: options}.Style()
	if err != nil {
		t.Fatal(err)
	}
	f, err := record.NewFormat(bytes.Repeat([]byte{7}, 32), style)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// recorded returns the one line that is written for a record with these options.
func recorded(t testing.TB, r *record.Record, response bool, options map[string]string) string {
	t.Helper()
	e := record.Event{Record: r, OfResponse: response, At: r.Time, Headers: record.NewHeaders(map[string]bool{"user-agent": false, "x-correlation-id": false, "x-forwarded-for": false})}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	var text string
	if err := format(t, options).Write(e, func(line []byte) error { text = string(line); return nil }); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(text, "\n") || strings.Count(text, "\n") != 1 {
		t.Fatalf("wrote %q, want one line", text)
	}
	return strings.TrimSuffix(text, "\n")
}

// hash is a text as the formats of format write it.
func hash(t testing.TB, text string) string {
	t.Helper()
	return format(t, nil).Hash(text)
}

func fullRecord() *record.Record {
	return &record.Record{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC),
		Auth: &record.Auth{
			ClientToken: "hvs.caller", Accessor: "acc1", DisplayName: "userpass-ann", Policies: []string{"default", "dev"},
			TokenPolicies: []string{"default"}, IdentityPolicies: []string{"dev"}, Metadata: map[string]string{"username": "ann", "b": "<1>"},
			EntityID: "e1", TokenType: "service", TTL: time.Hour, NumUses: 3,
			ExternalNamespacePolicies: map[string][]string{"n2": {"ops"}, "n1": {"dev"}}, NoDefaultPolicy: true,
			IssuedAt: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		},
		Request: record.Request{
			ID: "r1", Operation: "update", MountType: "kv", MountPoint: "secret/", MountAccessor: "kv_1", MountClass: "secret",
			ClientToken: "hvs.caller", ClientTokenAccessor: "acc1", NamespaceID: "ns1", NamespacePath: "team/",
			Path: "secret/data/a \"quoted\"", Data: json.RawMessage(` {"data": {"k" : "v", "n": 1.50}, "options": {"cas": 0}} `),
			Query: url.Values{"Version": {"2"}}, RemoteAddress: "192.0.2.1", RemotePort: 4711,
			Headers:       http.Header{"User-Agent": {"cli/1"}, "X-Forwarded-For": {"192.0.2.7"}, "X-Custom": {"private"}, "X-Vault-Token": {"hvs.caller"}},
			ForwardedFrom: "node2", WrapTTL: time.Minute,
		},
		Response: &record.Response{
			Auth: &record.Auth{ClientToken: "hvs.new", Accessor: "acc2", TokenType: "service"},
			Data: json.RawMessage(`{"version":3,"keys":["x",null,true]}`), Warnings: []string{"careful"}, LeaseID: "l1", Status: 200,
			Wrap: &record.Wrap{
				Token: "hvs.wrap", Accessor: "acc3", WrappedAccessor: "acc2", CreationPath: "auth/token/create",
				CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TTL: time.Minute,
			},
		},
		Error: "permission denied",
	}
}

// hashes replaces each «text» by its hash.
func hashes(t *testing.T, text string) string {
	t.Helper()
	for {
		before, rest, ok := strings.Cut(text, "«")
		if !ok {
			return text
		}
		inner, after, _ := strings.Cut(rest, "»")
		text = before + hash(t, inner) + after
	}
}

func TestLine(t *testing.T) {
	auth := `"auth":{"client_token":"«hvs.caller»","accessor":"«acc1»","display_name":"userpass-ann","policies":["default","dev"],` +
		`"token_policies":["default"],"identity_policies":["dev"],"external_namespace_policies":{"n1":["dev"],"n2":["ops"]},"no_default_policy":true,"metadata":{"b":"<1>","username":"ann"},"entity_id":"e1",` +
		`"token_type":"service","token_ttl":3600,"token_issue_time":"2026-01-02T03:00:00Z","num_uses":3}`
	const body, headers = `"data":{"data":{"k":"«v»","n":1.50},"options":{"cas":0}},"query":{"Version":["«2»"]},`, `"headers":{"user-agent":["cli/1"],"x-forwarded-for":["192.0.2.7"]},`
	request := `"request":{"id":"r1","operation":"update","mount_type":"kv","mount_point":"secret/","mount_accessor":"kv_1","mount_class":"secret",` +
		`"client_token":"«hvs.caller»","client_token_accessor":"«acc1»","namespace":{"id":"ns1","path":"team/"},` +
		`"path":"secret/data/a \"quoted\"",` + body + `"remote_address":"192.0.2.1","remote_port":4711,` + headers + `"forwarded_from":"node2","wrap_ttl":60}`
	response := `"response":{"mount_type":"kv","mount_point":"secret/","mount_accessor":"kv_1","mount_class":"secret",` +
		`"auth":{"client_token":"«hvs.new»","accessor":"«acc2»","token_type":"service"},"secret":{"lease_id":"l1"},` +
		`"data":{"version":3,"keys":["«x»",null,true]},"warnings":["careful"],"wrap_info":{"ttl":60,"token":"«hvs.wrap»",` +
		`"accessor":"«acc3»","creation_time":"2026-01-02T03:04:05Z","creation_path":"auth/token/create","wrapped_accessor":"«acc2»"},"status":200}`
	const at, failure = `{"time":"2026-01-02T03:04:05.0000006Z",`, `"error":"permission denied"}`
	plain := func(s string) string { return strings.NewReplacer("«", "", "»", "").Replace(s) }
	plainAccessors := strings.NewReplacer("«acc1»", "acc1", "«acc2»", "acc2", "«acc3»", "acc3").Replace
	asRequest := at + `"type":"request",` + auth + "," + request + "," + failure
	again := strings.NewReplacer(body, "", headers, "").Replace(request) // the record before has them
	asResponse := at + `"type":"response",` + auth + "," + again + "," + response + "," + failure
	tests := []struct {
		name     string
		response bool
		options  map[string]string
		want     string
	}{
		{"request", false, nil, asRequest},
		{"response", true, nil, asResponse},
		{"readable accessors", true, map[string]string{"hmac_accessor": "false"}, plainAccessors(asResponse)},
		{"log_raw", true, map[string]string{"log_raw": "true"}, plain(asResponse)},
		{"prefix", false, map[string]string{"prefix": "@cee: "}, "@cee: " + asRequest},
	}
	for _, tt := range tests {
		got := recorded(t, fullRecord(), tt.response, tt.options)
		if want := hashes(t, tt.want); got != want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, want)
		}
		if line := got[strings.Index(got, "{"):]; !json.Valid([]byte(line)) {
			t.Errorf("%s: the line is not JSON", tt.name)
		}
	}
	empty := recorded(t, &record.Record{Time: fullRecord().Time}, true, nil)
	if want := at + `"type":"response","request":{"namespace":{}}}`; empty != want {
		t.Errorf("an empty record is written as %s, want %s", empty, want)
	}
}

func TestElideLists(t *testing.T) {
	const body = `{"keys":["a","b",["c"]],"key_info":{"a":{"x":1},"b":{}},"other":{"keys":["d"]},"n":1}`
	const other = `"other":{"keys":["«d»"]},"n":1}`
	tests := []struct{ op, elide, body, want string }{
		{"list", "true", body, `{"keys":3,"key_info":2,` + other},
		{"list", "true", `{"keys":[],"key_info":{}}`, `{"keys":0,"key_info":0}`},
		{"list", "true", `{"keys":"a","key_info":["b"]}`, `{"keys":"«a»","key_info":["«b»"]}`},
		{"list", "false", `{"keys":["a"]}`, `{"keys":["«a»"]}`},
		{"read", "true", `{"keys":["a"]}`, `{"keys":["«a»"]}`},
	}
	for _, tt := range tests {
		r := &record.Record{Request: record.Request{Operation: tt.op, Data: json.RawMessage(`{"keys":["q"]}`)}, Response: &record.Response{Data: json.RawMessage(tt.body)}}
		got := recorded(t, r, true, map[string]string{"elide_list_responses": tt.elide})
		if want := hashes(t, `"response":{"data":`+tt.want+"}"); !strings.Contains(got, want) {
			t.Errorf("%s %s: %s, want %s", tt.op, tt.body, got, want)
		}
		got = recorded(t, r, false, map[string]string{"elide_list_responses": tt.elide})
		if want := hashes(t, `"data":{"keys":["«q»"]}`); !strings.Contains(got, want) {
			t.Errorf("%s: the request's data is %s, want %s", tt.op, got, want)
		}
	}
}
