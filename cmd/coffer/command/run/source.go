package run

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
)

// source is a secret that the program gets values of.
type source struct {
	path   string
	keys   map[string][]string // the names of each key that is wanted, nil for all keys under their own
	prefix string
	upper  bool

	at     kv.Path
	values map[string]string // by the name of the variable
	lease  string            // "" if what was read has no lease
	ends   time.Time         // of the lease
	next   time.Time         // when it is due
	failed bool              // the last attempt, which the user was told
}

// resolve asks which engine the path is in.
func (s *source) resolve(ctx context.Context, c *command.Call) (err error) {
	s.at, err = kv.PathOf(ctx, c, s.path)
	return err
}

// read reads the secret and reports whether its values differ from those before.
func (s *source) read(ctx context.Context, c *command.Call) (bool, error) {
	a, err := c.Get(ctx, s.at.At("data"))
	if command.StatusOf(err) == http.StatusNotFound {
		return false, command.ServerErrorf("no value found at %s", s.path)
	}
	if err != nil {
		return false, err
	}
	data := a.Data()
	if s.at.Version == 2 {
		data, _ = data["data"].(map[string]any)
	}
	if data == nil {
		return false, command.ServerErrorf("%s holds nothing: its newest version is deleted", s.path)
	}
	values, err := s.names(data)
	if err != nil {
		return false, err
	}
	differs := !maps.Equal(values, s.values)
	s.values = values
	s.lease = a.Secret.LeaseID
	if s.lease != "" {
		s.scheduleLease(time.Duration(a.Secret.LeaseDuration) * time.Second)
	}
	return differs, nil
}

// names maps keys to variables.
func (s *source) names(data map[string]any) (map[string]string, error) {
	values := map[string]string{}
	for key, value := range data {
		text, err := response.Bare(value)
		if err != nil {
			return nil, err
		}
		if strings.Contains(text, "\x00") {
			return nil, command.Usagef("the key %q of %s has a zero byte, which variables cannot have", key, s.path)
		}
		for _, name := range s.keys[key] {
			values[name] = text
		}
		if s.keys == nil {
			values[s.name(key)] = text
		}
	}
	for key := range s.keys {
		if _, ok := data[key]; !ok {
			return nil, command.ServerErrorf("%s has no key %q", s.path, key)
		}
	}
	return values, nil
}

func (s *source) name(key string) string {
	name := s.prefix + key
	if !s.upper {
		return name
	}
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToUpper(name))
}

// scheduleLease plans the renewal for two thirds of what is left.
func (s *source) scheduleLease(left time.Duration) {
	s.ends = time.Now().Add(left)
	s.next = time.Now().Add(max(left*2/3, time.Second))
}

// refresh renews the lease, or reads the secret again if it has none, or one that cannot go on. It reports whether the values differ.
func (s *source) refresh(ctx context.Context, c *command.Call, interval time.Duration) (bool, error) {
	s.next = time.Now().Add(interval)
	if s.lease == "" {
		return s.read(ctx, c)
	}
	before := time.Until(s.ends)
	a, err := c.Put(ctx, "sys/leases/renew", map[string]any{"lease_id": s.lease})
	if err == nil && a.Secret != nil {
		// A lease near its maximum gets less and less: what is read in its place lives longer.
		if left := time.Duration(a.Secret.LeaseDuration) * time.Second; left > before+time.Second {
			s.scheduleLease(left)
			return false, nil
		}
	}
	if command.Passing(err) && before > interval {
		return false, err
	}
	differs, err := s.read(ctx, c)
	if err != nil {
		return false, err
	}
	if s.lease == "" {
		s.next = time.Now().Add(interval)
	}
	return differs, nil
}

// revoke ends the leases that are left.
func revoke(ctx context.Context, c *command.Call, sources []*source) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, s := range sources {
		if s.lease == "" {
			continue
		}
		_, err := c.Put(ctx, "sys/leases/revoke", map[string]any{"lease_id": s.lease})
		if command.StatusOf(err) == http.StatusForbidden {
			c.Warnf("coffer run: the lease of %s lasts until %s: the token has no right to update sys/leases/revoke", s.path, s.ends.Format(time.TimeOnly))
		} else if err != nil {
			c.Warnf("coffer run: revoking the lease of %s: %s", s.path, command.Shortly(err))
		}
	}
}
