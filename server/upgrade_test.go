package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/storage"
)

func (m *memory) members(peers ...members.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = peers
}

func (m *memory) olderMember(is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.older = is
}

// What an older version may not know is added when no member of such a version is left.
func TestUpgradeWaitsForAllMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := start(t)
		has := func() bool {
			t.Helper()
			m, err := in.Mount("identity/")
			if err != nil {
				t.Fatal(err)
			}
			return m != nil
		}
		// takeOver makes the data an older version's, and the node the active one.
		takeOver := func() {
			t.Helper()
			in.state.lead(false)
			synctest.Wait()
			m, err := in.Mount("identity/")
			if err != nil || m == nil {
				t.Fatalf("identity/ is %v, %v", m, err)
			}
			key := storage.NewKey(storage.Shared, "sys", "root/mounts/"+m.UUID)
			if _, err := in.state.Memory.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{key}}); err != nil {
				t.Fatal(err)
			}
			in.state.lead(true)
			synctest.Wait()
			if !in.Active() {
				t.Fatal("the node is not active")
			}
		}
		if takeOver(); !has() {
			t.Error("it was not added at once although no member has an older version")
		}

		in.state.olderMember(true)
		takeOver()
		time.Sleep(time.Minute)
		if has() {
			t.Error("added while a member has an older version")
		}
		in.must(in.root, engines.Read, "sys/mounts", "") // nothing waits for it
		in.state.olderMember(false)
		time.Sleep(10 * time.Second)
		if !has() {
			t.Error("not added when no member had an older version any more")
		}
	})
}

// A mount of a type that only a newer version has answers 503; everything else goes on.
func TestMountOfANewerVersion(t *testing.T) {
	in := start(t)
	for path, kind := range map[string]string{"later/": "later", "auth/later/": "laterauth"} {
		if err := in.AddMount(mount.NewEntry("root", path, kind, "")); err != nil {
			t.Fatal(err)
		}
	}
	reader := in.token("default")
	tests := []struct {
		name, token string
		op          engines.Operation
		path        string
		want        engines.Kind
	}{
		{"reading", in.root, engines.Read, "later/a", engines.KindUnavailable},
		{"writing", in.root, engines.Update, "later/a", engines.KindUnavailable},
		{"without the right", reader, engines.Read, "later/a", engines.KindDenied},
		{"logging in", "", engines.Update, "auth/later/login", engines.KindUnavailable},
		{"disabling", in.root, engines.Delete, "sys/mounts/later", engines.KindUnavailable},
		{"disabling the auth method", in.root, engines.Delete, "sys/auth/later", engines.KindUnavailable},
		{"another mount", in.root, engines.List, "secret/metadata", engines.KindNotFound},
		{"the list of mounts", in.root, engines.Read, "sys/mounts", 0},
		{"the document", in.root, engines.Read, "sys/internal/specs/openapi", 0},
	}
	for _, tt := range tests {
		_, err := in.do(tt.token, tt.op, tt.path, "")
		if tt.want == 0 && err != nil || tt.want != 0 && kind(err) != tt.want {
			t.Errorf("%s = %v, want kind %v", tt.name, err, tt.want)
		}
		if tt.want == engines.KindUnavailable && !strings.Contains(err.Error(), `type "later`) {
			t.Errorf("%s = %v, want the type", tt.name, err)
		}
	}
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	for op, path := range map[engines.Operation]string{engines.Read: "later/a", engines.Update: "auth/later/login"} {
		place, err := in.Requests().Place(t.Context(), &pipeline.Request{Op: op, Path: path})
		if err != nil || place != pipeline.Active {
			t.Errorf("a standby places %s %s at %v, %v, want the active node, which may know the type", op, path, place, err)
		}
	}
}
