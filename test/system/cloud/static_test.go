package cloud_test

import (
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestCloudStatic is about static roles.
func TestCloudStatic(t *testing.T) {
	t.Parallel()
	m := ready(t, alone(t, "static"), "cloud")
	m.aws.AddUser("svc")
	m.aws.AddUser("other")
	t.Run("username is required", func(t *testing.T) {
		m.in(t).refused("static-roles/app", object{"rotation_period": "24h"}, `"username"`, "required")
	})
	t.Run("rotation_period is required", func(t *testing.T) {
		m.in(t).refused("static-roles/app", object{"username": "svc"}, `"rotation_period"`, "required")
	})
	t.Run("rotation_period is a minute at least", func(t *testing.T) {
		m := m.in(t)
		for _, period := range []any{"59s", 59, "0"} {
			m.refused("static-roles/app", object{"username": "svc", "rotation_period": period}, `"rotation_period"`, "minute")
		}
	})
	t.Run("the user must exist", func(t *testing.T) {
		m := m.in(t)
		m.refused("static-roles/app", object{"username": "nobody", "rotation_period": "24h"}, `"username"`, "make the user first")
		wantStatus(t, "read", m.admin("GET", "static-roles/app", nil), 404)
	})
	t.Run("what does not exist is 404", func(t *testing.T) {
		m := m.in(t)
		wantStatus(t, "role", m.admin("GET", "static-roles/app", nil), 404)
		wantStatus(t, "credential", m.admin("GET", "static-creds/app", nil), 404)
		wantStatus(t, "rotate", m.admin("POST", "static-roles/app/rotate", nil), 404)
		wantStatus(t, "list", m.admin("LIST", "static-roles", nil), 404)
	})
	t.Run("on create the service creates a new credential", func(t *testing.T) {
		m := m.in(t)
		before := time.Now()
		user, _ := m.aws.User("svc")
		got := dataOf(t, m.admin("POST", "static-roles/app", object{"username": "svc", "rotation_period": "24h"}))
		wantData(t, got, object{"name": "app", "id": user.ID, "username": "svc", "rotation_period": 86400})
		wantData(t, m.read("static-roles/app"), object{"name": "app", "id": user.ID, "username": "svc", "rotation_period": 86400})
		if key := m.current("app", "svc"); len(m.aws.Keys("svc")) != 1 || key.Created.Before(before) {
			t.Error("the credential is not a new one")
		}
		due, err := time.Parse(time.RFC3339, m.read("static-creds/app")["expiration"].(string))
		if d := due.Sub(before); err != nil || d < 23*time.Hour || d > 25*time.Hour {
			t.Errorf("the credential expires in %v", d)
		}
	})
	t.Run("rotation_period is a string or a number", func(t *testing.T) {
		m := m.in(t)
		for _, period := range []any{"24h", "86400", 86400} {
			wantData(t, dataOf(t, m.admin("POST", "static-roles/app", object{"rotation_period": period})), object{"rotation_period": 86400})
		}
	})
	t.Run("one to one with a user", func(t *testing.T) {
		m := m.in(t)
		m.refused("static-roles/app", object{"username": "other", "rotation_period": "24h"}, `"username"`)
		if a := m.admin("POST", "static-roles/second", object{"username": "svc", "rotation_period": "24h"}); a.Status < 400 {
			t.Errorf("a second static role of the same user: %d", a.Status)
		}
		wantStatus(t, "read", m.admin("GET", "static-roles/second", nil), 404)
		m.current("app", "svc")
	})
	t.Run("an update resets the next rotation to now plus rotation_period", func(t *testing.T) {
		m := m.in(t)
		key := m.current("app", "svc")
		before := time.Now()
		dataOf(t, m.admin("POST", "static-roles/app", object{"rotation_period": "48h"}))
		due, err := time.Parse(time.RFC3339, m.read("static-roles/app")["next_rotation"].(string))
		if d := due.Sub(before); err != nil || d < 47*time.Hour || d > 49*time.Hour {
			t.Errorf("the next rotation is in %v", d)
		}
		if m.current("app", "svc").ID != key.ID {
			t.Error("the update rotated the credential")
		}
	})
	t.Run("a rotation rotates the oldest credential", func(t *testing.T) {
		m := m.in(t)
		first := m.current("app", "svc")
		for range 3 {
			m.later()
			keys := m.aws.Keys("svc")
			dataOf(t, m.admin("POST", "static-roles/app/rotate", nil))
			after := m.aws.Keys("svc")
			if fresh := m.current("app", "svc"); fresh.ID == first.ID || len(after) != 2 {
				t.Fatalf("there are %d keys", len(after))
			}
			if len(keys) == 2 && slices.ContainsFunc(after, func(k awstest.Key) bool { return k.ID == keys[0].ID }) {
				t.Error("the oldest key is still there")
			}
			first = m.current("app", "svc")
		}
	})
	t.Run("when the maximum of keys exists the oldest is rotated", func(t *testing.T) {
		m := m.in(t)
		oldest := m.aws.AddKey("other")
		m.later()
		newer := m.aws.AddKey("other")
		m.later()
		wantStatus(t, "create", m.admin("POST", "static-roles/full", object{"username": "other", "rotation_period": "24h"}), 200, "warnings", "oldest")
		ours := m.current("full", "other")
		keys := m.aws.Keys("other")
		if len(keys) != 2 || keys[0].ID != newer.ID || keys[1].ID != ours.ID || ours.ID == oldest.ID {
			t.Errorf("the user has the keys %+v", keys)
		}
	})
	t.Run("list", func(t *testing.T) {
		wantData(t, dataOf(t, m.in(t).admin("LIST", "static-roles", nil)), object{"keys": []string{"app", "full"}})
	})
	t.Run("a rotation that fails is seen and the old key stays", func(t *testing.T) {
		m := m.in(t)
		key := m.current("full", "other")
		m.aws.FailNext(100, "CreateAccessKey", awstest.Fault{Code: "AccessDenied"})
		m.refused("static-roles/full/rotate", nil, "CreateAccessKey")
		if m.current("full", "other").ID != key.ID {
			t.Error("another key is answered")
		}
		wantData(t, m.read("static-roles/full"), object{"rotation_failures": 1})
	})
	t.Run("delete leaves the user", func(t *testing.T) {
		m := m.in(t)
		wantStatus(t, "delete", m.admin("DELETE", "static-roles/full", nil), 200, "warnings", "other")
		if _, there := m.aws.User("other"); !there {
			t.Error("the user is gone")
		}
		wantStatus(t, "credential", m.admin("GET", "static-creds/full", nil), 404)
		wantStatus(t, "delete again", m.admin("DELETE", "static-roles/full", nil), 204)
	})
	t.Run("rotated each period", func(t *testing.T) { period(t, m.in(t)) })
}

// period waits for a rotation that no request asks for.
func period(t *testing.T, m *mount) {
	harness.LongOnly(t) // a period has a minute at least
	key := m.current("app", "svc")
	dataOf(t, m.admin("POST", "static-roles/app", object{"rotation_period": "1m"}))
	harness.Await(t, "the rotation", 3*time.Minute, func() error {
		if m.current("app", "svc").ID == key.ID {
			return errNotYet
		}
		return nil
	})
}
