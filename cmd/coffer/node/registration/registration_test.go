package registration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// apiServer takes patches of one pod's labels and nothing else.
func apiServer(t *testing.T, patches chan<- map[string]string) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Metadata struct{ Labels map[string]string }
		}
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if r.Method != http.MethodPatch || r.URL.Path != "/api/v1/namespaces/secrets/pods/coffer-0" || r.URL.RawQuery != "" ||
			r.Header.Get("Authorization") != "Bearer pod-token" || r.Header.Get("Content-Type") != "application/merge-patch+json" || d.Decode(&body) != nil {
			t.Errorf("unexpected request: %s %s", r.Method, r.URL)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Write([]byte("{}"))
		patches <- body.Metadata.Labels
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{"namespace": "secrets\n", "token": "pod-token\n", "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := serviceAccount
	serviceAccount = dir
	t.Cleanup(func() { serviceAccount = before })
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
}

// The labels of the pod follow the state, and say at the end that the node is sealed.
func TestLabelsFollowTheState(t *testing.T) {
	patches := make(chan map[string]string, 10)
	apiServer(t, patches)
	pod, err := New("", "coffer-0", "1.2.3+dirty build", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan State, 1)
	now := State{Sealed: true}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pod.Run(ctx, func(context.Context) State {
			select {
			case now = <-states:
			default:
			}
			return now
		})
	}()
	want := func(active, initialized, sealed, standby string) {
		t.Helper()
		all := map[string]string{}
		for _, p := range []string{"coffer", "openbao", "vault"} {
			all[p+"-active"], all[p+"-initialized"], all[p+"-sealed"], all[p+"-perf-standby"], all[p+"-version"] = active, initialized, sealed, standby, "1.2.3-dirty-build"
		}
		select {
		case got := <-patches:
			if !reflect.DeepEqual(got, all) {
				t.Errorf("labels = %v, want %v", got, all)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no labels came")
		}
	}
	want("false", "false", "true", "false")
	states <- State{Active: true, Initialized: true}
	want("true", "true", "false", "false")
	stop()
	<-ended
	want("false", "false", "true", "false")
	if len(patches) > 0 {
		t.Error("labels came that change nothing")
	}
}

func TestNoPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New("a", "b", "1", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a process outside of Kubernetes is taken for a pod")
	}
}
