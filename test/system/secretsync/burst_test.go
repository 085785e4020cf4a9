package secretsync_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
)

// TestBursts: while a destination does not answer, secrets are written as ever, and reach another destination. When it does again, it gets
// the newest version of each, and none of those that came and went meanwhile. A secret that came and went as a whole it never
// sees.
func TestBursts(t *testing.T) {
	t.Parallel()
	s := newSite(t, "burst")
	s.mount("kv")
	names := object{"secret_name_template": "{{ .SecretBaseName }}", "granularity": "secret-path"}
	slow, quick := s.dest("cloud1-sm", "slow", names), s.dest("cloud2-kv", "quick", names)
	for _, dest := range []string{slow, quick} {
		s.must("POST", dest+"/associations/set", object{"mount": "kv", "secret_prefix": "app/"})
	}
	const secrets, writes = awsAtOnce, 40                           // as many secrets as calls at once: all are being asked for, and nothing else
	asked, answer := make(chan struct{}, 1000), make(chan struct{}) // the buffer holds all calls
	s.one.Fail(func(c cloud1smtest.Call) awstest.Fault {
		if slices.Contains(writing, c.Action) {
			asked <- struct{}{}
			select {
			case <-answer:
			case <-t.Context().Done():
			}
		}
		return awstest.Fault{}
	})
	name := func(i int) string { return fmt.Sprintf("secret-%d", i) }
	value := func(i, n int) string { return fmt.Sprintf("value %d of %d", n, i) }
	write := func(i, n int) error {
		return send(s.c, "POST", "kv/data/app/"+name(i), object{"data": object{"value": value(i, n)}}, nil)
	}
	all := make([]string, secrets)
	for i := range secrets {
		all[i] = name(i)
	}
	inParallel(t, all, func(name string) error { return write(slices.Index(all, name), 1) })
	for range secrets {
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatal("the place is not asked for all of them")
		}
	}
	inParallel(t, all, func(name string) error {
		for n := 2; n <= writes; n++ {
			if err := write(slices.Index(all, name), n); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range secrets {
		s.has("cloud2-kv", name(i), fmt.Sprintf(`{"value":%q}`, value(i, writes)))
	}
	s.secret("kv", "app/short-lived", "value", "is gone in a moment")
	s.must("DELETE", "kv/metadata/app/short-lived", nil)
	close(answer)
	for i := range secrets {
		s.has("cloud1-sm", name(i), fmt.Sprintf(`{"value":%q}`, value(i, writes)))
	}
	for _, e := range s.await(slow, "SYNCED") {
		if e.Version != writes {
			t.Errorf("%s: version %d is told of, want %d", e.Secret, e.Version, writes)
		}
		secret, _ := s.one.Secret(e.Name)
		if n := len(secret.Versions); n > 2 { // that which was asked for when the destination stopped answering, and the newest
			t.Errorf("%s has %d versions at the place, want 2 at most", e.Secret, n)
		}
	}
	for _, c := range s.one.Calls() {
		if c.Action == "CreateSecret" && c.SecretID == "short-lived" {
			t.Error("a secret that was gone was created")
		}
	}
}
