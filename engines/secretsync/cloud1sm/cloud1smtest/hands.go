package cloud1smtest

import (
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Secret is a secret as a test sees it. Nothing of it is shared with the Server.
type Secret struct {
	ARN       string
	KMSKeyID  string
	Replicas  map[string]string // keys by region
	Tags      map[string]string
	Scheduled time.Duration       // until it is deleted; 0: it is not
	Versions  map[string][]string // labels, sorted, by id
	Text      bool                // the current value is a text
}

// Put writes a value as another client would: a new secret, or a new version.
func (s *Server) Put(name string, value []byte) {
	s.Lock()
	defer s.Unlock()
	now := s.NowLocked()
	s.purge(now)
	k := s.named(name)
	if k == nil {
		k = s.add(name, map[string]string{}, now)
	}
	v := &version{binary: value, created: now}
	if utf8.Valid(value) {
		text := string(value)
		v.text, v.binary = &text, nil
	}
	if rejected := k.put(strings.ToLower(rand.Text() + rand.Text())[:36], v, []string{current}, now); rejected != nil {
		s.testing.Errorf("cloud1smtest: Put: %s", rejected.Code)
	}
}

// Get returns what another client reads under a name.
func (s *Server) Get(name string) (value []byte, ok bool) {
	s.Lock()
	defer s.Unlock()
	s.purge(s.NowLocked())
	k := s.named(name)
	if k == nil || !k.deleteAt.IsZero() || k.versions[k.holder(current)] == nil {
		return nil, false
	}
	return k.versions[k.holder(current)].bytes(), true
}

// Secret returns the secret of a name, and whether there is one.
func (s *Server) Secret(name string) (Secret, bool) {
	s.Lock()
	defer s.Unlock()
	now := s.NowLocked()
	s.purge(now)
	k := s.named(name)
	if k == nil {
		return Secret{}, false
	}
	seen := Secret{ARN: k.arn, KMSKeyID: k.kms, Replicas: maps.Clone(k.replicas), Tags: maps.Clone(k.tags), Versions: map[string][]string{}}
	if !k.deleteAt.IsZero() {
		seen.Scheduled = k.deleteAt.Sub(now)
	}
	for id, v := range k.versions {
		seen.Versions[id] = slices.Sorted(slices.Values(v.labels))
		seen.Text = seen.Text || slices.Contains(v.labels, current) && v.text != nil
	}
	return seen, true
}

// change does something to the secret of a name.
func (s *Server) change(name string, f func(k *secret)) {
	s.Lock()
	defer s.Unlock()
	k := s.named(name)
	if k == nil {
		panic("cloud1smtest: there is no secret " + name)
	}
	f(k)
}

// Tag tags a secret, as another client would; without a limit.
func (s *Server) Tag(name string, tags map[string]string) {
	s.change(name, func(k *secret) { maps.Copy(k.tags, tags) })
}

// Manage makes a secret one that another service of the vendor manages.
func (s *Server) Manage(name, service string) { s.change(name, func(k *secret) { k.owner = service }) }

// Empty takes all versions of a secret away, which one has that was made without a value.
func (s *Server) Empty(name string) { s.change(name, func(k *secret) { clear(k.versions) }) }

// Schedule schedules a secret for deletion.
func (s *Server) Schedule(name string, d time.Duration) {
	s.change(name, func(k *secret) { k.deleted, k.deleteAt = s.NowLocked(), s.NowLocked().Add(d) })
}

// Drop removes a secret for good; its name is free at once.
func (s *Server) Drop(name string) { s.change(name, func(k *secret) { delete(s.secrets, k.arn) }) }
