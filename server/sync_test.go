package server_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// syncing takes the place of secret sync.
type syncing struct {
	engines.Host

	mu      sync.Mutex
	running bool
	changes int
	gone    []string // mounts and namespaces
	refuse  error    // what MountGone answers
}

type seenIn struct {
	Mounts engines.StringList `json:"mounts" help:"UUIDs of mounts."`
}

func (s *syncing) Routes(r *engines.Router) {
	r.Synonym = func(path string) (other, neutral string) {
		for name, other := range map[string]string{"sync/destinations/ours/": "sync/destinations/theirs/", "sync/destinations/theirs/": "sync/destinations/ours/"} {
			if rest, ok := strings.CutPrefix(path, name); ok {
				return other + rest, "sync/destinations/" + engines.Unnamed + "/" + rest
			}
		}
		return "", ""
	}
	engines.On(r, engines.Read, "sync/destinations/{type}/{name}", "Read a destination.", 0, func(_ context.Context, _ *engines.Request, in *destinationInput) (*engines.Response, error) {
		return &engines.Response{Data: map[string]any{"type": in.Type}}, nil
	})
	engines.On(r, engines.Update, "sync/who", "Answer who asks.", 0, func(_ context.Context, req *engines.Request, _ *struct{}) (*engines.Response, error) {
		return &engines.Response{Data: engines.PrincipalOf(req.Caller)}, nil
	})
	const flags = engines.Primary | engines.Active
	engines.On(r, engines.Read, "sync/config", "Answer whom the caller sees as what.", flags|engines.RootNamespace, func(_ context.Context, req *engines.Request, in *seenIn) (*engines.Response, error) {
		out := map[string]any{}
		for _, name := range in.Mounts {
			out[name] = req.Caller.Sees(name)
		}
		if req.Caller.Identity != nil {
			out["name"], _ = req.Caller.Identity("identity.entity.name")
		}
		return &engines.Response{Data: out}, nil
	})
}

type destinationInput struct {
	Type string `json:"type" help:"Type of the destination."`
	Name string `json:"name" help:"Name of the destination."`
}

func (s *syncing) Changed(storage.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

func (s *syncing) Run(ctx context.Context) {
	s.set(true)
	defer s.set(false)
	<-ctx.Done()
}

func (s *syncing) set(running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = running
}

func (s *syncing) runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

func (s *syncing) told() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes > 0
}

func (s *syncing) RoleChanged() {}

func (s *syncing) MountGone(_ context.Context, uuid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.gone = append(s.gone, uuid)
	}
	return s.refuse
}

func (s *syncing) NamespaceGone(_ context.Context, id string) error {
	return s.MountGone(context.Background(), id)
}

func (s *syncing) Numbers() map[string]float64 { return nil }

func (s *syncing) saw(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.gone, what)
}

// TestSyncRunsWhileActive: it is told of changes, and stopped when the server is sealed.
func TestSyncRunsWhileActive(t *testing.T) {
	in := start(t)
	in.until(in.sync.runs, "it does not run")
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.until(in.sync.told, "it is not told of changes")
	if !in.sync.Owner() {
		t.Error("a cluster by itself is not the owner")
	}
	in.must(in.root, engines.Update, "sys/seal", "")
	in.until(func() bool { return !in.sync.runs() }, "it runs while the server is sealed")
}

// TestSyncKnowsOlderMembers: what they would ignore must not be stored.
func TestSyncKnowsOlderMembers(t *testing.T) {
	in := start(t)
	for _, older := range []bool{true, false} {
		if in.state.olderMember(older); in.sync.FormatsAgreed() == older {
			t.Errorf("formats are agreed: %v, with an older member: %v", !older, older)
		}
	}
}

// TestSyncFindsMounts: by path and accessor, within a namespace, and by UUID anywhere.
func TestSyncFindsMounts(t *testing.T) {
	in := start(t)
	ctx := t.Context()
	in.must(in.root, engines.Update, "sys/namespaces/team", "")
	in.mustIn("team", in.root, engines.Update, "sys/mounts/own", `{"type":"kv-v2"}`)
	namespaces, err := in.sync.Namespaces(ctx)
	if err != nil || len(namespaces) != 2 || namespaces[0] != "root" || in.sync.NamespacePath(namespaces[1]) != "team/" || in.sync.NamespacePath("root") != "" {
		t.Fatalf("namespaces %q, %v", namespaces, err)
	}
	m, err := in.sync.MountAt(ctx, "root", "secret")
	if err != nil || m == nil || m.Path != "secret/" {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, ok := m.Engine.(engines.SecretSource); !ok {
		t.Errorf("%T has no secrets", m.Engine)
	}
	own, err := in.sync.MountAt(ctx, namespaces[1], "own/")
	if err != nil || own == nil {
		t.Fatalf("%+v, %v", own, err)
	}
	for _, test := range []struct {
		ns, path string
		want     *engines.Mounted
	}{
		{"root", "secret/", m}, {"root", m.Accessor, m}, {namespaces[1], "own", own}, {namespaces[1], own.Accessor, own},
		{"root", "own", nil}, {"root", "team/own", nil}, {"root", own.Accessor, nil}, {namespaces[1], "secret", nil}, {namespaces[1], m.Accessor, nil},
		{"root", "", nil}, {"root", "none", nil}, {"root", "secret/data", nil}, {"none", "secret", nil},
	} {
		got, err := in.sync.MountAt(ctx, test.ns, test.path)
		if err != nil || (got == nil) != (test.want == nil) || got != nil && got.UUID != test.want.UUID {
			t.Errorf("%s in %s: %+v, %v", test.path, test.ns, got, err)
		}
	}
	for uuid, there := range map[string]bool{m.UUID: true, own.UUID: true, "none": false} {
		if got, err := in.sync.MountOf(ctx, uuid); err != nil || (got != nil) != there {
			t.Errorf("%s: %+v, %v", uuid, got, err)
		}
	}
}

// TestSyncHearsOfTheEnd: mounts and namespaces stay until it has agreed.
func TestSyncHearsOfTheEnd(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/mounts/old", `{"type":"kv-v2"}`)
	m, err := in.sync.MountAt(t.Context(), "root", "old")
	if err != nil || m == nil {
		t.Fatal(err)
	}
	in.must(in.root, engines.Delete, "sys/mounts/old", "")
	in.until(func() bool { return in.sync.saw(m.UUID) }, "the end of a mount is not told")
	in.must(in.root, engines.Update, "sys/namespaces/team", "")
	all, err := in.sync.Namespaces(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%q, %v", all, err)
	}
	in.must(in.root, engines.Delete, "sys/namespaces/team", "")
	in.until(func() bool { return in.sync.saw(all[1]) }, "the end of a namespace is not told")
}

// TestSyncAsksWhoMayRead: by the policies of the token, the entity and what is stored now.
func TestSyncAsksWhoMayRead(t *testing.T) {
	in := start(t)
	ctx := t.Context()
	in.must(in.root, engines.Update, "sys/policies/acl/reader", `{"policy":"path \"secret/data/app\" { capabilities = [\"read\"] }\npath \"sys/sync/who\" { capabilities = [\"update\", \"create\"] }"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/asker", `{"policy":"path \"sys/sync/who\" { capabilities = [\"update\", \"create\"] }"}`)
	may := func(who engines.Principal, path string, want bool) {
		t.Helper()
		if got, err := in.sync.MayRead(ctx, who, "root", path); err != nil || got != want {
			t.Errorf("%+v, %s: %v, %v, want %v", who, path, got, err, want)
		}
	}
	token := engines.Principal{NamespaceID: "root", Policies: []string{"reader"}}
	got := data(t, in.must(in.token("reader"), engines.Update, "sys/sync/who", ""))
	if got["namespace_id"] != "root" || !slices.Contains(got["policies"].([]any), any("reader")) {
		t.Errorf("who asks is %v", got)
	}
	may(token, "secret/data/app", true)
	may(token, "secret/data/other", false)
	may(engines.Principal{NamespaceID: "root", Policies: []string{"root"}}, "secret/data/other", true)
	may(engines.Principal{NamespaceID: "root", Policies: []string{"none"}}, "secret/data/app", false)
	may(engines.Principal{NamespaceID: "gone", Policies: []string{"reader"}}, "secret/data/app", false)
	may(engines.Principal{NamespaceID: "root", Policies: []string{"asker"}, EntityID: "gone"}, "secret/data/app", false)

	in.must(in.root, engines.Update, "identity/entity/name/bob", `{"policies":"reader"}`)
	id, _ := data(t, in.must(in.root, engines.Read, "identity/entity/name/bob", ""))["id"].(string)
	entity := engines.Principal{NamespaceID: "root", Policies: []string{"asker"}, EntityID: id}
	may(entity, "secret/data/app", true)
	in.must(in.root, engines.Update, "identity/entity/name/bob", `{"disabled":true}`)
	may(entity, "secret/data/app", false)
	in.must(in.root, engines.Update, "identity/entity/name/bob", `{"disabled":false,"policies":"default"}`)
	may(entity, "secret/data/app", false)
	in.must(in.root, engines.Update, "sys/policies/acl/reader", `{"policy":"path \"secret/data/other\" { capabilities = [\"read\"] }"}`)
	may(token, "secret/data/app", false)
}

// TestSyncIsOnTheTrail: with who wanted it, and values of data only as their HMAC; what cannot be recorded fails.
func TestSyncIsOnTheTrail(t *testing.T) {
	in := start(t)
	file := t.TempDir() + "/audit.log"
	in.must(in.root, engines.Update, "sys/audit/file", `{"type":"file","options":{"file_path":"`+file+`"}}`)
	event := engines.Event{
		NamespaceID: "root", Operation: engines.Update, Path: "sys/sync/destinations/x/y/associations/sync", Data: map[string]any{"secret_name": "a-name-of-a-secret"},
		Who: engines.Principal{DisplayName: "somebody", Policies: []string{"p"}},
	}
	if err := in.sync.Record(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, event.Path) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"type":"request"`) || !strings.Contains(lines[1], `"type":"response"`) ||
		!strings.Contains(lines[0], "somebody") || !strings.Contains(lines[0], "hmac-sha256:") || strings.Contains(string(text), "a-name-of-a-secret") {
		t.Errorf("the audit log is %q", lines)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	_ = in.sync.Record(ctx, event) // it does not hang
}

// TestSyncThroughASecondary: the configuration is read by whom the primary's policies let, and who reads it sees what the secondary has.
func TestSyncThroughASecondary(t *testing.T) {
	primary, secondary, w := follow(t)
	ctx := t.Context()
	primary.must(primary.root, engines.Update, "sys/mounts/hidden", `{"type":"kv-v2"}`)
	primary.must(primary.root, engines.Update, "sys/namespaces/team", "")
	primary.must(primary.root, engines.Update, "sys/policies/acl/reader", `{"policy":"path \"sys/sync/config\" { capabilities = [\"read\"] }\npath \"team/sys/sync/config\" { capabilities = [\"read\"] }"}`)
	primary.must(primary.root, engines.Update, "sys/replication/performance/primary/paths-filter/b", `{"mode":"deny","paths":["hidden/"]}`)
	primary.must(primary.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	primary.must(primary.root, engines.Update, "auth/userpass/users/ann", `{"password":"correct horse","token_policies":"reader"}`)
	if err := w.copy(ctx); err != nil {
		t.Fatal(err)
	}
	var ids [2]string
	for i, path := range []string{"hidden", "secret"} {
		m, err := primary.sync.MountAt(ctx, "root", path)
		if err != nil || m == nil {
			t.Fatal(path, err)
		}
		ids[i] = m.UUID
	}
	const path = "sys/sync/config"
	body := `{"mounts":"` + ids[0] + "," + ids[1] + `"}`
	ann := secondary.must("", engines.Update, "auth/userpass/login/ann", `{"password":"correct horse"}`).Auth
	got := data(t, secondary.must(ann.ClientToken, engines.Read, path, body))
	if got[ids[0]] != false || got[ids[1]] != true {
		t.Errorf("the mounts that it sees are %v, want secret/ alone", got)
	}
	if name, _ := got["name"].(string); !strings.HasPrefix(name, "entity") {
		t.Errorf("who asks is %q, want the name of an entity", name)
	}
	if got := data(t, primary.must(primary.root, engines.Read, path, body)); got[ids[0]] != true || got[ids[1]] != true {
		t.Errorf("the mounts that the primary's root sees are %v, want both", got)
	}
	if _, err := secondary.doIn("team", ann.ClientToken, engines.Read, path, "", nil); kind(err) != engines.KindNotFound {
		t.Errorf("in a namespace: %v, want that it is not there", err)
	}
	for who, token := range map[string]string{"somebody": secondary.token("default"), "its root": secondary.root} {
		if _, err := secondary.do(token, engines.Read, path, body); kind(err) != engines.KindDenied {
			t.Errorf("%s: %v, want denied", who, err)
		}
	}
}

// TestIdentityTokens: what providers need to check tokens is public, and who may configure the issuer is not.
func TestIdentityTokens(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/namespaces/team", "")
	if _, err := in.sync.IdentityToken(t.Context(), "root", "sync:cloud1-sm/prod", "sts.amazonaws.com", 0); err != nil {
		t.Fatal(err)
	}
	m, err := in.sync.MountAt(t.Context(), "root", "secret")
	if err != nil {
		t.Fatal(err)
	}
	token, err := m.IdentityToken(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	if payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(token.Reveal(), ".")[1]); !strings.Contains(string(payload), `"sub":"plugin-identity:root:secret:`+m.Accessor+`"`) {
		t.Errorf("the token of a mount says %s", payload)
	}
	for _, ns := range []string{"", "team"} {
		for _, path := range []string{"openid-configuration", "keys"} {
			reply, err := in.doIn(ns, "", engines.Read, "identity/oidc/plugins/.well-known/"+path, "", nil)
			if err != nil || reply.Raw == nil || strings.Contains(string(reply.Raw.Body), "private") {
				t.Errorf("%s of %q: %v, %v", path, ns, reply, err)
			}
		}
	}
	for path, op := range map[string]engines.Operation{"identity/oidc/config": engines.Read, "identity/oidc/plugins/rotate": engines.Update} {
		in.refused(engines.KindDenied, "", "", op, path, "")
	}
	in.must(in.root, engines.Update, "identity/oidc/plugins/rotate", "")
}

// TestSynonyms: a destination has two paths, and policies, capabilities and quotas that speak of one hold for the other.
func TestSynonyms(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/policies/acl/general", `{"policy":"path \"sys/sync/destinations/*\" { capabilities = [\"read\"] }\npath \"sys/sync/destinations/ours/secret\" { capabilities = [\"deny\"] }"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/one", `{"policy":"path \"sys/sync/destinations/ours/a\" { capabilities = [\"read\"] }"}`)
	for _, tt := range []struct {
		policy, name string
		want         bool
	}{{"general", "a", true}, {"general", "secret", false}, {"one", "a", true}, {"one", "b", false}} {
		tok := in.token(tt.policy)
		for _, kind := range []string{"ours", "theirs"} {
			path := "sys/sync/destinations/" + kind + "/" + tt.name
			_, err := in.do(tok, engines.Read, path, "")
			if allowed := err == nil; allowed != tt.want {
				t.Errorf("%s with policy %s: %v", path, tt.policy, err)
			}
			told, _ := data(t, in.must(tok, engines.Update, "sys/capabilities-self", `{"paths":["`+path+`"]}`))[path].([]any)
			if allowed := slices.Contains(told, any("read")); allowed != tt.want {
				t.Errorf("capabilities-self says %q of %s with policy %s", told, path, tt.policy)
			}
		}
	}
	for rule, used := range map[string]string{"ours": "theirs", "theirs": "ours"} {
		in.must(in.root, engines.Update, "sys/quotas/rate-limit/x", `{"path":"sys/sync/destinations/`+rule+`/x","rate":1,"interval":"1h"}`)
		path := "sys/sync/destinations/" + used + "/x"
		in.must(in.root, engines.Read, path, "")
		if _, err := in.do(in.root, engines.Read, path, ""); kind(err) != engines.KindLimited {
			t.Errorf("a second request for %s, with a quota on that by its other name: %v", path, err)
		}
		in.must(in.root, engines.Delete, "sys/quotas/rate-limit/x", "")
	}
}
