package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit"
)

// memDevice keeps lines, or fails.
type memDevice struct {
	mu     sync.Mutex
	lines  []string
	err    error
	closed bool
}

func (d *memDevice) Write(_ context.Context, line []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return errors.New("closed")
	case d.err != nil:
		return d.err
	}
	d.lines = append(d.lines, string(line))
	return nil
}

func (d *memDevice) Reload() error { return d.err }

func (d *memDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// device enables a memDevice whose configuration has these options, and a fixed salt.
func device(t testing.TB, b *audit.Broker, path string, options map[string]string) *memDevice {
	t.Helper()
	opts := map[string]string{"file_path": "discard"}
	for k, v := range options {
		opts[k] = v
	}
	d := &memDevice{}
	err := b.Add(audit.Config{Path: path, Type: "file", Options: opts, Salt: bytes.Repeat([]byte{7}, 32)}, d)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// recorded returns the one line a device of these options writes for a record.
func recorded(t testing.TB, r *audit.Record, response bool, options map[string]string) string {
	t.Helper()
	b := audit.NewBroker(nil)
	d := device(t, b, "mem", options)
	write := b.Request
	if response {
		write = b.Response
	}
	if err := write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if len(d.lines) != 1 || !strings.HasSuffix(d.lines[0], "\n") || strings.Count(d.lines[0], "\n") != 1 {
		t.Fatalf("wrote %q, want one line", d.lines)
	}
	return strings.TrimSuffix(d.lines[0], "\n")
}

// hash is a text as the devices of device write it.
func hash(t testing.TB, text string) string {
	t.Helper()
	b := audit.NewBroker(nil)
	device(t, b, "mem", nil)
	h, err := b.Hash("mem", text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func fullRecord() *audit.Record {
	return &audit.Record{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC),
		Auth: &audit.Auth{
			ClientToken: "hvs.caller", Accessor: "acc1", DisplayName: "userpass-ann", Policies: []string{"default", "dev"},
			TokenPolicies: []string{"default"}, IdentityPolicies: []string{"dev"}, Metadata: map[string]string{"username": "ann", "b": "<1>"},
			EntityID: "e1", TokenType: "service", TTL: time.Hour, NumUses: 3,
			ExternalNamespacePolicies: map[string][]string{"n2": {"ops"}, "n1": {"dev"}}, NoDefaultPolicy: true,
			IssuedAt: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		},
		Request: audit.Request{
			ID: "r1", Operation: "update", MountType: "kv", MountPoint: "secret/", MountAccessor: "kv_1", MountClass: "secret",
			ClientToken: "hvs.caller", ClientTokenAccessor: "acc1", NamespaceID: "ns1", NamespacePath: "team/",
			Path: "secret/data/a \"quoted\"", Data: json.RawMessage(` {"data": {"k" : "v", "n": 1.50}, "options": {"cas": 0}} `),
			Query: url.Values{"Version": {"2"}}, RemoteAddress: "192.0.2.1", RemotePort: 4711,
			Headers:       http.Header{"User-Agent": {"cli/1"}, "X-Forwarded-For": {"192.0.2.7"}, "X-Custom": {"private"}, "X-Vault-Token": {"hvs.caller"}},
			ForwardedFrom: "node2", WrapTTL: time.Minute,
		},
		Response: &audit.Response{
			Auth: &audit.Auth{ClientToken: "hvs.new", Accessor: "acc2", TokenType: "service"},
			Data: json.RawMessage(`{"version":3,"keys":["x",null,true]}`), Warnings: []string{"careful"}, LeaseID: "l1", Status: 200,
			Wrap: &audit.Wrap{
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
	empty := recorded(t, &audit.Record{Time: fullRecord().Time}, true, nil)
	if want := at + `"type":"response","request":{"namespace":{}}}`; empty != want {
		t.Errorf("an empty record is written as %s, want %s", empty, want)
	}
}

func TestSaltsDiffer(t *testing.T) {
	if bytes.Equal(audit.NewSalt(), audit.NewSalt()) {
		t.Error("two salts are equal")
	}
	c := audit.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: audit.NewSalt()}
	b := audit.NewBroker(nil)
	if err := b.Add(c, &memDevice{}); err != nil {
		t.Fatal(err)
	}
	if h, err := b.Hash("a", "x"); err != nil || h == hash(t, "x") || len(h) != len("hmac-sha256:")+64 {
		t.Errorf("Hash = %q, %v", h, err)
	}
	if _, err := b.Hash("b", "x"); !errors.Is(err, audit.ErrNoDevice) {
		t.Errorf("Hash on an unknown device = %v, want ErrNoDevice", err)
	}
	c.Salt = nil
	if err := b.Add(c, &memDevice{}); err == nil {
		t.Error("a device without a salt is accepted")
	}
}

func TestFailClosed(t *testing.T) {
	full := errors.New("disk full")
	tests := []struct {
		name   string
		errs   []error
		fails  bool
		failed uint64 // devices
	}{
		{"no device", nil, false, 0},
		{"one works", []error{nil}, false, 0},
		{"one fails", []error{full}, true, 1},
		{"one of two fails", []error{full, nil}, false, 1},
		{"the other of two fails", []error{nil, full}, false, 1},
		{"both fail", []error{full, full}, true, 2},
	}
	for _, tt := range tests {
		for _, response := range []bool{false, true} {
			b := audit.NewBroker(nil)
			var devices []*memDevice
			for i, err := range tt.errs {
				d := device(t, b, string(rune('a'+i)), nil)
				d.err = err
				devices = append(devices, d)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the client hung up: recorded all the same
			write := b.Request
			if response {
				write = b.Response
			}
			err := write(ctx, fullRecord())
			if errors.Is(err, audit.ErrNotRecorded) != tt.fails || (err != nil) != tt.fails || tt.fails && !errors.Is(err, full) {
				t.Errorf("%s: %v, want failure: %v", tt.name, err, tt.fails)
			}
			for i, d := range devices {
				if got := len(d.lines) == 1; got != (tt.errs[i] == nil) {
					t.Errorf("%s: device %d has %d lines", tt.name, i, len(d.lines))
				}
			}
			s := b.Stats()
			if s.Requests+s.Responses != 1 || s.Failures == 1 != tt.fails || s.Errors != tt.failed || s.Devices != len(tt.errs) {
				t.Errorf("%s: stats %+v", tt.name, s)
			}
		}
	}
}

// A device that is replaced while requests run is never written to after it was closed.
func TestReplaceWhileWriting(t *testing.T) {
	b := audit.NewBroker(nil)
	device(t, b, "a", nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if err := b.Request(t.Context(), fullRecord()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		device(t, b, "a", nil)
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Request(t.Context(), fullRecord()); !errors.Is(err, audit.ErrNotRecorded) {
		t.Errorf("after Close = %v, want ErrNotRecorded", err)
	}
}

// counting is a device that only counts.
type counting struct{ lines *atomic.Int64 }

func (c counting) Write(context.Context, []byte) error { c.lines.Add(1); return nil }
func (counting) Reload() error                         { return nil }
func (counting) Close() error                          { return nil }

// A record is written by one of the two devices while one replaces the other.
func TestReplaceLosesNothing(t *testing.T) {
	b, lines := audit.NewBroker(nil), new(atomic.Int64)
	cfg := audit.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: audit.NewSalt()}
	if err := b.Add(cfg, counting{lines}); err != nil {
		t.Fatal(err)
	}
	const each, writers = 500, 4
	ctx, stop := context.WithCancel(t.Context())
	var wg, replacing sync.WaitGroup
	replacing.Go(func() {
		for ctx.Err() == nil {
			if err := b.Add(cfg, counting{lines}); err != nil {
				t.Error(err)
			}
		}
	})
	for range writers {
		wg.Go(func() {
			for range each {
				if err := b.Request(ctx, fullRecord()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	replacing.Wait()
	if n := lines.Load(); n != each*writers {
		t.Errorf("%d of %d records were written", n, each*writers)
	}
}

func BenchmarkPair(b *testing.B) {
	broker := audit.NewBroker(nil)
	c := audit.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: audit.NewSalt()}
	d, err := c.Open(audit.Files{})
	if err != nil {
		b.Fatal(err)
	}
	if err := broker.Add(c, d); err != nil {
		b.Fatal(err)
	}
	r := fullRecord()
	body := `{"data":{"password":"` + strings.Repeat("x", 480) + `","note":"` + strings.Repeat("y", 480) + `","n":12}}`
	r.Request.Data, r.Response.Data = json.RawMessage(body), json.RawMessage(body)
	r.Response.Wrap, r.Response.Auth, r.Request.Query = nil, nil, nil
	b.ReportAllocs()
	for b.Loop() {
		if err := broker.Request(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		if err := broker.Response(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
