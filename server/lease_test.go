package server_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

// role makes a role of the engine that issues leases, and a token that may use it.
func (in *instance) leaseUser(ns string) string {
	in.t.Helper()
	in.mustIn(ns, in.root, engines.Update, "leases/config/app", `{"ttl":"1h","max_ttl":"2h"}`)
	in.mustIn(ns, in.root, engines.Update, "sys/policies/acl/creds", `{"policy":"path \"leases/creds/*\" { capabilities = [\"read\"] }"}`)
	return in.mustIn(ns, in.root, engines.Update, "auth/token/create", `{"policies":["creds"],"no_parent":true}`).token(in)
}

type answer struct {
	data  map[string]any
	auth  *engines.Auth
	lease engines.HeldLease
	wrap  *engines.WrapInfo
}

func (a answer) token(in *instance) string {
	in.t.Helper()
	if a.auth == nil {
		in.t.Fatal("the answer has no token")
	}
	return a.auth.ClientToken
}

func (in *instance) mustIn(ns, token string, op engines.Operation, path, body string) answer {
	in.t.Helper()
	return in.mustWith(ns, token, op, path, body, nil)
}

func (in *instance) mustWith(ns, token string, op engines.Operation, path, body string, header map[string]string) answer {
	in.t.Helper()
	r, err := in.doIn(ns, token, op, path, body, header)
	if err != nil {
		in.t.Fatalf("%s %s in %q: %v", op, path, ns, err)
	}
	var a answer
	if r == nil || r.Response == nil {
		return a
	}
	if r.Data != nil {
		a.data = data(in.t, r)
	}
	a.auth, a.wrap = r.Auth, r.Wrap
	if r.Held != nil {
		a.lease = *r.Held
	}
	return a
}

func (in *instance) refused(want engines.Kind, ns, token string, op engines.Operation, path, body string) {
	in.t.Helper()
	if _, err := in.doIn(ns, token, op, path, body, nil); kind(err) != want {
		in.t.Errorf("%s %s in %q = %v, want kind %d", op, path, ns, err, want)
	}
}

func TestLeases(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	a := in.mustIn("", tok, engines.Read, "leases/creds/app", "")
	if !strings.HasPrefix(a.lease.ID, "leases/creds/app/") || a.lease.Seconds != 3600 || !a.lease.Renewable {
		t.Fatalf("lease %+v", a.lease)
	}
	body := `{"lease_id":"` + a.lease.ID + `"}`
	if d := in.mustIn("", tok, engines.Update, "sys/leases/lookup", body).data; d["id"] != a.lease.ID || d["renewable"] != true {
		t.Errorf("lookup = %v", d)
	}
	if l := in.mustIn("", tok, engines.Update, "sys/leases/renew", `{"lease_id":"`+a.lease.ID+`","increment":"30m"}`).lease; l.ID != a.lease.ID || l.Seconds != 1800 {
		t.Errorf("renew = %+v", l)
	}
	in.mustIn("", in.root, engines.Update, "sys/leases/revoke", `{"lease_id":"`+a.lease.ID+`","sync":true}`)
	if in.leases.Revoked() != 1 || len(in.leases.Outstanding()) != 0 {
		t.Errorf("%d revoked, %v left", in.leases.Revoked(), in.leases.Outstanding())
	}
	in.refused(engines.KindInvalid, "", tok, engines.Update, "sys/leases/lookup", body)
}

// gone waits until the engine has nothing outstanding.
func (in *instance) gone(what string) {
	in.t.Helper()
	in.until(func() bool { return len(in.leases.Outstanding()) == 0 }, what)
}

func TestLeasesGoWithTheirToken(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	child := in.mustIn("", in.root, engines.Update, "auth/token/create", `{"policies":["creds"]}`).token(in)
	for _, one := range []string{tok, tok, child} {
		in.mustIn("", one, engines.Read, "leases/creds/app", "")
	}
	in.mustIn("", in.root, engines.Update, "auth/token/revoke", `{"token":"`+tok+`"}`)
	in.until(func() bool { return len(in.leases.Outstanding()) == 1 }, "the leases did not go with their token")
	in.mustIn("", in.root, engines.Update, "auth/token/revoke", `{"token":"`+child+`"}`)
	in.gone("the lease of the other token is left")
}

// TestLeasesOfBatchTokens: nothing happens when a batch token ends, so its leases may not outlive it.
func TestLeasesOfBatchTokens(t *testing.T) {
	in := start(t)
	in.leaseUser("")
	batch := in.mustIn("", in.root, engines.Update, "auth/token/create", `{"policies":["creds"],"type":"batch","ttl":"10m","no_parent":true}`).token(in)
	if a := in.mustIn("", batch, engines.Read, "leases/creds/app", ""); a.lease.Seconds > 600 || a.lease.Seconds < 590 {
		t.Errorf("the lease of a batch token with ten minutes lives %d s", a.lease.Seconds)
	}
}

func TestLeasesGoWithTheirMount(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	for range 3 {
		in.mustIn("", tok, engines.Read, "leases/creds/app", "")
	}
	in.mustIn("", in.root, engines.Delete, "sys/mounts/leases", "")
	in.gone("leases outlived their mount")
}

func TestLeasesGoWithTheirNamespace(t *testing.T) {
	in := start(t)
	in.mustIn("", in.root, engines.Update, "sys/namespaces/team", "")
	in.mustIn("", in.root, engines.Update, "sys/namespaces/other", "")
	in.mustIn("team", in.root, engines.Update, "sys/mounts/leases", `{"type":"leases"}`)
	tok := in.leaseUser("team")
	a := in.mustIn("team", tok, engines.Read, "leases/creds/app", "")
	if id := a.lease.ID; !strings.HasPrefix(id, "leases/creds/app/") || !strings.Contains(id, ".") {
		t.Errorf("a lease in a namespace has the id %q", id)
	}
	in.refused(engines.KindInvalid, "other", in.root, engines.Update, "sys/leases/lookup", `{"lease_id":"`+a.lease.ID+`"}`)
	in.mustIn("", in.root, engines.Delete, "sys/namespaces/team", "")
	in.gone("leases outlived their namespace")
	in.until(func() bool {
		_, err := in.do(in.root, engines.Read, "sys/namespaces/team", "")
		return kind(err) == engines.KindNotFound
	}, "the namespace is still there")
	in.refused(engines.KindNotFound, "team", in.root, engines.Read, "sys/mounts", "")
	in.refused(engines.KindDenied, "", tok, engines.Read, "auth/token/lookup-self", "")
}

func TestLeasesThatCannotBeRevoked(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	a := in.mustIn("", tok, engines.Read, "leases/creds/app", "")
	in.leases.FailRevoke(-1, errors.New("the backend is away"))
	if _, err := in.do(in.root, engines.Update, "sys/leases/revoke", `{"lease_id":"`+a.lease.ID+`","sync":true}`); err == nil {
		t.Error("a failed revocation is reported as done")
	}
	in.mustIn("", in.root, engines.Update, "sys/leases/revoke-force/leases", "")
	in.refused(engines.KindInvalid, "", in.root, engines.Update, "sys/leases/lookup", `{"lease_id":"`+a.lease.ID+`"}`)
}

func TestWrappedLease(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	wrapped := in.mustWith("", tok, engines.Read, "leases/creds/app", "", map[string]string{"X-Vault-Wrap-TTL": "5m"})
	if wrapped.wrap == nil || wrapped.data != nil || wrapped.lease.ID != "" {
		t.Fatalf("wrapped: %+v", wrapped)
	}
	w := wrapped.wrap.Token
	// Looking costs nothing, also with the wrapping token as the client's.
	in.mustIn("", w, engines.Update, "sys/wrapping/lookup", "")
	in.mustIn("", "", engines.Update, "sys/wrapping/lookup", `{"token":"`+w+`"}`)
	a := in.mustIn("", w, engines.Update, "sys/wrapping/unwrap", "")
	if a.data == nil || !strings.HasPrefix(a.lease.ID, "leases/creds/app/") || a.lease.Seconds != 3600 {
		t.Errorf("unwrapped: %+v", a)
	}
	in.refused(engines.KindInvalid, "", w, engines.Update, "sys/wrapping/unwrap", "")
	in.refused(engines.KindDenied, "", w, engines.Read, "auth/token/lookup-self", "")
	in.mustIn("", in.root, engines.Update, "auth/token/revoke", `{"token":"`+tok+`"}`)
	in.gone("the lease did not go with the token that asked for it")
}

func TestLeaseCountQuota(t *testing.T) {
	in := start(t)
	tok := in.leaseUser("")
	in.mustIn("", in.root, engines.Update, "sys/quotas/lease-count/few", `{"path":"leases/","max_leases":2}`)
	first := in.mustIn("", tok, engines.Read, "leases/creds/app", "")
	in.mustIn("", tok, engines.Read, "leases/creds/app", "")
	in.refused(engines.KindLimited, "", tok, engines.Read, "leases/creds/app", "")
	if n := len(in.leases.Outstanding()); n != 2 {
		t.Errorf("%d credentials are out, what was refused was not taken back", n)
	}
	in.mustIn("", in.root, engines.Update, "sys/leases/revoke", `{"lease_id":"`+first.lease.ID+`","sync":true}`)
	in.mustIn("", tok, engines.Read, "leases/creds/app", "")

	// Logins count too.
	in.mustIn("", in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.mustIn("", in.root, engines.Update, "auth/userpass/users/bob", `{"password":"p"}`)
	in.mustIn("", in.root, engines.Update, "sys/quotas/lease-count/one", `{"path":"auth/userpass/","max_leases":1}`)
	bob := in.mustIn("", "", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`).token(in)
	in.refused(engines.KindLimited, "", "", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`)
	in.mustIn("", bob, engines.Update, "auth/token/revoke-self", "")
	in.mustIn("", "", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`)
}

// TestNobodyWraps: without a token only a login is wrapped. Who has neither must not leave wrapping tokens behind that live
// for a month.
func TestNobodyWraps(t *testing.T) {
	in := start(t)
	wish := map[string]string{"X-Vault-Wrap-TTL": "700h"}
	for name, tok := range map[string]string{"no token": "", "a token that is none": "hvs.none"} {
		a := in.mustWith("", tok, engines.Read, "sys/internal/ui/mounts", "", wish)
		if a.wrap != nil || a.data == nil {
			t.Errorf("%s: %+v, want the answer itself", name, a)
		}
	}
	if a := in.mustWith("", in.root, engines.Read, "sys/internal/ui/mounts", "", wish); a.wrap == nil {
		t.Errorf("an answer to a token is not wrapped: %+v", a)
	}
	in.must(in.root, engines.Update, "sys/auth/people", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "auth/people/users/bob", `{"password":"correct horse"}`)
	if a := in.mustWith("", "", engines.Update, "auth/people/login/bob", `{"password":"correct horse"}`, wish); a.wrap == nil || a.auth != nil {
		t.Errorf("a login is not wrapped: %+v", a)
	}
}
