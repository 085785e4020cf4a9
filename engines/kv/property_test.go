package kv_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

// model is what a version 2 mount promises, in the plainest form: everything kept, nothing clever.
type model struct {
	secrets map[string]*secret
	mount   limits
}

type limits struct {
	max   int
	cas   bool
	after time.Duration
}

type secret struct {
	current  int
	limits   limits
	versions map[int]*state
}

type state struct {
	data      string
	deletion  time.Time // zero: none
	destroyed bool
}

func (s *state) readable(now time.Time) bool {
	return !s.destroyed && (s.deletion.IsZero() || s.deletion.After(now))
}

// write returns whether a write with this cas (nil: none) succeeds, and does it.
func (m *model) write(path, data string, cas *int, now time.Time) bool {
	s := m.secrets[path]
	if s == nil {
		s = &secret{versions: map[int]*state{}}
	}
	if cas == nil && (s.limits.cas || m.mount.cas) || cas != nil && *cas != s.current {
		return false
	}
	m.secrets[path] = s
	s.current++
	v := &state{data: data}
	var after []time.Duration
	for _, d := range []time.Duration{s.limits.after, m.mount.after} {
		if d > 0 {
			after = append(after, d)
		}
	}
	if after != nil {
		v.deletion = now.Add(slices.Min(after))
	}
	s.versions[s.current] = v
	keep := 10
	if m.mount.max > 0 {
		keep = m.mount.max
	}
	if s.limits.max > 0 {
		keep = s.limits.max
	}
	for n := range s.versions {
		if n <= s.current-keep {
			delete(s.versions, n)
		}
	}
	return true
}

// TestV2Model sends random requests to a mount and to the model and compares every answer, and now and then
// every version of every secret.
func TestV2Model(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run(t, rand.New(rand.NewPCG(seed, 2)))
			})
		})
	}
}

func run(t *testing.T, r *rand.Rand) {
	mount := newV2(t)
	m := &model{secrets: map[string]*secret{}}
	paths := []string{"a", "a/b", "c"}
	for step := range 150 {
		time.Sleep(time.Duration(r.IntN(30)) * time.Second)
		now := time.Now()
		path := paths[r.IntN(len(paths))]
		s := m.secrets[path]
		n := 1 + r.IntN(12)
		var v *state
		if s != nil {
			v = s.versions[n]
		}
		versions := fmt.Sprintf(`{"versions":[%d]}`, n)
		switch choice := r.IntN(12); choice {
		case 0, 1, 2, 3:
			data := fmt.Sprintf(`{"n":%d}`, step)
			body, cas := fmt.Sprintf(`{"data":%s}`, data), (*int)(nil)
			if r.IntN(2) == 0 {
				expected := r.IntN(3)
				if s != nil {
					expected = s.current + r.IntN(2)
				}
				body, cas = fmt.Sprintf(`{"data":%s,"options":{"cas":%d}}`, data, expected), &expected
			}
			_, err := mount.Do(engines.Update, "data/"+path, body)
			if want := m.write(path, data, cas, now); (err == nil) != want {
				t.Fatalf("step %d: write %s: %v, want success %v", step, path, err, want)
			}
		case 4:
			mount.Must(engines.Delete, "data/"+path, nil)
			if s != nil && s.versions[s.current] != nil && s.versions[s.current].readable(now) {
				s.versions[s.current].deletion = now
			}
		case 5:
			mount.Must(engines.Update, "delete/"+path, versions)
			if v != nil && v.readable(now) {
				v.deletion = now
			}
		case 6:
			mount.Must(engines.Update, "undelete/"+path, versions)
			if v != nil && !v.destroyed {
				v.deletion = time.Time{}
			}
		case 7:
			mount.Must(engines.Update, "destroy/"+path, versions)
			if v != nil {
				v.destroyed = true
			}
		case 8:
			if r.IntN(4) == 0 {
				mount.Must(engines.Delete, "metadata/"+path, nil)
				delete(m.secrets, path)
			}
		case 9, 10:
			l := limits{r.IntN(6), r.IntN(4) == 0, time.Duration(r.IntN(3)) * time.Minute}
			body := fmt.Sprintf(`{"max_versions":%d,"cas_required":%v,"delete_version_after":"%s"}`, l.max, l.cas, l.after)
			if choice == 9 {
				mount.Must(engines.Update, "config", body)
				m.mount = l
				break
			}
			mount.Must(engines.Update, "metadata/"+path, body)
			if s == nil {
				s = &secret{versions: map[int]*state{}}
				m.secrets[path] = s
			}
			s.limits = l
		case 11:
			compare(t, mount, m, paths, step)
		}
	}
	compare(t, mount, m, paths, 150)
}

// compare reads every version of every secret.
func compare(t *testing.T, mount *enginetest.Mount, m *model, paths []string, step int) {
	t.Helper()
	now := time.Now()
	before := mount.Snapshot()
	for _, path := range paths {
		s := m.secrets[path]
		for n := range 160 {
			number := n
			if n == 0 && s != nil {
				number = s.current
			}
			var v *state
			if s != nil {
				v = s.versions[number]
			}
			resp, err := mount.Do(engines.Read, fmt.Sprintf("data/%s?version=%d", path, n), nil)
			var e *engines.Error
			switch {
			case v == nil:
				if !errors.As(err, &e) || e.Kind != engines.KindNotFound {
					t.Fatalf("step %d: %s version %d: %+v, %v, want none", step, path, n, resp, err)
				}
				continue
			case err != nil:
				t.Fatalf("step %d: %s version %d: %v", step, path, n, err)
			}
			data := mount.Data(resp)
			meta := data["metadata"].(map[string]any)
			if (resp.Status == 0) != v.readable(now) || meta["destroyed"] != v.destroyed || (meta["deletion_time"] == "") != v.deletion.IsZero() {
				t.Fatalf("step %d: %s version %d: %v, want %+v", step, path, n, data, v)
			}
			if v.readable(now) && fmt.Sprintf(`{"n":%v}`, data["data"].(map[string]any)["n"]) != v.data {
				t.Fatalf("step %d: %s version %d: %v, want %s", step, path, n, data, v.data)
			}
		}
		payloads := 0
		if s != nil {
			for _, v := range s.versions {
				if !v.destroyed {
					payloads++
				}
			}
			if got := mount.Data(mount.Must(engines.Read, "metadata/"+path, nil)); len(got["versions"].(map[string]any)) != len(s.versions) {
				t.Fatalf("step %d: %s has versions %v, want %d of them", step, path, got["versions"], len(s.versions))
			}
		}
		stored := 0
		for key := range before {
			if p := key.Path(); len(p) > 11 && p[:2] == "v/" && p[11:] == path {
				stored++
			}
		}
		if stored != payloads {
			t.Fatalf("step %d: %s has %d payloads stored, want %d", step, path, stored, payloads)
		}
	}
	if after := mount.Snapshot(); len(after) != len(before) {
		t.Fatalf("step %d: reading changed what is stored", step)
	}
}
