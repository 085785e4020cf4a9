package conformance_test

import (
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	vault "github.com/hashicorp/vault/api"
	"github.com/openbao/openbao/api/v2"
)

// baoNamespaces are the calls for namespaces, which only one of the clients has.
func baoNamespaces(t *testing.T, c *harness.Cluster) {
	root := newBao(t, c).(bao)
	sys := root.Sys()
	t.Run("create", func(t *testing.T) {
		n, err := sys.CreateNamespace("typed", &api.CreateNamespaceInput{CustomMetadata: map[string]string{"a": "b"}})
		noErr(t, err)
		same(t, "path, metadata, locked", []any{n.Path, n.CustomMetadata, n.Locked}, []any{"typed/", map[string]string{"a": "b"}, false})
	})
	t.Run("read", func(t *testing.T) {
		n, err := sys.ReadNamespace("typed")
		noErr(t, err)
		same(t, "path", n.Path, "typed/")
	})
	t.Run("list", func(t *testing.T) {
		all, err := sys.ListNamespaces()
		noErr(t, err)
		if n := all["typed/"]; n == nil || n.CustomMetadata["a"] != "b" {
			t.Errorf("typed/ = %+v", n)
		}
	})
	t.Run("patch", func(t *testing.T) {
		n, err := sys.PatchNamespace("typed", &api.PatchNamespaceInput{CustomMetadata: map[string]any{"a": nil, "c": "d"}})
		noErr(t, err)
		same(t, "metadata", n.CustomMetadata, map[string]string{"c": "d"})
	})
	t.Run("a seal of its own is refused", func(t *testing.T) {
		_, err := sys.CreateNamespace("sealable", &api.CreateNamespaceInput{Seal: `seal "shamir" { shares = 1 threshold = 1 }`})
		says(t, err, 400, "seal")
	})
	t.Run("delete", func(t *testing.T) {
		n, err := sys.DeleteNamespace("typed")
		noErr(t, err)
		same(t, "status", n.Status, "in-progress")
		harness.Await(t, "its end", patience, func() error {
			n, err := sys.ReadNamespace("typed")
			if status, _, ok := answerOf(err); ok && status == 404 || err == nil && n == nil {
				return nil
			}
			return fmt.Errorf("reading it: %v, %v", n, err)
		})
	})
}

// baoAlone are the other calls that only this client has.
func baoAlone(t *testing.T, c *harness.Cluster) {
	root := newBao(t, c).(bao)
	x := &tour{Cluster: c, name: "bao-alone", root: root}
	x.kv(t, root, "pages")
	for _, name := range []string{"a", "b", "c", "d"} {
		done(t)(root.write("pages/"+name, map[string]any{"x": "1"}))
	}
	t.Run("lists in pages", func(t *testing.T) {
		same(t, "first", texts(data(t)(root.Logical().ListPage("pages", "", 2))["keys"]), []string{"a", "b"})
		same(t, "second", texts(data(t)(root.Logical().ListPage("pages", "b", 5))["keys"]), []string{"c", "d"})
	})
	t.Run("one mount", func(t *testing.T) {
		m, err := root.Sys().MountInfo("pages")
		noErr(t, err)
		same(t, "type", m.Type, "kv")
	})
	t.Run("rotate the key ring", func(t *testing.T) {
		before, err := root.keyStatus()
		noErr(t, err)
		noErr(t, root.Sys().RotateKeyring())
		after, err := root.keyStatus()
		noErr(t, err)
		same(t, "term", after.Term, before.Term+1)
	})
	t.Run("rotate the root key's shares", func(t *testing.T) {
		st, err := root.Sys().RotateRootInit(&api.RotateInitRequest{SecretShares: 3, SecretThreshold: 2})
		noErr(t, err)
		_, err = root.Sys().RotateRootUpdate(c.Keys[0], st.Nonce)
		noErr(t, err)
		changed, err := root.Sys().RotateRootUpdate(c.Keys[1], st.Nonce)
		noErr(t, err)
		same(t, "complete, shares", []any{changed.Complete, len(changed.KeysB64)}, []any{true, 3})
		c.Keys = changed.KeysB64
	})
	t.Run("rotating needs a token", func(t *testing.T) {
		_, err := root.as("").(bao).Sys().RotateRootInit(&api.RotateInitRequest{SecretShares: 3, SecretThreshold: 2})
		refused(t, err, 403)
	})
	t.Run("the watcher of a token", func(t *testing.T) {
		s, err := root.create(api.TokenCreateRequest{TTL: "3s"})
		noErr(t, err)
		w, err := root.as(s.Auth.ClientToken).(bao).NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: s})
		noErr(t, err)
		go w.Start()
		defer w.Stop()
		select {
		case renewed := <-w.RenewCh():
			same(t, "accessor", renewed.Secret.Auth.Accessor, s.Auth.Accessor)
		case err := <-w.DoneCh():
			t.Errorf("it gave up: %v", err)
		}
	})
}

// vaultAlone are the calls that only the other client has.
func vaultAlone(t *testing.T, c *harness.Cluster) {
	root := newVault(t, c).(incumbent)
	x := &tour{Cluster: c, name: "vault-alone", root: root}
	x.kv(t, root, "single")
	accessor := x.method(t, root, "single", "userpass")
	sys := root.Sys()
	t.Run("one mount", func(t *testing.T) {
		m, err := sys.GetMount("single")
		noErr(t, err)
		same(t, "type", m.Type, "kv")
	})
	t.Run("one auth method", func(t *testing.T) {
		m, err := sys.GetAuth("single")
		noErr(t, err)
		same(t, "type, accessor", []string{m.Type, m.Accessor}, []string{"userpass", accessor})
	})
	t.Run("tune some fields", func(t *testing.T) {
		ttl, text := "5m", ""
		noErr(t, sys.TuneMountAllowNil("single", vault.TuneMountConfigInput{DefaultLeaseTTL: &ttl, Description: &text}))
		got, err := root.mountConfig("single")
		noErr(t, err)
		same(t, "ttl", got.DefaultLeaseTTL, 300)
	})
	t.Run("capabilities by accessor", func(t *testing.T) {
		a := auth(t)(root.create(api.TokenCreateRequest{}))
		got, err := sys.CapabilitiesAccessor(a.Accessor, "single/a")
		noErr(t, err)
		same(t, "capabilities", got, []string{"root"})
	})
	t.Run("raw writes and deletes", func(t *testing.T) {
		r, err := root.Logical().WriteRaw("single/raw", []byte(`{"x":"1"}`))
		noErr(t, err)
		same(t, "status", r.StatusCode, 204)
		same(t, "data", data(t)(root.read("single/raw")), map[string]any{"x": "1"})
		r, err = root.Logical().DeleteRaw("single/raw")
		noErr(t, err)
		same(t, "status", r.StatusCode, 204)
		absent(t)(root.read("single/raw"))
	})
	t.Run("cancel a rekey by its nonce", func(t *testing.T) {
		st, err := root.rekeyInit(api.RekeyInitRequest{SecretShares: 3, SecretThreshold: 2})
		noErr(t, err)
		refused(t, sys.RekeyCancelWithNonce("00000000-0000-0000-0000-000000000000"), 400)
		noErr(t, sys.RekeyCancelWithNonce(st.Nonce))
		st, err = root.rekeyStatus()
		noErr(t, err)
		same(t, "started", st.Started, false)
	})
	t.Run("the watcher of a token", func(t *testing.T) {
		s, err := root.Auth().Token().Create(&vault.TokenCreateRequest{TTL: "3s"})
		noErr(t, err)
		w, err := root.as(s.Auth.ClientToken).(incumbent).NewLifetimeWatcher(&vault.LifetimeWatcherInput{Secret: s})
		noErr(t, err)
		go w.Start()
		defer w.Stop()
		select {
		case renewed := <-w.RenewCh():
			same(t, "accessor", renewed.Secret.Auth.Accessor, s.Auth.Accessor)
		case err := <-w.DoneCh():
			t.Errorf("it gave up: %v", err)
		}
	})
}
