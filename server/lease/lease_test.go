package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/storage"
)

func TestRegister(t *testing.T) {
	tests := []struct {
		name     string
		ns       string
		path     string
		adjust   func(*lease.Registration)
		prefix   string
		suffix   string
		ttl      time.Duration
		warnings int
	}{
		{"the engine's TTL", "root", "creds/a", nil, "aws/creds/a/", "", time.Minute, 0},
		{"the mount's default", "root", "creds/a", func(r *lease.Registration) { r.Lease.TTL = 0 }, "aws/creds/a/", "", time.Hour, 0},
		{"the mount's maximum", "root", "creds/a", func(r *lease.Registration) { r.Lease.TTL = 48 * time.Hour }, "aws/creds/a/", "", 24 * time.Hour, 1},
		{"the engine's maximum", "root", "creds/a", func(r *lease.Registration) { r.Lease.MaxTTL = 30 * time.Second }, "aws/creds/a/", "", 30 * time.Second, 1},
		{"the token's end", "root", "creds/a", func(r *lease.Registration) { r.TokenExpiresAt = time.Now().Add(10 * time.Second) }, "aws/creds/a/", "", 10 * time.Second, 1},
		{"no path", "root", "", nil, "aws/", "", time.Minute, 0},
		{"a namespace", "abc123", "creds/a", nil, "aws/creds/a/", ".abc123", time.Minute, 0},
		{"odd characters", "root", "creds/50%,2C é", nil, "aws/creds/50%,2C é/", "", time.Minute, 0},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.add("u2", tt.ns, "aws/")
			reg, _ := r.registration("u2", tt.path, time.Minute)
			if tt.adjust != nil {
				tt.adjust(&reg)
			}
			info, err := r.m.Register(t.Context(), reg)
			if err != nil {
				t.Fatalf("%s: Register: %v", tt.name, err)
			}
			random := strings.TrimSuffix(strings.TrimPrefix(info.ID, tt.prefix), tt.suffix)
			if !strings.HasPrefix(info.ID, tt.prefix) || !strings.HasSuffix(info.ID, tt.suffix) || len(random) < 24 || strings.ContainsAny(random, "./") {
				t.Errorf("%s: id %q, want %q, 24 or more letters and digits, %q", tt.name, info.ID, tt.prefix, tt.suffix)
			}
			if info.TTL != tt.ttl || !info.Renewable || len(info.Warnings) != tt.warnings {
				t.Errorf("%s: got %v, renewable %v, warnings %q; want %v, true, %d warnings", tt.name, info.TTL, info.Renewable, info.Warnings, tt.ttl, tt.warnings)
			}
			d, err := r.m.Lookup(t.Context(), tt.ns, info.ID)
			if err != nil || d.TTL != tt.ttl || !d.ExpiresAt.Equal(time.Now().Add(tt.ttl)) || !d.RenewedAt.IsZero() {
				t.Errorf("%s: Lookup = %+v, %v", tt.name, d, err)
			}
			r.wantKeys(3)
			// It can also be found, by its names, and goes without a trace.
			stop := r.run(r.m)
			pass(tt.ttl + time.Second)
			stop()
			r.wantKeys(0)
			if left := r.engine("u2").Outstanding(); len(left) > 0 {
				t.Errorf("%s: %d credentials outlived their lease", tt.name, len(left))
			}
		})
	}
}

// TestRegisterRefused looks for credentials that would never be revoked.
// refusal refuses each lease and each token.
type refusal struct{ err error }

func (r refusal) AdmitLease(context.Context, string, string, string) error { return r.err }
func (r refusal) CheckKey(context.Context, string) error                   { return r.err }

func TestRegisterRefused(t *testing.T) {
	limited := &engines.Error{Kind: engines.KindLimited, Detail: "too many leases"}
	gone := errors.New("the token is gone")
	tests := []struct {
		name   string
		opts   func(*lease.Options)
		adjust func(*lease.Registration)
		want   error
		kind   engines.Kind
	}{
		{"quota", func(o *lease.Options) {
			o.Quotas = refusal{limited}
		}, nil, limited, engines.KindLimited},
		{"storage", func(o *lease.Options) { o.Store = &failing{Store: o.Store, err: storage.ErrUnavailable} }, nil, storage.ErrUnavailable, 0},
		{"the token ended meanwhile", func(o *lease.Options) { o.Tokens = refusal{gone} }, nil, gone, engines.KindDenied},
		{"the token ended before", nil, func(r *lease.Registration) { r.TokenExpiresAt = time.Now().Add(-time.Second) }, nil, engines.KindInvalid},
		{"too much to keep", nil, func(r *lease.Registration) {
			var in map[string]string
			if json.Unmarshal(r.Lease.Internal, &in) == nil {
				in["more"] = strings.Repeat("x", 64<<10)
			}
			r.Lease.Internal, _ = json.Marshal(in)
		}, nil, 0},
		{"a path too long", nil, func(r *lease.Registration) { r.Path = strings.Repeat("p", 3000) }, nil, engines.KindInvalid},
	}
	for _, tt := range tests {
		var adjust []func(*lease.Options)
		if tt.opts != nil {
			adjust = append(adjust, tt.opts)
		}
		r := newRig(t, adjust...)
		reg, serial := r.registration("u1", "creds/a", time.Minute)
		if tt.adjust != nil {
			tt.adjust(&reg)
		}
		info, err := r.m.Register(t.Context(), reg)
		if err == nil || info.ID != "" || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: Register = %+v, %v; want %v", tt.name, info, err, tt.want)
		}
		var e *engines.Error
		if errors.As(err, &e); tt.kind != 0 && (e == nil || e.Kind != tt.kind) {
			t.Errorf("%s: %v is not of kind %v", tt.name, err, tt.kind)
		}
		if left := r.engine("u1").Outstanding(); slices.Contains(left, serial) {
			t.Errorf("%s: the credential was not taken back", tt.name)
		}
		r.wantKeys(0)
	}
}

func TestNamespacesAreApart(t *testing.T) {
	ctx := t.Context()
	r := newRig(t)
	r.add("ua", "aa", "aws/")
	r.add("uab", "aab", "aws/") // below aa
	r.add("ub", "bb", "aws/")
	inside := map[string]string{}
	for uuid, ns := range map[string]string{"u1": "root", "ua": "aa", "uab": "aab", "ub": "bb"} {
		inside[ns] = r.issue(uuid, "creds/x", time.Hour).ID
	}
	sees := map[string][]string{"root": {"root", "aa", "aab", "bb"}, "aa": {"aa", "aab"}, "aab": {"aab"}, "bb": {"bb"}}
	for from, visible := range sees {
		for ns, id := range inside {
			_, err := r.m.Lookup(ctx, from, id)
			_, err2 := r.m.Renew(ctx, from, id, time.Minute)
			if want := slices.Contains(visible, ns); (err == nil) != want || (err2 == nil) != want {
				t.Errorf("from %s, the lease of %s: Lookup %v, Renew %v, want access: %v", from, ns, err, err2, want)
			}
			if !slices.Contains(visible, ns) {
				if err := r.m.Revoke(ctx, from, id, true); !errors.Is(err, lease.ErrNotFound) {
					t.Errorf("from %s, Revoke of the lease of %s = %v", from, ns, err)
				}
			}
		}
		if names, err := r.m.List(ctx, from, "aws/creds/x"); err != nil || len(names) != 1 {
			t.Errorf("List in %s = %q, %v; want its own only", from, names, err)
		}
	}
	// A prefix means leases of that namespace only.
	if n, err := r.m.RevokePrefix(ctx, "aa", "aws", true); n != 1 || err != nil {
		t.Errorf("RevokePrefix = %d, %v, want 1", n, err)
	}
	if _, err := r.m.Lookup(ctx, "aab", inside["aab"]); err != nil {
		t.Errorf("the lease below: %v", err)
	}
	if n, err := r.m.RevokePrefix(ctx, "aab", "", true); n != 1 || err != nil {
		t.Errorf("RevokePrefix of a whole namespace = %d, %v, want 1", n, err)
	}
}

func TestLookupOfNothing(t *testing.T) {
	r := newRig(t)
	id := r.issue("u1", "creds/a", time.Hour).ID
	for _, bad := range []string{"", "/", "aws/creds/a", id + "x", id + "/", id[:len(id)-1], "x" + id, id + ".root", id + ".nowhere", strings.ToLower(id), strings.Repeat("a", 5000), "a\x00b", "é", "%2F"} {
		if d, err := r.m.Lookup(t.Context(), "", bad); !errors.Is(err, lease.ErrNotFound) {
			t.Errorf("Lookup(%q) = %+v, %v; want ErrNotFound", bad, d, err)
		}
		if _, err := r.m.Renew(t.Context(), "", bad, 0); err == nil {
			t.Errorf("Renew(%q) did something", bad)
		}
		if err := r.m.Revoke(t.Context(), "", bad, true); err == nil {
			t.Errorf("Revoke(%q) did something", bad)
		}
	}
	r.wantKeys(3)
}

func TestRenew(t *testing.T) {
	refused := engines.Invalid("the role is gone")
	tests := []struct {
		name      string
		lease     engines.Lease // over the engine's
		after     time.Duration
		increment time.Duration
		refusal   error
		want      time.Duration
		err       error
		text      string
	}{
		{name: "as before", lease: engines.Lease{TTL: time.Minute}, after: 30 * time.Second, want: time.Minute},
		{name: "what the client asks for", lease: engines.Lease{TTL: time.Minute}, after: 30 * time.Second, increment: 10 * time.Minute, want: 10 * time.Minute},
		{name: "shorter", lease: engines.Lease{TTL: time.Hour}, after: time.Minute, increment: time.Minute, want: time.Minute},
		{name: "up to the maximum", lease: engines.Lease{TTL: 23 * time.Hour}, after: 22 * time.Hour, increment: 4 * time.Hour, want: 2 * time.Hour},
		{name: "refused by the engine", lease: engines.Lease{TTL: time.Minute}, refusal: refused, err: refused},
		{name: "expired", lease: engines.Lease{TTL: time.Minute}, after: time.Minute, err: lease.ErrExpired},
		{name: "beyond the maximum", lease: engines.Lease{TTL: 24 * time.Hour}, after: 24*time.Hour - time.Nanosecond, increment: time.Hour, want: time.Nanosecond},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			reg, serial := r.registration("u1", "creds/a", tt.lease.TTL)
			info, err := r.m.Register(t.Context(), reg)
			if err != nil {
				t.Fatal(err)
			}
			pass(tt.after)
			r.engine("u1").FailRenew(tt.refusal)
			before := r.keys()
			got, err := r.m.Renew(t.Context(), "root", info.ID, tt.increment)
			if tt.err != nil {
				if !errors.Is(err, tt.err) || !slices.Equal(before, r.keys()) {
					t.Errorf("%s: Renew = %+v, %v; want %v and nothing changed", tt.name, got, err, tt.err)
				}
				return
			}
			if err != nil || got.TTL != tt.want || got.ID != info.ID {
				t.Errorf("%s: Renew = %+v, %v; want %v", tt.name, got, err, tt.want)
			}
			d, err := r.m.Lookup(t.Context(), "root", info.ID)
			if err != nil || d.TTL != tt.want || !d.RenewedAt.Equal(time.Now()) {
				t.Errorf("%s: afterwards %+v, %v", tt.name, d, err)
			}
			stop := r.run(r.m)
			defer stop()
			pass(tt.want - time.Nanosecond)
			if !slices.Contains(r.engine("u1").Outstanding(), serial) {
				t.Errorf("%s: revoked before its time", tt.name)
			}
			pass(time.Second)
			if slices.Contains(r.engine("u1").Outstanding(), serial) {
				t.Errorf("%s: not revoked at its time", tt.name)
			}
			r.wantKeys(0)
		})
	}
}

func TestNotRenewable(t *testing.T) {
	r := newRig(t)
	reg, _ := r.registration("u1", "creds/a", time.Minute)
	reg.Lease.Renewable = false
	info, err := r.m.Register(t.Context(), reg)
	if err != nil || info.Renewable {
		t.Fatalf("Register = %+v, %v", info, err)
	}
	if _, err := r.m.Renew(t.Context(), "", info.ID, 0); !errors.Is(err, lease.ErrNotRenewable) {
		t.Errorf("Renew = %v", err)
	}
}

// TestRenewalsMoveTheIndexRarely counts writes: a renewal by a little leaves the index alone, and the lease lives
// on all the same.
func TestRenewalsMoveTheIndexRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		id := r.issue("u1", "creds/a", 20*time.Minute).ID
		stop := r.run(r.m)
		defer stop()
		index := func() string {
			for _, k := range r.keys() {
				if strings.HasPrefix(k, "l/lease/exp/") {
					return k
				}
			}
			return ""
		}
		before, moves := index(), 0
		for range 360 { // an hour
			pass(10 * time.Second)
			if _, err := r.m.Renew(t.Context(), "", id, 20*time.Minute); err != nil {
				t.Fatal(err)
			}
			if now := index(); now != before {
				before = now
				moves++
			}
		}
		if moves < 30 || moves > 60 {
			t.Errorf("360 renewals moved the index %d times, want about 50", moves)
		}
		pass(20*time.Minute - time.Second)
		if len(r.engine("u1").Outstanding()) != 1 {
			t.Error("revoked before its time")
		}
		pass(2 * time.Second)
		if len(r.engine("u1").Outstanding()) != 0 {
			t.Error("not revoked at its time")
		}
		r.wantKeys(0)
	})
}

// TestRegisterDone: what the engine noted goes with the commit that stores the lease, and with no other.
func TestRegisterDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store *failing
		r := newRig(t, func(o *lease.Options) {
			store = &failing{Store: o.Store}
			o.Store = store
		})
		r.add("u2", "root", "aws/")
		note := storage.NewKey(storage.Local, "u2", "rollback/1")
		if _, err := r.store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: note, Value: []byte("{}")}}}); err != nil {
			t.Fatal(err)
		}
		register := func(err error) error {
			store.err = err
			reg, _ := r.registration("u2", "creds/a", time.Minute)
			reg.Lease.Done = []storage.Key{"rollback/1"}
			_, err = r.m.Register(t.Context(), reg)
			return err
		}
		if err := register(storage.ErrUnavailable); !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("Register: %v", err)
		}
		if _, err := r.store.Get(t.Context(), note); err != nil {
			t.Errorf("the note of what got no lease: %v", err)
		}
		if err := register(nil); err != nil {
			t.Fatalf("Register: %v", err)
		}
		if _, err := r.store.Get(t.Context(), note); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("the note of what has a lease: %v", err)
		}
	})
}
