package conformance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/openbao/openbao/api/v2"
)

func (s *suite) kv2(t *testing.T) {
	s.mount(t, "kv2", "kv", map[string]string{"version": "2"})
	kv := s.root.KVv2("kv2")
	put := func(t *testing.T, path string, data map[string]any, o ...api.KVOption) *api.KVSecret {
		t.Helper()
		secret, err := kv.Put(s.ctx(), path, data, o...)
		noErr(t, err)
		return secret
	}
	get := func(t *testing.T, path string) *api.KVSecret {
		t.Helper()
		secret, err := kv.Get(s.ctx(), path)
		noErr(t, err)
		return secret
	}

	t.Run("put and get", func(t *testing.T) {
		w := put(t, "a/b", map[string]any{"user": "u", "n": 7, "list": []any{"x"}, "nothing": nil})
		same(t, "version", w.VersionMetadata.Version, 1)
		r := get(t, "a/b")
		same(t, "data", r.Data, map[string]any{"user": "u", "n": json.Number("7"), "list": []any{"x"}, "nothing": nil})
		if r.VersionMetadata.CreatedTime.IsZero() || time.Since(r.VersionMetadata.CreatedTime).Abs() > time.Hour {
			t.Errorf("created_time = %v", r.VersionMetadata.CreatedTime)
		}
	})
	t.Run("what goes in comes out", func(t *testing.T) {
		text := `{"big":9007199254740993,"float":1.10,"unicode":"ключ 🔑 \u0001","nested":{"z":1,"a":[true,false,null]},"":"empty name"}`
		a := s.raw(t, s.n1, "POST", "/v1/kv2/data/exact", s.RootToken, []byte(`{"data":`+text+`}`))
		same(t, "status", a.Status, 200)
		var out struct {
			Data struct{ Data json.RawMessage }
		}
		s.raw(t, s.n1, "GET", "/v1/kv2/data/exact", s.RootToken, nil).Decode(t, &out)
		same(t, "data", string(out.Data.Data), text)
	})
	t.Run("odd names", func(t *testing.T) {
		for _, name := range []string{"with space", "ünïcode", "dots.and-dashes_", "per%25cent", "q?mark", "plus+sign", "star*"} {
			put(t, "odd/"+name, map[string]any{"n": name})
			same(t, "data", get(t, "odd/"+name).Data["n"], any(name))
		}
	})
	t.Run("missing", func(t *testing.T) {
		_, err := kv.Get(s.ctx(), "none")
		if !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("versions", func(t *testing.T) {
		for i := range 3 {
			put(t, "v", map[string]any{"i": i})
		}
		r, err := kv.GetVersion(s.ctx(), "v", 2)
		noErr(t, err)
		same(t, "data, version", []any{r.Data["i"], r.VersionMetadata.Version}, []any{json.Number("1"), 2})
		list, err := kv.GetVersionsAsList(s.ctx(), "v")
		noErr(t, err)
		same(t, "versions", []int{len(list), list[0].Version, list[2].Version}, []int{3, 1, 3})
		if _, err := kv.GetVersion(s.ctx(), "v", 9); !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("version 9: %v", err)
		}
	})
	t.Run("check and set", func(t *testing.T) {
		put(t, "cas", map[string]any{"a": 1}, api.WithCheckAndSet(0))
		put(t, "cas", map[string]any{"a": 2}, api.WithCheckAndSet(1))
		for _, wrong := range []int{0, 1, 3} {
			_, err := kv.Put(s.ctx(), "cas", map[string]any{"a": 3}, api.WithCheckAndSet(wrong))
			status(t, err, 400, "check-and-set parameter did not match the current version")
		}
		same(t, "data", get(t, "cas").Data["a"], any(json.Number("2")))
	})
	t.Run("check and set required", func(t *testing.T) {
		put(t, "strict", map[string]any{"a": 1})
		noErr(t, kv.PutMetadata(s.ctx(), "strict", api.KVMetadataPutInput{CASRequired: true}))
		_, err := kv.Put(s.ctx(), "strict", map[string]any{"a": 2})
		status(t, err, 400, "check-and-set parameter required for this call")
		put(t, "strict", map[string]any{"a": 2}, api.WithCheckAndSet(1))
	})
	t.Run("patch", func(t *testing.T) {
		put(t, "p", map[string]any{"keep": "k", "change": "old", "drop": "x", "deep": map[string]any{"a": 1, "b": 2}})
		_, err := kv.Patch(s.ctx(), "p", map[string]any{"change": "new", "drop": nil, "deep": map[string]any{"b": 3}})
		noErr(t, err)
		same(t, "data", get(t, "p").Data, map[string]any{
			"keep": "k", "change": "new", "deep": map[string]any{"a": json.Number("1"), "b": json.Number("3")},
		})
	})
	t.Run("patch by read and write", func(t *testing.T) {
		_, err := kv.Patch(s.ctx(), "p", map[string]any{"more": "m"}, api.WithMergeMethod(api.KVMergeMethodReadWrite))
		noErr(t, err)
		same(t, "more", get(t, "p").Data["more"], any("m"))
	})
	t.Run("patch with check and set", func(t *testing.T) {
		_, err := kv.Patch(s.ctx(), "p", map[string]any{"x": 1}, api.WithCheckAndSet(1))
		status(t, err, 400)
		_, err = kv.Patch(s.ctx(), "p", map[string]any{"x": 1}, api.WithCheckAndSet(3))
		noErr(t, err)
	})
	t.Run("patch of nothing", func(t *testing.T) {
		_, err := kv.Patch(s.ctx(), "none", map[string]any{"a": 1})
		if !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("delete the latest", func(t *testing.T) {
		put(t, "d", map[string]any{"a": 1})
		noErr(t, kv.Delete(s.ctx(), "d"))
		r := get(t, "d")
		if r.Data != nil || r.VersionMetadata.DeletionTime.IsZero() {
			t.Errorf("after delete: data %v, deleted at %v", r.Data, r.VersionMetadata.DeletionTime)
		}
		same(t, "status", s.raw(t, s.n1, "GET", "/v1/kv2/data/d", s.RootToken, nil).Status, 404)
	})
	t.Run("undelete", func(t *testing.T) {
		noErr(t, kv.Undelete(s.ctx(), "d", []int{1}))
		same(t, "data", get(t, "d").Data, map[string]any{"a": json.Number("1")})
	})
	t.Run("delete versions", func(t *testing.T) {
		put(t, "d", map[string]any{"a": 2})
		put(t, "d", map[string]any{"a": 3})
		noErr(t, kv.DeleteVersions(s.ctx(), "d", []int{1, 2}))
		m, err := kv.GetMetadata(s.ctx(), "d")
		noErr(t, err)
		same(t, "deleted", []bool{m.Versions["1"].DeletionTime.IsZero(), m.Versions["2"].DeletionTime.IsZero(), m.Versions["3"].DeletionTime.IsZero()}, []bool{false, false, true})
	})
	t.Run("destroy", func(t *testing.T) {
		noErr(t, kv.Destroy(s.ctx(), "d", []int{3}))
		r := get(t, "d")
		same(t, "destroyed", r.VersionMetadata.Destroyed, true)
		if r.Data != nil {
			t.Errorf("a destroyed version still has data")
		}
		noErr(t, kv.Undelete(s.ctx(), "d", []int{3}))
		if r := get(t, "d"); r.Data != nil {
			t.Errorf("undelete brought a destroyed version back")
		}
	})
	t.Run("metadata", func(t *testing.T) {
		put(t, "m", map[string]any{"a": 1})
		noErr(t, kv.PutMetadata(s.ctx(), "m", api.KVMetadataPutInput{
			MaxVersions: 5, DeleteVersionAfter: time.Hour, CustomMetadata: map[string]any{"owner": "ops"},
		}))
		m, err := kv.GetMetadata(s.ctx(), "m")
		noErr(t, err)
		same(t, "settings", []any{m.MaxVersions, m.DeleteVersionAfter, m.CASRequired, m.CurrentVersion}, []any{5, time.Hour, false, 1})
		same(t, "custom", m.CustomMetadata, map[string]any{"owner": "ops"})
		same(t, "custom with the data", get(t, "m").CustomMetadata, map[string]any{"owner": "ops"})
	})
	t.Run("patch metadata", func(t *testing.T) {
		five := 7
		noErr(t, kv.PatchMetadata(s.ctx(), "m", api.KVMetadataPatchInput{MaxVersions: &five, CustomMetadata: map[string]any{"team": "t", "owner": nil}}))
		m, err := kv.GetMetadata(s.ctx(), "m")
		noErr(t, err)
		same(t, "settings", []any{m.MaxVersions, m.DeleteVersionAfter}, []any{7, time.Hour})
		same(t, "custom", m.CustomMetadata, map[string]any{"team": "t"})
	})
	t.Run("delete after", func(t *testing.T) {
		w := put(t, "m", map[string]any{"a": 2})
		if d := time.Until(w.VersionMetadata.DeletionTime); d <= 0 || d > time.Hour {
			t.Errorf("deletion_time is %v from now, want an hour", d)
		}
		same(t, "data", get(t, "m").Data, map[string]any{"a": json.Number("2")})
	})
	t.Run("max versions", func(t *testing.T) {
		noErr(t, kv.PutMetadata(s.ctx(), "few", api.KVMetadataPutInput{MaxVersions: 2}))
		for i := range 4 {
			put(t, "few", map[string]any{"i": i})
		}
		m, err := kv.GetMetadata(s.ctx(), "few")
		noErr(t, err)
		same(t, "versions, oldest, current", []int{len(m.Versions), m.OldestVersion, m.CurrentVersion}, []int{2, 3, 4})
	})
	t.Run("rollback", func(t *testing.T) {
		put(t, "r", map[string]any{"a": "first"})
		put(t, "r", map[string]any{"a": "second"})
		_, err := kv.Rollback(s.ctx(), "r", 1)
		noErr(t, err)
		r := get(t, "r")
		same(t, "data, version", []any{r.Data["a"], r.VersionMetadata.Version}, []any{"first", 3})
	})
	t.Run("list", func(t *testing.T) {
		put(t, "dir/one", map[string]any{"a": 1})
		put(t, "dir/sub/two", map[string]any{"a": 1})
		put(t, "dir/sub/three", map[string]any{"a": 1})
		for path, want := range map[string][]any{"kv2/metadata/dir": {"one", "sub/"}, "kv2/metadata/dir/sub/": {"three", "two"}} {
			secret, err := s.root.Logical().List(path)
			noErr(t, err)
			same(t, path, secret.Data["keys"], any(want))
		}
		secret, err := s.root.Logical().List("kv2/metadata/nothing-here")
		noErr(t, err)
		if secret != nil {
			t.Errorf("listing nothing: %v", secret.Data)
		}
	})
	t.Run("delete metadata", func(t *testing.T) {
		noErr(t, kv.DeleteMetadata(s.ctx(), "dir/one"))
		if _, err := kv.Get(s.ctx(), "dir/one"); !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("after deleting everything: %v", err)
		}
		same(t, "version", put(t, "dir/one", map[string]any{"a": 1}).VersionMetadata.Version, 1)
	})
	t.Run("mount settings", func(t *testing.T) {
		_, err := s.root.Logical().Write("kv2/config", map[string]any{"max_versions": 3, "delete_version_after": "12h"})
		noErr(t, err)
		secret, err := s.root.Logical().Read("kv2/config")
		noErr(t, err)
		same(t, "settings", []any{secret.Data["max_versions"], secret.Data["cas_required"], secret.Data["delete_version_after"]}, []any{json.Number("3"), false, "12h0m0s"})
		_, err = s.root.Logical().Write("kv2/config", map[string]any{"max_versions": 0, "delete_version_after": "0s"})
		noErr(t, err)
	})
	t.Run("subkeys", func(t *testing.T) {
		put(t, "sub", map[string]any{"a": map[string]any{"b": "secret"}, "c": "secret"})
		a := s.raw(t, s.n1, "GET", "/v1/kv2/subkeys/sub", s.RootToken, nil)
		same(t, "status", a.Status, 200)
		if strings.Contains(string(a.Body), `"secret"`) {
			t.Errorf("subkeys show a value")
		}
		var out struct {
			Data struct{ Subkeys map[string]any }
		}
		a.Decode(t, &out)
		same(t, "subkeys", out.Data.Subkeys, map[string]any{"a": map[string]any{"b": nil}, "c": nil})
	})
	t.Run("a write without data", func(t *testing.T) {
		_, err := s.root.Logical().Write("kv2/data/x", map[string]any{"value": "forgot the wrapper"})
		status(t, err, 400, "no data provided")
		_, err = s.root.Logical().Write("kv2/data/x", map[string]any{"data": "text"})
		status(t, err, 400, "data")
	})
	t.Run("the largest value", func(t *testing.T) {
		put(t, "large", map[string]any{"v": strings.Repeat("x", 1000<<10)})
		_, err := kv.Put(s.ctx(), "large", map[string]any{"v": strings.Repeat("x", 1100<<10)})
		status(t, err, 413)
		same(t, "version", get(t, "large").VersionMetadata.Version, 1)
	})
	t.Run("envelope", func(t *testing.T) {
		var out map[string]any
		a := s.raw(t, s.n1, "GET", "/v1/kv2/data/a/b", s.RootToken, nil)
		a.Decode(t, &out)
		for _, key := range []string{"request_id", "lease_id", "renewable", "lease_duration", "data", "wrap_info", "warnings", "auth", "mount_type"} {
			if _, ok := out[key]; !ok {
				t.Errorf("the envelope lacks %q", key)
			}
		}
		same(t, "mount_type", out["mount_type"], any("kv"))
		same(t, "content type", a.Header.Get("Content-Type"), "application/json")
		same(t, "caching", a.Header.Get("Cache-Control"), "no-store")
	})
}

func (s *suite) kv1(t *testing.T) {
	s.mount(t, "kv1", "kv", nil)
	kv := s.root.KVv1("kv1")
	t.Run("put and get", func(t *testing.T) {
		noErr(t, kv.Put(s.ctx(), "a", map[string]any{"x": "y", "n": 1}))
		r, err := kv.Get(s.ctx(), "a")
		noErr(t, err)
		same(t, "data", r.Data, map[string]any{"x": "y", "n": json.Number("1")})
		if r.Raw.LeaseDuration <= 0 || r.Raw.Renewable {
			t.Errorf("lease_duration %d, renewable %v", r.Raw.LeaseDuration, r.Raw.Renewable)
		}
	})
	t.Run("overwrite", func(t *testing.T) {
		noErr(t, kv.Put(s.ctx(), "a", map[string]any{"z": "w"}))
		r, err := kv.Get(s.ctx(), "a")
		noErr(t, err)
		same(t, "data", r.Data, map[string]any{"z": "w"})
	})
	t.Run("ttl", func(t *testing.T) {
		noErr(t, kv.Put(s.ctx(), "lease", map[string]any{"ttl": "90s"}))
		r, err := kv.Get(s.ctx(), "lease")
		noErr(t, err)
		same(t, "lease_duration", r.Raw.LeaseDuration, 90)
	})
	t.Run("list", func(t *testing.T) {
		noErr(t, kv.Put(s.ctx(), "dir/b", map[string]any{"x": 1}))
		r, err := kv.List(s.ctx(), "")
		noErr(t, err)
		same(t, "keys", r.Keys, []string{"a", "dir/", "lease"})
	})
	t.Run("delete", func(t *testing.T) {
		noErr(t, kv.Delete(s.ctx(), "a"))
		noErr(t, kv.Delete(s.ctx(), "a"))
		if _, err := kv.Get(s.ctx(), "a"); !errors.Is(err, api.ErrSecretNotFound) {
			t.Errorf("after delete: %v", err)
		}
	})
	t.Run("an empty write", func(t *testing.T) {
		_, err := s.root.Logical().Write("kv1/a", nil)
		status(t, err, 400)
	})
	t.Run("many keys", func(t *testing.T) {
		for i := range 100 {
			noErr(t, kv.Put(s.ctx(), fmt.Sprintf("many/%03d", i), map[string]any{"i": i}))
		}
		r, err := kv.List(s.ctx(), "many")
		noErr(t, err)
		same(t, "keys", []any{len(r.Keys), r.Keys[0], r.Keys[99]}, []any{100, "000", "099"})
	})
}
