package secretsync_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/webhook"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/storage"
)

// TestStoredCredentialsGoToNobodyElse: who changes whose a destination is gives the credentials, too.
func TestStoredCredentialsGoToNobodyElse(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", map[string]any{"site": "acme.web", "token": "hush"})
		for _, body := range []map[string]any{{"site": "evil.web"}, {"site": "evil.web", "token": destination.Mask}} {
			for _, op := range []engines.Operation{engines.Update, engines.Patch} {
				r.Fails(engines.KindInvalid, op, d, body)
			}
		}
		if text := r.Fails(engines.KindInvalid, engines.Update, d, map[string]any{"site": "evil.web"}); !strings.Contains(text, `"token"`) || strings.Contains(text, "hush") {
			t.Errorf("the refusal says %q", text)
		}
		r.post(d, map[string]any{"site": "acme.api"})
		r.post(d, map[string]any{"site": "acme.api", "token": destination.Mask, "label": "same"})
		r.post(d, map[string]any{"site": "other.web", "token": "hush"})
		r.post(d, map[string]any{"site": "third.web", "token": "other"})
		r.post(r.dest(syncsim.Marked, "open", map[string]any{"site": "acme.web"}), map[string]any{"site": "evil.web"}) // there is nothing to use
	})
}

// TestCredentialsDoNotMoveAPlace: where only they say whose a destination is, they stay while anything is associated.
func TestCredentialsDoNotMoveAPlace(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", map[string]any{"site": "ambiguous", "token": "hush"})
		r.patch(d, map[string]any{"token": "other"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.Fails(engines.KindInvalid, engines.Patch, d, map[string]any{"token": "mine"})
		r.Fails(engines.KindInvalid, engines.Patch, d, map[string]any{"token": nil})
		r.patch(d, map[string]any{"token": "other", "label": "same"})
		r.post(d+"/associations/remove", map[string]any{"mount": "kv", "secret_name": "a"})
		r.patch(d, map[string]any{"token": "mine"})

		plain := r.dest(syncsim.Marked, "plain", map[string]any{"site": "one", "token": "hush"})
		r.post(plain+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		r.patch(plain, map[string]any{"token": "rotated"})
	})
}

// TestOwners: what another owner could have a destination at, by type.
func TestOwners(t *testing.T) {
	const key = "AKIASP2TPHJSQH3FJXYZ"
	for what, test := range map[string]struct {
		a, b destination.Config
		same bool
	}{
		"role":           {&cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key, RoleARN: "arn:aws:iam::111111111111:role/r"}}, &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key, RoleARN: "arn:aws:iam::222222222222:role/r"}}, false},
		"a role at all":  {&cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key}}, &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key, RoleARN: "arn:aws:iam::222222222222:role/r"}}, false},
		"region":         {&cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key, Region: "eu-central-1"}}, &cloud1sm.Config{Account: cloud1.Account{AccessKeyID: key, Region: "us-east-1"}}, true},
		"vault":          {&cloud2kv.Config{KeyVaultURI: "https://ours.vault.azure.net", TenantID: "t"}, &cloud2kv.Config{KeyVaultURI: "https://evil.vault.azure.net", TenantID: "t"}, false},
		"tenant":         {&cloud2kv.Config{KeyVaultURI: "https://ours.vault.azure.net", TenantID: "t"}, &cloud2kv.Config{KeyVaultURI: "https://ours.vault.azure.net", TenantID: "u"}, false},
		"case":           {&cloud2kv.Config{KeyVaultURI: "https://ours.vault.azure.net", TenantID: "t"}, &cloud2kv.Config{KeyVaultURI: "https://Ours.vault.azure.net/", TenantID: "T"}, true},
		"project":        {&cloud3sm.Config{ProjectID: "ours-1"}, &cloud3sm.Config{ProjectID: "evil-1"}, false},
		"owner":          {&repohost.Config{RepositoryOwner: "acme", RepisitoryName: "web"}, &repohost.Config{RepositoryOwner: "evil", RepisitoryName: "web"}, false},
		"repository":     {&repohost.Config{RepositoryOwner: "acme", RepisitoryName: "web"}, &repohost.Config{RepositoryOwner: "Acme", RepisitoryName: "api"}, true},
		"organization":   {&repohost.Config{RepositoryOwner: "acme", SecretsLocation: "organization"}, &repohost.Config{RepositoryOwner: "acme", SecretsLocation: "organization", Organization: "evil"}, false},
		"cluster":        {&kubernetes.Config{APIServer: "https://a.example.com", Namespace: "shop"}, &kubernetes.Config{APIServer: "https://b.example.com", Namespace: "shop"}, false},
		"authority":      {&kubernetes.Config{APIServer: "https://a.example.com", Namespace: "shop"}, &kubernetes.Config{APIServer: "https://a.example.com", Namespace: "shop", CACert: "x"}, false},
		"namespace":      {&kubernetes.Config{APIServer: "https://a.example.com", Namespace: "shop"}, &kubernetes.Config{APIServer: "https://a.example.com", Namespace: "web"}, true},
		"receiver":       {&webhook.Config{URL: "https://a.example.com/x"}, &webhook.Config{URL: "https://a.example.com/y"}, false},
		"instance":       {&gitlab.Config{ProjectID: "acme/web"}, &gitlab.Config{ProjectID: "acme/web", BaseURL: "https://gitlab.example.com"}, false},
		"GitLab's group": {&gitlab.Config{ProjectID: "acme/web"}, &gitlab.Config{ProjectID: "evil/web"}, false},
		"GitLab project": {&gitlab.Config{ProjectID: "acme/web"}, &gitlab.Config{ProjectID: "acme/api"}, true},
		"team":           {&webhost.Config{ProjectID: "web", TeamID: "team_1"}, &webhost.Config{ProjectID: "web", TeamID: "team_2"}, false},
		"no team":        {&webhost.Config{ProjectID: "web", TeamID: "team_1"}, &webhost.Config{ProjectID: "web"}, false},
		"team's project": {&webhost.Config{ProjectID: "web", TeamID: "team_1"}, &webhost.Config{ProjectID: "api", TeamID: "team_1"}, true},
	} {
		if got := test.a.(destination.Owned).Owner() == test.b.(destination.Owned).Owner(); got != test.same {
			t.Errorf("%s: the same owner: %v", what, got)
		}
	}
	for project, want := range map[string]bool{"web": true, "prj_1": false} {
		if got := (&webhost.Config{ProjectID: project}).Ambiguous() != ""; got != want {
			t.Errorf("%s is ambiguous: %v", project, got)
		}
	}
	if (&webhost.Config{ProjectID: "web", TeamID: "team_1"}).Ambiguous() != "" {
		t.Error("a project of a team is ambiguous")
	}
}

// TestAdoptTakesNothingFromUs: two destinations may name one location differently, which keeps no claims apart; what one of them
// holds is not the other's to adopt.
func TestAdoptTakesNothingFromUs(t *testing.T) {
	run(t, func(r *rig) {
		body := map[string]any{"mount": "kv", "secret_name": "a"}
		one := r.dest(syncsim.Marked, "one", nil)
		r.post(one+"/associations/set", body)
		alias := r.dest(syncsim.Marked, "alias", map[string]any{"site": "one?alias"})
		same(t, "set", statuses(r.post(alias+"/associations/set", body)["associated_secrets"]), map[string]string{"a": "CONFLICT"})
		same(t, "adopt", statuses(r.post(alias+"/associations/adopt", body)["associated_secrets"]), map[string]string{"a": "CONFLICT"})
		if text := r.Fails(engines.KindInvalid, engines.Update, alias+"/associations/adopt", body); !strings.Contains(text, "nothing to adopt") {
			t.Errorf("adopting again says %q", text)
		}
		r.kv.Put("a", "k", "w")
		same(t, "retry", statuses(r.post(one+"/associations/retry", body)["associated_secrets"]), map[string]string{"a": "SYNCED"})

		// What was given up is free to be adopted.
		r.post(one+"/associations/remove", map[string]any{"mount": "kv", "secret_name": "a", "retain": true})
		r.post(alias+"/associations/retry", body)
		same(t, "given up", statuses(r.post(alias+"/associations/adopt", body)["associated_secrets"]), map[string]string{"a": "SYNCED"})
	})
}

// TestPrefixesTellNoNames: who may associate, and read some of a mount, learns nothing of the rest of it by a prefix.
func TestPrefixesTellNoNames(t *testing.T) {
	run(t, func(r *rig) {
		some := func(path string) bool { return strings.HasPrefix(path, "kv/data/folder/") || path == "kv/data/" }
		r.w.SetMayRead(func(_ engines.Principal, _, path string) bool { return some(path) })
		r.Caller.Access = caller{some}
		d := r.dest(syncsim.Marked, "store", nil)
		body := map[string]any{"mount": "kv", "secret_prefix": "*"}
		planned, _ := r.post(d+"/plan", body)["actions"].([]any)
		same(t, "planned", len(planned), 1)
		r.post(d+"/associations/set", body)
		r.kv.Put("other", "k", "v")
		time.Sleep(time.Second)
		same(t, "entries", statuses(r.entries(d)), map[string]string{"folder/b": "SYNCED"})
		r.Fails(engines.KindNotFound, engines.Read, "sync/associations/kv/a", nil)
		r.Fails(engines.KindNotFound, engines.Read, "sync/associations/kv/none", nil)
		if text := fmt.Sprint(r.post(d+"/associations/set", body), r.post(d+"/plan", nil), r.post(d+"/associations/retry", body), r.post(d+"/drift", nil)); strings.Contains(text, "other") {
			t.Errorf("a name is told: %s", text)
		}

		// What they may read one day comes by itself, and what was synced stays, with the reason.
		r.w.SetMayRead(func(_ engines.Principal, _, path string) bool { return path == "kv/data/a" })
		time.Sleep(time.Hour)
		r.kv.Put("folder/b", "k", "new")
		time.Sleep(time.Second)
		same(t, "later", statuses(r.entries(d)), map[string]string{"a": "SYNCED", "folder/b": "CLIENT_SIDE_ERROR"})
	})
}

// TestWhatIsAssociatedInTheMomentOfAMoveGoesNowhere: the association was meant for the former location.
func TestWhatIsAssociatedInTheMomentOfAMoveGoesNowhere(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		all, err := r.w.Store.Scan(t.Context(), "s/sys/root/sync/a/", "", 0)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		r.post(d+"/associations/remove", map[string]any{"mount": "kv", "secret_name": "a"})
		r.post(d, map[string]any{"site": "two"})
		if _, err := r.w.Store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: all[0].Key, Value: all[0].Value}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		same(t, "entries", len(r.entries(d)), 0)
		same(t, "the new place", len(r.sites.Site(syncsim.Marked, "two").Objects()), 0)
	})
}

// TestFixedFields: what a vendor cannot change of existing secrets is not accepted as if it could.
func TestFixedFields(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", map[string]any{"area": "west"})
		r.patch(d, map[string]any{"area": "east"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		if text := r.Fails(engines.KindInvalid, engines.Patch, d, map[string]any{"area": "north"}); !strings.Contains(text, "areas are for ever") {
			t.Error(text)
		}
		r.patch(d, map[string]any{"area": "east", "label": "same"})
	})
}

// TestUnknownFieldsAreRefused: a field that says where or how something is protected is done or refused, and never left undone.
func TestUnknownFieldsAreRefused(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		for _, op := range []engines.Operation{engines.Update, engines.Patch} {
			text := r.Fails(engines.KindInvalid, op, d, map[string]any{"label": "changed", "enterprise_url": "https://x.example", "kms_key": "k"})
			if !strings.Contains(text, "not supported: ") || !strings.Contains(text, `"enterprise_url"`) || !strings.Contains(text, `"kms_key"`) || strings.Contains(text, "x.example") {
				t.Errorf("the refusal says %q", text)
			}
		}
		if got := r.patch(d, map[string]any{"extra": nil})["connection_details"].(map[string]any)["label"]; got != "store" {
			t.Errorf("a refused request has changed the label to %v", got)
		}
		r.Fails(engines.KindInvalid, engines.Update, "sync/destinations/"+syncsim.Marked+"/new", map[string]any{"site": "one", "enterprise_url": "https://x.example"})
		r.Fails(engines.KindNotFound, engines.Read, "sync/destinations/"+syncsim.Marked+"/new", nil)
		text := r.Fails(engines.KindInvalid, engines.Update, d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a", "value_transform": "{{ . }}"})
		if !strings.Contains(text, `not supported: "value_transform"`) || len(r.entries(d)) != 0 {
			t.Errorf("the refusal says %q", text)
		}
	})
}

// TestUnknownFieldsAreRejected: a misspelt plan, equal, retain or enterprise_url must not be done as if it had not been given.
func TestUnknownFieldsAreRejected(t *testing.T) {
	run(t, func(r *rig) {
		d := r.estate(3)
		many := map[string]any{"mount": "kv", "secret_prefix": "team/"}
		before := r.sites.Site(syncsim.Marked, "one").Objects()
		for path, field := range map[string]string{"adopt": "equals", "remove": "retian"} {
			body := maps.Clone(many)
			body[field] = true
			if text := r.Fails(engines.KindInvalid, engines.Update, d+"/associations/"+path, body); !strings.Contains(text, field) {
				t.Errorf("%s: %s", path, text)
			}
		}
		synctest.Wait()
		same(t, "what the destination has", r.sites.Site(syncsim.Marked, "one").Objects(), before)

		router := engines.NewRouter()
		r.svc.Routes(router)
		n := 0
		for _, route := range router.Routes() {
			if route.Op == engines.Read || route.Op == engines.List {
				continue
			}
			n++
			path := strings.NewReplacer("{type}", syncsim.Marked, "{destination}", "store", "{name}", "store").Replace(route.Pattern)
			if text := r.Fails(engines.KindInvalid, route.Op, path, map[string]any{"mount": "kv", "forgotten": true}); !strings.Contains(text, "forgotten") && !strings.Contains(text, "no destinations of this type") {
				t.Errorf("%s %s: %s", route.Op, route.Pattern, text)
			}
		}
		if n < 15 {
			t.Errorf("%d routes were tried", n)
		}
	})
}
