package security_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// A second listener, which opens key ceremonies, in front of the one that the harness knows.
func openListener(t *testing.T) (url, config string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String() + "/v1/", fmt.Sprintf(`listener "tcp" {
  address = %q
  cluster_address = "127.0.0.1:0"
  tls_disable = true
  enable_unauthenticated_ceremonies = true
}`, l.Addr())
}

// without sends a request without a token to a listener of its own.
func without(t *testing.T, method, url string, body any, header ...string) (status int, data map[string]any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(answer, &data) // there may be none
	return resp.StatusCode, data
}

// TestCeremoniesNeedTokens: without a token, and with one that lacks sudo, a client neither begins nor sees, stops or spoils a
// key ceremony, unless the listener says so; and there, only with the nonce of the attempt.
func TestCeremoniesNeedTokens(t *testing.T) {
	t.Parallel()
	open, config := openListener(t)
	c := harness.NewCluster(t, 1, harness.Options{Shamir: true, Config: config})
	root := user{t, c.Nodes[0], c.RootToken, ""}
	ordinary := root.having("default")
	root.policy("no-sudo", `path "sys/*" { capabilities = ["create", "read", "update", "delete"] }`)
	almost := root.having("no-sudo")
	type step struct{ method, path string }
	var steps []step
	for _, prefix := range []string{"sys/generate-root/attempt", "sys/rekey/init", "sys/rekey/verify", "sys/rekey-recovery-key/init", "sys/rekey-recovery-key/verify"} {
		steps = append(steps, step{"GET", prefix}, step{"PUT", prefix}, step{"DELETE", prefix})
	}
	for _, path := range []string{"sys/generate-root/update", "sys/rekey/update", "sys/rekey-recovery-key/update"} {
		steps = append(steps, step{"PUT", path})
	}
	body := fields{"secret_shares": 1, "secret_threshold": 1, "key": c.Keys[0], "nonce": "x"}
	for _, s := range steps {
		for name, u := range map[string]user{"no token": root.nobody(), "an ordinary token": ordinary, "a token without sudo": almost, "a wrong token": root.with("hvs.wrong")} {
			for _, header := range [][]string{nil, {"Coffer-Open-Ceremonies", "1"}} {
				a := u.do(s.method, s.path, body, header...)
				if a.Status != 403 || len(a.Errors()) == 0 {
					t.Errorf("%s %s with %s: status %d, want 403: %.200s", s.method, s.path, name, a.Status, a.Body)
				}
			}
		}
	}
	if a := root.nobody().do("GET", "sys/rekey/init", nil); !strings.Contains(string(a.Body), "enable_unauthenticated_ceremonies") {
		t.Errorf("the rejection does not say what to change: %s", a.Body)
	}
	if status, _ := without(t, "GET", open+"sys/mounts", nil); status != 403 {
		t.Errorf("the listener with open ceremonies opens other paths: status %d", status)
	}
	if status, _ := without(t, "GET", open+"sys/rotate/root/init", nil); status != 403 {
		t.Errorf("the listener with open ceremonies opens the paths for tokens: status %d", status)
	}

	// With a token on the one listener, without on the other: the same attempt, which is not ended without its nonce.
	var s struct{ Nonce string }
	root.must("PUT", "sys/generate-root/attempt", fields{}).Decode(t, &s)
	for _, end := range []any{nil, fields{"nonce": "0d5b5b0a-91b5-44a4-8a6e-0b4f5f6c1a11"}} {
		if status, _ := without(t, "DELETE", open+"sys/generate-root/attempt", end); status != 400 {
			t.Errorf("cancelling without the nonce: status %d, want 400", status)
		}
	}
	status, data := without(t, "PUT", open+"sys/generate-root/update", fields{"key": c.Keys[0], "nonce": s.Nonce})
	if status != 200 || fmt.Sprint(data["progress"]) != "1" {
		t.Fatalf("the first share: status %d, %v", status, data)
	}
	for _, bad := range []string{"nonsense", "0d5b5b0a-91b5-44a4-8a6e-0b4f5f6c1a11"} {
		if status, _ := without(t, "PUT", open+"sys/generate-root/update", fields{"key": c.Keys[1], "nonce": bad}); status != 400 {
			t.Errorf("a share for another attempt: status %d, want 400", status)
		}
	}
	if status, data = without(t, "PUT", open+"sys/generate-root/update", fields{"key": c.Keys[1], "nonce": s.Nonce}); status != 200 || data["complete"] != true {
		t.Errorf("the last share: status %d, complete %v", status, data["complete"])
	}
}

// TestUnsealAttempts: wrong shares and resets of other addresses neither end nor spoil an attempt to unseal a node, whose
// holders may be at different addresses themselves.
func TestUnsealAttempts(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{Shamir: true})
	n := c.Nodes[0]
	n.Stop()
	n.Start()
	holder := user{t, n, "", ""}
	var s struct {
		Sealed   bool
		Progress int
		Nonce    string
	}
	junk := func(i int) string {
		return base64.StdEncoding.EncodeToString(append(bytes.Repeat([]byte{byte(i)}, 32), byte(i)))
	}
	stranger := func() {
		holder.from("127.0.0.2", func() {
			for i := range 9 { // they complete attempts of their own, which fail
				if a := holder.do("PUT", "sys/unseal", fields{"key": junk(i + 1)}); a.Status != 200 && a.Status != 400 {
					t.Errorf("a wrong share: status %d", a.Status)
				}
			}
			holder.must("PUT", "sys/unseal", fields{"reset": true})
			holder.must("PUT", "sys/unseal", fields{"reset": true, "nonce": "0d5b5b0a-91b5-44a4-8a6e-0b4f5f6c1a11"})
			holder.must("GET", "sys/seal-status", nil).Decode(t, &s)
			if s.Nonce != "" {
				t.Error("the nonce of an attempt is told to another address")
			}
		})
	}
	stranger()
	holder.must("PUT", "sys/unseal", fields{"key": c.Keys[0]}).Decode(t, &s)
	if !s.Sealed || s.Progress != 1 || s.Nonce == "" {
		t.Fatalf("after the first share: %+v", s)
	}
	stranger()
	holder.must("GET", "sys/seal-status", nil).Decode(t, &s)
	if s.Progress != 1 || s.Nonce == "" {
		t.Errorf("after a stranger's shares and resets: %+v", s)
	}
	holder.from("127.0.0.3", func() { holder.must("PUT", "sys/unseal", fields{"key": c.Keys[2]}).Decode(t, &s) })
	if s.Sealed {
		t.Fatalf("after the last share, from another address: %+v", s)
	}
	n.WaitHealth(200)
}
