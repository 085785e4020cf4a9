package secretsync_test

import (
	"fmt"
	"strings"
	"testing"
)

// kinds are the types of destinations.
var kinds = []string{"cloud1-sm", "cloud1-ssm", "cloud2-kv", "cloud3-sm", "repohost", "webhost-project", "kubernetes", "webhook", "gitlab"}

// TestLife takes a secret to a destination of each type, and away again, by all that can happen to it.
func TestLife(t *testing.T) {
	t.Parallel()
	all := newSite(t, "life")
	accessor := all.mount("kv")
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := all.in(t)
			secret := "app/" + strings.ReplaceAll(kind, "-", "_")
			s.secret("kv", secret, "password", "first")
			json := func(value string) string { return fmt.Sprintf(`{"password":%q}`, value) }
			d := s.dest(kind, "store", object{"granularity": "secret-path"})
			e := only(t, s.associate(d, "kv", secret))
			if e.Status != "SYNCED" || e.Accessor != accessor || e.Secret != secret || e.Mount != "kv/" || e.Version != 1 || e.UpdatedAt == "" {
				t.Fatalf("the entry is %+v", e)
			}
			s.has(kind, e.Name, json("first"))
			s.secret("kv", secret, "password", "second")
			s.has(kind, e.Name, json("second"))
			s.must("DELETE", "kv/data/"+secret, nil)
			s.has(kind, e.Name, "")
			s.await(d, "UNSYNCED")
			s.must("POST", "kv/undelete/"+secret, object{"versions": []int{2}})
			s.has(kind, e.Name, json("second"))
			s.must("POST", "kv/destroy/"+secret, object{"versions": []int{2}})
			s.has(kind, e.Name, "")
			s.secret("kv", secret, "password", "third")
			s.has(kind, e.Name, json("third"))
			s.must("DELETE", "kv/metadata/"+secret, nil)
			s.has(kind, e.Name, "")
			s.secret("kv", secret, "password", "fourth")
			s.has(kind, e.Name, json("fourth"))
			s.await(d, "SYNCED")
			gone := only(t, entriesOf(t, s.must("POST", d+"/associations/remove", object{"mount": "kv", "name": secret})))
			if gone.Status != "UNSYNCED" || gone.Secret != secret || gone.Accessor != accessor {
				t.Errorf("removed, the entry is %+v", gone)
			}
			if _, ok := s.get(kind, e.Name); ok {
				t.Error("it is still there")
			}
			equal(t, "associations", s.entries(d), object{})
			if a := s.do("DELETE", d, nil); a.Status != 204 {
				t.Errorf("deleting the destination: status %d: %s", a.Status, a.Body)
			}
			s.rejected(404, "GET", d, nil)
		})
	}
}
