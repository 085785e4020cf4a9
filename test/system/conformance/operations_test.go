package conformance_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

func (x *tour) passwords(t *testing.T) {
	c, at := x.root, "sys/policies/password/"+x.my("strong")
	text := `length = 20
rule "charset" { charset = "abcdefghijklmnopqrstuvwxyz" min-chars = 5 }
rule "charset" { charset = "0123456789" min-chars = 3 }`
	t.Run("write and read", func(t *testing.T) {
		done(t)(c.write(at, map[string]any{"policy": text}))
		same(t, "policy", data(t)(c.read(at))["policy"], any(text))
	})
	t.Run("base64", func(t *testing.T) {
		done(t)(c.write(at, map[string]any{"policy": base64.StdEncoding.EncodeToString([]byte(text))}))
		same(t, "policy", data(t)(c.read(at))["policy"], any(text))
	})
	t.Run("generate", func(t *testing.T) {
		seen := map[string]bool{}
		for range 5 {
			p := data(t)(c.read(at + "/generate"))["password"].(string)
			digits := len(p) - len(strings.Trim(strings.Map(func(r rune) rune {
				if r >= '0' && r <= '9' {
					return -1
				}
				return r
			}, p), ""))
			if len(p) != 20 || digits < 3 || len(p)-digits < 5 || seen[p] {
				t.Errorf("a password of %d characters with %d digits, seen before: %v", len(p), digits, seen[p])
			}
			seen[p] = true
		}
	})
	t.Run("list", func(t *testing.T) {
		contains(t, "policies", texts(data(t)(c.list("sys/policies/password"))["keys"]), x.my("strong"))
	})
	t.Run("bad ones", func(t *testing.T) {
		for _, bad := range []string{"", "length = 1", "length = 20", `length = 4 rule "charset" { charset = "ab" min-chars = 9 }`, "nonsense {"} {
			_, err := c.write(at, map[string]any{"policy": bad})
			refused(t, err, 400)
		}
	})
	t.Run("in a namespace", func(t *testing.T) {
		ns := x.my("words")
		x.namespace(t, c, ns)
		absent(t)(c.in(ns).read(at))
		done(t)(c.in(ns).write(at, map[string]any{"policy": text}))
	})
	t.Run("delete", func(t *testing.T) {
		done(t)(c.remove(at))
		absent(t)(c.read(at))
		absent(t)(c.read(at + "/generate"))
	})
}

func (x *tour) operations(t *testing.T) {
	c := x.root
	t.Run("health", func(t *testing.T) {
		h, err := c.health()
		noErr(t, err)
		same(t, "initialized, sealed, name", []any{h.Initialized, h.Sealed, h.ClusterName}, []any{true, false, "test"})
	})
	t.Run("seal status", func(t *testing.T) {
		s, err := c.sealStatus()
		noErr(t, err)
		same(t, "type, sealed, shares", []any{s.Type, s.Sealed, s.T, s.N}, []any{"shamir", false, 2, 3})
	})
	t.Run("host info", func(t *testing.T) {
		d := data(t)(c.read("sys/host-info"))
		for _, part := range []string{"cpu", "host", "memory", "disk", "timestamp"} {
			if d[part] == nil {
				t.Errorf("nothing of %q", part)
			}
		}
	})
	t.Run("version history", func(t *testing.T) {
		d := data(t)(c.list("sys/version-history"))
		keys := texts(d["keys"])
		same(t, "versions", len(keys), 1)
		if info := d["key_info"].(map[string]any)[keys[0]].(map[string]any); info["timestamp_installed"] == "" || info["previous_version"] != nil {
			t.Errorf("%v", info)
		}
	})
	t.Run("requests in flight", func(t *testing.T) {
		a := x.raw(t, x.node(), "GET", "/v1/sys/in-flight-req", x.RootToken, nil)
		same(t, "status", a.Status, 200)
		if !strings.Contains(string(a.Body), `"sys/in-flight-req"`) {
			t.Errorf("not even this one: %s", a.Body)
		}
	})
	t.Run("loggers", func(t *testing.T) {
		for _, n := range x.Nodes {
			var all map[string]any
			a := x.raw(t, n, "GET", "/v1/sys/loggers", x.RootToken, nil)
			a.Decode(t, &all)
			same(t, "status", a.Status, 200)
			same(t, "set", x.raw(t, n, "POST", "/v1/sys/loggers", x.RootToken, map[string]any{"level": "warn"}).Status, 204)
			same(t, "bad", x.raw(t, n, "POST", "/v1/sys/loggers", x.RootToken, map[string]any{"level": "loud"}).Status, 400)
			same(t, "reset", x.raw(t, n, "DELETE", "/v1/sys/loggers", x.RootToken, nil).Status, 204)
			same(t, "unknown", x.raw(t, n, "GET", "/v1/sys/loggers/nothing", x.RootToken, nil).Status, 404)
		}
	})
	t.Run("profiles", func(t *testing.T) {
		for _, path := range []string{"", "/heap?debug=1", "/goroutine?debug=1", "/cmdline"} {
			a := x.raw(t, x.node(), "GET", "/v1/sys/pprof"+path, x.RootToken, nil)
			if a.Status != 200 || len(a.Body) == 0 {
				t.Errorf("pprof%s: status %d, %d bytes", path, a.Status, len(a.Body))
			}
		}
	})
	t.Run("profiles need sudo", func(t *testing.T) {
		_, err := x.policy(t, c, "prof", `path "sys/pprof/*" { capabilities = ["read"] }`).read("sys/pprof/heap")
		refused(t, err, 403)
	})
	t.Run("sanitized configuration", func(t *testing.T) {
		a := x.raw(t, x.node(), "GET", "/v1/sys/config/state/sanitized", x.RootToken, nil)
		same(t, "status", a.Status, 200)
		if !strings.Contains(string(a.Body), `"api_addr"`) {
			t.Errorf("no api_addr: %s", a.Body)
		}
	})
	t.Run("CORS", func(t *testing.T) {
		noErr(t, c.setCORS(api.CORSRequest{AllowedOrigins: []string{"https://app.example"}, AllowedHeaders: []string{"X-Extra"}}))
		got, err := c.cors()
		noErr(t, err)
		same(t, "enabled, origins", []any{got.Enabled, got.AllowedOrigins}, []any{true, []string{"https://app.example"}})
		contains(t, "headers", got.AllowedHeaders, "X-Extra")
		a := x.raw(t, x.Leader(), "OPTIONS", "/v1/sys/mounts", "", nil, "Origin", "https://app.example", "Access-Control-Request-Method", "GET")
		same(t, "preflight", []any{a.Status / 100, a.Header.Get("Access-Control-Allow-Origin")}, []any{2, "https://app.example"})
		a = x.raw(t, x.Leader(), "GET", "/v1/sys/health", "", nil, "Origin", "https://evil.example")
		same(t, "another origin", a.Header.Get("Access-Control-Allow-Origin"), "")
		noErr(t, c.disableCORS())
		got, err = c.cors()
		noErr(t, err)
		same(t, "enabled", got.Enabled, false)
	})
	t.Run("headers of the UI", func(t *testing.T) {
		at := "sys/config/ui/headers/"
		done(t)(c.write(at+"X-Tour", map[string]any{"values": []string{"yes"}}))
		same(t, "value", data(t)(c.read(at + "X-Tour"))["value"], any("yes"))
		contains(t, "headers", texts(data(t)(c.list("sys/config/ui/headers"))["keys"]), "X-Tour")
		_, err := c.write(at+"X-Vault-Evil", map[string]any{"values": "no"})
		refused(t, err, 400)
		done(t)(c.remove(at + "X-Tour"))
		absent(t)(c.read(at + "X-Tour"))
	})
	t.Run("what the UI asks for", func(t *testing.T) {
		for _, path := range []string{"sys/internal/ui/mounts", "sys/internal/ui/resultant-acl", "sys/internal/ui/namespaces", "sys/license/status", "sys/license/features", "sys/activation-flags", "sys/internal/ui/default-auth-methods"} {
			data(t)(c.read(path))
		}
		contains(t, "features", texts(data(t)(c.read("sys/license/features"))["features"]), "Namespaces")
		contains(t, "flags", texts(data(t)(c.read("sys/activation-flags"))["activated"]), "secrets-sync")
		same(t, "status", x.raw(t, x.node(), "GET", "/v1/sys/internal/ui/feature-flags", "", nil).Status, 200)
	})
	t.Run("visible mounts", func(t *testing.T) {
		x.kv(t, c, x.my("visible"))
		me := x.policy(t, c, "visible", `path "`+x.my("visible")+`/*" { capabilities = ["read"] }`)
		d := data(t)(me.read("sys/internal/ui/mounts"))["secret"].(map[string]any)
		if d[x.my("visible")+"/"] == nil || d["identity/"] != nil {
			t.Errorf("mounts: %v", d)
		}
		fields(t, data(t)(me.read("sys/internal/ui/mounts/"+x.my("visible")+"/a")), map[string]any{"path": x.my("visible") + "/", "type": "kv"})
		_, err := me.read("sys/internal/ui/mounts/" + x.my("other") + "/a")
		refused(t, err, 403)
	})
	t.Run("resultant ACL", func(t *testing.T) {
		me := x.policy(t, c, "resultant", `path "a/b" { capabilities = ["read"] }
path "c/*" { capabilities = ["list"] }
path "sys/internal/ui/resultant-acl" { capabilities = ["read"] }`)
		d := data(t)(me.read("sys/internal/ui/resultant-acl"))
		if d["exact_paths"].(map[string]any)["a/b"] == nil || d["glob_paths"].(map[string]any)["c/"] == nil || d["root"] == true {
			t.Errorf("%v", d)
		}
	})
}

func (x *tour) snapshots(t *testing.T, root string) {
	c, at := x.root, "sys/storage/raft/snapshot-auto/"
	t.Run("local", func(t *testing.T) {
		done(t)(c.write(at+"config/"+x.my("daily"), map[string]any{"interval": "24h", "retain": 2, "storage_type": "local", "path_prefix": x.name, "file_prefix": "snap"}))
		fields(t, data(t)(c.read(at+"config/"+x.my("daily"))), map[string]any{"interval": 86400, "retain": 2, "storage_type": "local", "path_prefix": x.name})
		contains(t, "schedules", texts(data(t)(c.list(at + "config"))["keys"]), x.my("daily"))
		harness.Await(t, "the first snapshot", patience, func() error {
			d := data(t)(c.read(at + "status/" + x.my("daily")))
			if d["last_success"] == "" {
				return fmt.Errorf("status: %v", d)
			}
			same(t, "errors", d["last_snapshot_error"], any(""))
			return nil
		})
		files, err := filepath.Glob(filepath.Join(root, x.name, "snap*"))
		noErr(t, err)
		same(t, "files", len(files), 1)
		info, err := os.Stat(files[0])
		noErr(t, err)
		same(t, "mode", info.Mode().Perm(), os.FileMode(0o600))
	})
	t.Run("not elsewhere", func(t *testing.T) {
		for _, bad := range []string{"../x", "/etc", "a/../../x"} {
			_, err := c.write(at+"config/"+x.my("bad"), map[string]any{"interval": "24h", "storage_type": "local", "path_prefix": bad})
			refused(t, err, 400)
		}
	})
	t.Run("other types", func(t *testing.T) {
		for _, kind := range []string{"google-gcs", "azure-blob", "tape"} {
			_, err := c.write(at+"config/"+x.my("bad"), map[string]any{"interval": "24h", "storage_type": kind})
			refused(t, err, 400)
		}
	})
	t.Run("secrets are masked", func(t *testing.T) {
		done(t)(c.write(at+"config/"+x.my("s3"), map[string]any{
			"interval": "24h", "storage_type": "aws-s3", "aws_s3_bucket": "bucket-" + x.name, "aws_s3_region": "eu-west-1", "aws_s3_endpoint": "https://127.0.0.1:1",
			"aws_access_key_id": "id", "aws_secret_access_key": "not-to-be-read",
		}))
		fields(t, data(t)(c.read(at+"config/"+x.my("s3"))), map[string]any{"aws_secret_access_key": nil, "aws_access_key_id": "id"})
	})
	t.Run("delete", func(t *testing.T) {
		for _, name := range []string{"daily", "s3"} {
			done(t)(c.remove(at + "config/" + x.my(name)))
			absent(t)(c.read(at + "config/" + x.my(name)))
		}
	})
}

// reveal takes the one-time password off an encoded token.
func reveal(t *testing.T, encoded, otp string) string {
	t.Helper()
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	noErr(t, err)
	if len(raw) != len(otp) {
		t.Fatalf("the encoded token has %d bytes, the one-time password %d", len(raw), len(otp))
	}
	for i := range raw {
		raw[i] ^= otp[i]
	}
	return string(raw)
}

// generated makes a root token with key shares.
func (x *tour) generated(t *testing.T, shares []string) string {
	t.Helper()
	c := x.root // one client uses paths that need a token, the other ones that need none
	st, err := c.rootInit("")
	noErr(t, err)
	if !st.Started || st.OTP == "" || len(st.OTP) != st.OTPLength {
		t.Fatalf("an attempt with a one-time password of %d characters, %d expected", len(st.OTP), st.OTPLength)
	}
	otp, nonce := st.OTP, st.Nonce
	for i, share := range shares {
		st, err = c.rootUpdate(share, nonce)
		noErr(t, err)
		same(t, "progress", st.Progress, i+1)
	}
	same(t, "complete", st.Complete, true)
	return reveal(t, st.EncodedToken, otp)
}

func (x *tour) seals(t *testing.T) {
	c := x.root
	t.Run("generate a root token", func(t *testing.T) {
		token := x.generated(t, x.Keys[:2])
		same(t, "policies", texts(data(t)(c.as(token).lookupSelf())["policies"]), []string{"root"})
		noErr(t, c.revokeTree(token))
		st, err := c.rootStatus()
		noErr(t, err)
		same(t, "started", st.Started, false)
	})
	t.Run("cancel the generation", func(t *testing.T) {
		st, err := c.rootInit("")
		noErr(t, err)
		_, err = c.rootInit("")
		refused(t, err, 400)
		_, err = c.rootUpdate(x.Keys[0], "00000000-0000-0000-0000-000000000000")
		refused(t, err, 400)
		_, err = c.rootUpdate(x.Keys[0], st.Nonce)
		noErr(t, err)
		noErr(t, c.rootCancel())
		_, err = c.rootUpdate(x.Keys[1], st.Nonce)
		refused(t, err, 400)
	})
	t.Run("rotate", func(t *testing.T) {
		before, err := c.keyStatus()
		noErr(t, err)
		noErr(t, c.rotate())
		after, err := c.keyStatus()
		noErr(t, err)
		same(t, "term", after.Term, before.Term+1)
	})
	t.Run("rotation by itself", func(t *testing.T) {
		done(t)(c.write("sys/rotate/config", map[string]any{"interval": "720h", "enabled": true}))
		fields(t, data(t)(c.read("sys/rotate/config")), map[string]any{"enabled": true})
		_, err := c.write("sys/rotate/config", map[string]any{"max_operations": 1})
		refused(t, err, 400)
	})
	t.Run("rekey", func(t *testing.T) {
		x.Keys = x.rekeyed(t, api.RekeyInitRequest{SecretShares: 3, SecretThreshold: 2})
		same(t, "shares", len(x.Keys), 3)
		token := x.generated(t, []string{x.Keys[2], x.Keys[0]})
		noErr(t, c.revokeTree(token))
	})
	t.Run("rekey with verification", func(t *testing.T) {
		old := slices.Clone(x.Keys)
		keys := x.rekeyed(t, api.RekeyInitRequest{SecretShares: 3, SecretThreshold: 2, RequireVerification: true})
		noErr(t, c.revokeTree(x.generated(t, old[:2]))) // not yet
		s, err := c.read("sys/rekey/verify")
		nonce := data(t)(s, err)["nonce"].(string)
		_, err = c.rekeyVerify(keys[0], nonce)
		noErr(t, err)
		v, err := c.rekeyVerify(keys[1], nonce)
		noErr(t, err)
		same(t, "complete", v.Complete, true)
		x.Keys = keys
		noErr(t, c.revokeTree(x.generated(t, x.Keys[:2])))
	})
	t.Run("cancel a rekey", func(t *testing.T) {
		st, err := c.rekeyInit(api.RekeyInitRequest{SecretShares: 5, SecretThreshold: 3})
		noErr(t, err)
		same(t, "started", st.Started, true)
		noErr(t, c.rekeyCancel())
		st, err = c.rekeyStatus()
		noErr(t, err)
		same(t, "started", st.Started, false)
	})
	t.Run("what is refused", func(t *testing.T) {
		for _, r := range []api.RekeyInitRequest{
			{SecretShares: 2, SecretThreshold: 3}, {SecretShares: 3, SecretThreshold: 1}, {SecretShares: 0, SecretThreshold: 0},
			{SecretShares: 1, SecretThreshold: 1, PGPKeys: []string{"x"}},
		} {
			_, err := c.rekeyInit(r)
			refused(t, err, 400)
		}
		_, err := c.write("sys/rekey-recovery-key/init", map[string]any{"secret_shares": 1, "secret_threshold": 1})
		refused(t, err, 400)
	})
	t.Run("a node unseals with the new shares", func(t *testing.T) {
		n := x.Standbys()[0]
		same(t, "seal", x.raw(t, n, "PUT", "/v1/sys/seal", x.RootToken, nil).Status, 204)
		n.WaitHealth(503)
		n.Unseal()
		// It takes a moment to be current, which clients do not wait for.
		same(t, "seal at once", x.raw(t, n, "PUT", "/v1/sys/seal", x.RootToken, nil).Status, 204)
		n.Unseal()
		n.WaitHealth(200, 429)
	})
}

// rekeyed changes the unseal keys and returns the new ones.
func (x *tour) rekeyed(t *testing.T, r api.RekeyInitRequest) []string {
	t.Helper()
	c := x.root
	st, err := c.rekeyInit(r)
	noErr(t, err)
	_, err = c.rekeyUpdate(x.Keys[0], st.Nonce)
	noErr(t, err)
	done, err := c.rekeyUpdate(x.Keys[1], st.Nonce)
	noErr(t, err)
	same(t, "complete", done.Complete, true)
	return done.KeysB64
}

// TestRecoveryKeys is about a node that unseals itself: shares authorise what they do elsewhere, but unseal nothing.
func TestRecoveryKeys(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{Bare: true, NoRetryJoin: true})
	n := c.Nodes[0]
	n.WaitHealth(501)
	started, err := n.Client("").Sys().Init(&api.InitRequest{RecoveryShares: 3, RecoveryThreshold: 2})
	noErr(t, err)
	n.WaitHealth(200)
	c.RootToken, c.Keys = started.RootToken, started.RecoveryKeysB64
	x := &tour{Cluster: c, name: "bao", root: newBao(t, c)}
	if len(c.Keys) != 3 || len(started.KeysB64) != 0 {
		t.Fatalf("%d recovery keys and %d keys", len(c.Keys), len(started.KeysB64))
	}
	t.Run("status", func(t *testing.T) {
		s, err := x.root.sealStatus()
		noErr(t, err)
		same(t, "type, recovery seal, sealed", []any{s.Type, s.RecoverySeal, s.Sealed}, []any{"static", true, false})
	})
	t.Run("generate a root token", func(t *testing.T) {
		for _, client := range []client{newBao(t, c), newVault(t, c)} {
			x := &tour{Cluster: c, root: client}
			noErr(t, client.revokeTree(x.generated(t, c.Keys[1:])))
		}
	})
	t.Run("no unseal keys to change", func(t *testing.T) {
		_, err := x.root.rekeyInit(api.RekeyInitRequest{SecretShares: 3, SecretThreshold: 2})
		refused(t, err, 400)
	})
	t.Run("change the recovery keys", func(t *testing.T) {
		sys := n.Client(c.RootToken).Sys()
		st, err := sys.RekeyRecoveryKeyInit(&api.RekeyInitRequest{SecretShares: 2, SecretThreshold: 2})
		noErr(t, err)
		_, err = sys.RekeyRecoveryKeyUpdate(c.Keys[0], st.Nonce)
		noErr(t, err)
		changed, err := sys.RekeyRecoveryKeyUpdate(c.Keys[1], st.Nonce)
		noErr(t, err)
		same(t, "complete, keys", []any{changed.Complete, len(changed.KeysB64)}, []any{true, 2})
		c.Keys = changed.KeysB64
		noErr(t, x.root.revokeTree(x.generated(t, c.Keys)))
	})
	t.Run("under its other name", func(t *testing.T) {
		sys := n.Client(c.RootToken).Sys()
		st, err := sys.RotateRecoveryInit(&api.RotateInitRequest{SecretShares: 2, SecretThreshold: 2})
		noErr(t, err)
		same(t, "started", st.Started, true)
		noErr(t, sys.RotateRecoveryCancel())
	})
	t.Run("it unseals itself", func(t *testing.T) {
		n.Stop()
		n.Start()
		n.WaitHealth(200)
	})
}
