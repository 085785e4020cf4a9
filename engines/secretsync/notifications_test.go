package secretsync_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/signature"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/webhooktest"
)

// notified is a request that a receiver of notifications got.
type notified struct {
	header http.Header
	body   string
}

// receiver starts a receiver of notifications, which the operator's endpoint leads to.
func receiver(t *testing.T) (url string, got chan notified, operator connection.Operator) {
	t.Helper()
	got = make(chan notified, 100)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			got <- notified{r.Header, string(body)}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return srv.URL + "/coffer", got, connection.Operator{AllowPrivate: true, Endpoints: map[string]connection.Endpoint{"webhook": {CAFile: ca}}}
}

// TestNotifications: a receiver gets a signed request about a destination that needs attention, without a name of a secret.
func TestNotifications(t *testing.T) {
	url, got, operator := receiver(t)
	r := newRig(t, operator)
	r.start()
	defer r.stop()
	const key = webhooktest.Key
	r.kv.Put("hidden-secret", "k", "hidden-value")
	config := r.Data(r.Must(engines.Patch, "sync/config", map[string]any{"notification_url": url, "notification_signing_key": key}))
	same(t, "the key is masked", config["notification_signing_key"], "*****")

	d := "sync/destinations/" + syncsim.Marked + "/prod"
	r.Must(engines.Update, d, map[string]any{"site": "one", "label": "prod", "secret_name_template": "{{ .SecretPath }}"})
	r.sites.Site(syncsim.Marked, "one").Put("hidden-secret", "another client's")
	r.sites.SetFault(func(c syncsim.Call) syncsim.Fault {
		if strings.Contains(c.Name, "denied") {
			return syncsim.Fault{Kind: syncsim.Reject}
		}
		return syncsim.Fault{}
	})
	r.kv.Put("denied-secret", "k", "hidden-value")
	for _, name := range []string{"hidden-secret", "denied-secret"} {
		r.Must(engines.Update, d+"/associations/set", map[string]any{"mount": "kv", "secret_name": name})
	}
	var n notified
	select {
	case n = <-got:
	case <-time.After(time.Minute):
		t.Fatal("nothing is received")
	}
	if !webhooktest.Verified(n.header.Get(signature.Header), []byte(n.body)) || n.header.Get("Content-Type") != "application/json" {
		t.Errorf("received with %v", n.header)
	}
	if strings.Contains(n.body, "secret-") || strings.Contains(n.body, "-secret") || strings.Contains(n.body, "hidden") || strings.Contains(n.body, key) {
		t.Errorf("it tells too much: %s", n.body)
	}
	var body struct {
		ID, Timestamp, Destination string
		Namespace                  *string
		Events                     []struct {
			Event, Code, At string
			Secrets         int
		}
	}
	if err := json.Unmarshal([]byte(n.body), &body); err != nil {
		t.Fatal(err)
	}
	if body.ID == "" || body.ID != n.header.Get("Idempotency-Key") || body.Destination != syncsim.Marked+"/prod" || body.Namespace == nil || *body.Namespace != "" {
		t.Errorf("received %s", n.body)
	}
	events := map[string]int{}
	for _, e := range body.Events {
		events[e.Event+" "+e.Code] = e.Secrets
	}
	same(t, "events", events, map[string]int{"conflict conflict": 1, "failure " + destination.Denied: 1})
}

// TestNotificationsStayOutside: a receiver at an address that destinations may not reach is not called.
func TestNotificationsStayOutside(t *testing.T) {
	run(t, func(r *rig) {
		r.Must(engines.Update, "sync/config", map[string]any{"notification_url": "https://127.0.0.1:1", "notification_allowed_ipv4_addresses": "127.0.0.0/8", "notification_allowed_ports": 1})
		d := r.dest(syncsim.Marked, "prod", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		r.sites.Site(syncsim.Marked, "one").Put("a", "another client's")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		time.Sleep(time.Minute)
		r.stop()
		same(t, "failures", r.svc.Numbers()["sync_notification_failures_total"], 1)
		if log := r.logs.String(); !strings.Contains(log, "secret sync does not connect to addresses of this machine") {
			t.Errorf("the log says %s", log)
		}
		r.start()
	})
}

// TestNotificationsSurviveTheActiveNode: what an active node had no time to send, the next one does; what happened long ago is not sent
// again.
func TestNotificationsSurviveTheActiveNode(t *testing.T) {
	run(t, func(r *rig) {
		r.Must(engines.Update, "sync/config", map[string]any{"notification_url": "https://127.0.0.1:1"}) // each is given up, and counted, at once
		sent := func() float64 { return r.svc.Numbers()["sync_notification_failures_total"] }
		d := r.dest(syncsim.Marked, "prod", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		r.sites.Site(syncsim.Marked, "one").Put("a", "another client's")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.stop()
		same(t, "sent by the first node", sent(), 0)
		r.start()
		time.Sleep(time.Minute)
		same(t, "sent by the second node", sent(), 1)
		time.Sleep(time.Hour)
		r.stop()
		r.start()
		time.Sleep(time.Hour)
		same(t, "sent an hour later", sent(), 1)
	})
}

func TestNotificationConfig(t *testing.T) {
	run(t, func(r *rig) {
		const path = "sync/config"
		const key = "0123456789abcdef"
		fails := func(body map[string]any, want string) {
			t.Helper()
			if _, err := r.Do(engines.Patch, path, body); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v: %v, want %q", body, err, want)
			}
		}
		read := func() map[string]any { return r.Data(r.Must(engines.Read, path, nil)) }
		none := read()
		fails(map[string]any{"notification_url": "http://ops.example.com"}, `"notification_url": must be a URL that begins with https://`)
		fails(map[string]any{"notification_url": "https://u:hidden@ops.example.com"}, `"notification_url": must be a URL without credentials`)
		fails(map[string]any{"notification_signing_key": key}, `"notification_url": is required`)
		fails(map[string]any{"notification_url": "https://ops.example.com", "notification_signing_key": "hidden"}, `"notification_signing_key": must have at least 16 bytes`)
		fails(map[string]any{"notification_url": "https://ops.example.com", "notification_signing_key": "*****"}, `"notification_signing_key": must be the credential itself`)
		fails(map[string]any{"notification_url": "https://ops.example.com", "notification_allowed_ports": "x"}, `"notification_allowed_ports": element 1 is not a port`)
		fails(map[string]any{"notification_key": key}, "notification_key")
		same(t, "nothing is stored", read(), none)

		r.Must(engines.Patch, path, map[string]any{"notification_url": "https://ops.example.com/a", "notification_signing_key": key, "notification_allowed_ports": 8443})
		want := map[string]any{"notification_url": "https://ops.example.com/a", "notification_signing_key": "*****", "notification_allowed_ports": []string{"8443"}, "disabled": false, "drift_interval": 3600, "queue_capacity": 1000000}
		same(t, "stored", read(), want)
		r.Must(engines.Patch, path, map[string]any{"notification_signing_key": "*****", "disabled": false})
		same(t, "kept", read(), want)
		fails(map[string]any{"notification_url": "https://other.example.com/a"}, `"notification_signing_key": give it, too`)
		fails(map[string]any{"notification_url": "https://other.example.com/a", "notification_signing_key": "*****"}, `"notification_signing_key": give it, too`)
		r.Must(engines.Patch, path, map[string]any{"notification_url": "https://other.example.com/a", "notification_signing_key": nil})
		delete(want, "notification_signing_key")
		want["notification_url"] = "https://other.example.com/a"
		same(t, "another receiver", read(), want)
		fails(map[string]any{"notification_url": "", "notification_signing_key": key}, `"notification_url": is empty`)
		r.Must(engines.Patch, path, map[string]any{"notification_url": nil})
		same(t, "ended", read(), none)
	})
}
