package audit_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/storage"
)

// lastHeaders sends a request with many headers and returns those that were recorded.
func lastHeaders(t *testing.T, table *audit.Table, file string) map[string][]string {
	t.Helper()
	r := &record.Record{Request: record.Request{Path: "p", Headers: http.Header{
		"User-Agent": {"cli/1"}, "X-Correlation-Id": {"c1"}, "X-Vault-Token": {"hvs.secret"}, "X-Team": {"red", "blue"},
		"Authorization": {"Bearer hvs.secret"},
	}}}
	if err := table.Broker().Request(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	var line struct {
		Request struct{ Headers map[string][]string }
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
		t.Fatal(err)
	}
	return line.Request.Headers
}

func assertHeaders(t *testing.T, got map[string][]string, want map[string]string) {
	t.Helper()
	ok := len(got) == len(want)
	for name, values := range want {
		ok = ok && strings.Join(got[name], ",") == values
	}
	if !ok {
		t.Errorf("recorded headers %q, want %q", got, want)
	}
}

func TestHeaders(t *testing.T) {
	var store storage.Memory
	active, standby := node(t, &store), node(t, &store)
	file := filepath.Join(t.TempDir(), "log")
	enable(t, active, "a", file)
	r := engines.NewRouter()
	active.Routes(r)
	const all = "config/auditing/request-headers"
	call := func(op engines.Operation, path, body string) string {
		t.Helper()
		resp, err := r.Handle(t.Context(), &engines.Request{Op: op, Path: path, Body: json.RawMessage(body)})
		if err != nil {
			return err.Error()
		}
		if resp == nil {
			return ""
		}
		text, err := json.Marshal(resp.Data)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	assertHeaders(t, lastHeaders(t, standby, file), map[string]string{"user-agent": "cli/1", "x-correlation-id": "c1"})

	for path, body := range map[string]string{"/X-Team": `{"hmac":true}`, "/user-agent": `{"hmac":"1"}`, "/X-Vault-Token": `{"hmac":true}`} {
		if got := call(engines.Update, all+path, body); got != "" {
			t.Errorf("POST %s = %s", path, got)
		}
	}
	hashed := func(text string) string {
		h, err := standby.Hash(t.Context(), "a", text)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	assertHeaders(t, lastHeaders(t, standby, file), map[string]string{
		"user-agent": hashed("cli/1"), "x-correlation-id": "c1", "x-team": hashed("red") + "," + hashed("blue"), "x-vault-token": hashed("hvs.secret"),
	})
	if got, want := call(engines.Read, all+"/X-Team", ""), `{"X-Team":{"hmac":true}}`; got != want {
		t.Errorf("GET one = %s, want %s", got, want)
	}
	want := `{"headers":{"user-agent":{"hmac":true},"x-correlation-id":{"hmac":false},"x-forwarded-for":{"hmac":false},"x-team":{"hmac":true},"x-vault-token":{"hmac":true}},` +
		`"keys":["user-agent","x-correlation-id","x-forwarded-for","x-team","x-vault-token"]}`
	for _, op := range []engines.Operation{engines.Read, engines.List} {
		if got := call(op, all, ""); got != want {
			t.Errorf("%s all = %s, want %s", op, got, want)
		}
	}

	for _, path := range []string{"/x-team", "/User-Agent", "/X-Vault-Token", "/X-Never-There"} {
		if got := call(engines.Delete, all+path, ""); got != "" {
			t.Errorf("DELETE %s = %s", path, got)
		}
	}
	assertHeaders(t, lastHeaders(t, standby, file), map[string]string{"x-correlation-id": "c1"})
	if got, want := call(engines.Read, all+"/X-Team", ""), "Could not find header in config"; got != want {
		t.Errorf("GET of a deleted header = %s, want %s", got, want)
	}
	call(engines.Update, all+"/user-agent", `{}`)
	assertHeaders(t, lastHeaders(t, standby, file), map[string]string{"x-correlation-id": "c1", "user-agent": "cli/1"})
}

func TestHeadersRefuse(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	for name, want := range map[string]string{
		"X-Vault-Token": "hmac=true", "authorization": "hmac=true", "Cookie": "hmac=true",
		"a b": "header", "a:": "header", "..": "header", "": "header", "ü": "header", "a/b": "header",
		strings.Repeat("x", 129): "128 bytes",
	} {
		var e *engines.Error
		if err := table.SetHeader(t.Context(), name, false); !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, want) {
			t.Errorf("SetHeader(%q) = %v, want %q", name, err, want)
		}
	}
	for i := range 200 {
		err := table.SetHeader(t.Context(), "x-"+strings.Repeat("y", i%100)+strings.Repeat("z", i/100), true)
		if err == nil {
			continue
		}
		if i < 100 || !strings.Contains(err.Error(), "delete one first") {
			t.Errorf("header %d: %v", i, err)
		}
		return
	}
	t.Error("there is no end to the headers")
}

// What this build does not understand fails closed.
func TestHeadersOfAnotherFormat(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	put := storage.Put{Key: "s/sys/root/audit-headers/x", Value: []byte(`{"format":2,"name":"x"}`)}
	if _, err := store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{put}}); err != nil {
		t.Fatal(err)
	}
	if err := table.Broker().Request(t.Context(), &record.Record{}); !errors.Is(err, audit.ErrNotRecorded) {
		t.Errorf("Request = %v, want ErrNotRecorded", err)
	}
}

func TestNumbers(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	enable(t, table, "a", filepath.Join(t.TempDir(), "log"))
	enable(t, table, "b", filepath.Join(t.TempDir(), "log"))
	writeRecord(t, table, "p")
	n := table.Numbers()
	for name, want := range map[string]float64{
		"audit_request_records_total": 1, "audit_response_records_total": 0, "audit_devices": 2, "audit_file_written_records": 2,
		"audit_devices_failing": 0, "audit_file_failed_records": 0,
	} {
		if got, ok := n[name]; !ok || got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}
