package secretsync

import (
	"context"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// concernsSync reports whether a key of a system area is one that work follows from: a destination, an association, or the
// configuration. What work itself writes is none of them.
func concernsSync(key storage.Key) bool {
	_, kind, _ := splitKey(key)
	return kind == "d" || kind == "a" || kind == "config"
}

// splitKey takes a key below "sys/<namespace id>/sync/" apart; kind is "" for others.
func splitKey(key storage.Key) (ns, kind, rest string) {
	ns, path, ok := strings.Cut(key.Path(), "/sync/")
	if !ok || strings.Contains(ns, "/") {
		return "", "", ""
	}
	kind, rest, _ = strings.Cut(path, "/")
	return ns, kind, rest
}

// scanAll looks for everything that is due, in all namespaces.
func (s *Service) scanAll(ctx context.Context) error {
	all, err := s.host.Namespaces(ctx)
	if err != nil {
		return err
	}
	s.forget()
	for _, ns := range all {
		var dests []*destinationRecord
		err := scan(ctx, s.host.Store(), area(ns, "d/"), func(_ storage.Key, d *destinationRecord) bool {
			dests = append(dests, d)
			return true
		})
		if err != nil {
			return err
		}
		for _, d := range dests {
			if err := s.scanDestination(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanDestination looks for what is due at one destination.
func (s *Service) scanDestination(ctx context.Context, d *destinationRecord) error {
	s.setWidth(d)
	var all []*associationRecord
	err := scan(ctx, s.host.Store(), area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *associationRecord) bool {
		all = append(all, a)
		return true
	})
	if err != nil {
		return err
	}
	for _, a := range all {
		s.watch(a)
		if err := s.scanAssociation(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) setWidth(d *destinationRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.width == nil {
		s.width = map[string]int{}
	}
	s.width[d.ID] = s.types[d.Type].Rules.Rate.Concurrency
}

// scanAssociation queues the links of an association that are not as they should be.
func (s *Service) scanAssociation(ctx context.Context, a *associationRecord) error {
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return err
	}
	return s.eachSecret(ctx, a, m, func(secret string, l *link) error {
		at, due, err := s.due(ctx, a, m, secret, l)
		if err == nil && due {
			s.queue.push(jobKey{a.NS, a.Destination, a.ID, secret}, at, false, nil)
		}
		return err
	})
}

// eachSecret goes through the secrets of an association: those that are there, and those with a link, which is nil for one
// that has none yet.
func (s *Service) eachSecret(ctx context.Context, a *associationRecord, m *engines.Mounted, do func(secret string, l *link) error) error {
	links := map[string]*link{}
	var order []string
	err := scan(ctx, s.host.Store(), linkKey(a.NS, a.Destination, a.ID, ""), func(_ storage.Key, l *link) bool {
		links[l.Secret] = l
		order = append(order, l.Secret)
		return true
	})
	if err != nil {
		return err
	}
	for _, secret := range order {
		if err := do(secret, links[secret]); err != nil {
			return err
		}
	}
	if !a.Selector {
		if links[a.Secret] != nil {
			return nil
		}
		return do(a.Secret, nil)
	}
	if a.Removing || a.Gone || m == nil {
		if len(order) == 0 && a.Removing {
			return do("", nil) // for the record itself to go
		}
		return nil
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil
	}
	const page = 500
	for after := ""; ; {
		names, err := source.SecretNames(ctx, m.Mount, a.Secret, after, page)
		if err != nil {
			return err
		}
		for _, name := range names {
			if links[name] == nil {
				if err := do(name, nil); err != nil {
					return err
				}
			}
			after = name
		}
		if len(names) < page {
			return nil
		}
	}
}

// due reports whether a link has to be synced, and when.
func (s *Service) due(ctx context.Context, a *associationRecord, m *engines.Mounted, secret string, l *link) (at time.Time, due bool, err error) {
	now := time.Now()
	if l == nil || a.Removing || a.Gone || l.Rules != a.rules() || l.unfinished() {
		return s.notBefore(l, now), true, nil
	}
	if !l.NextRetry.IsZero() {
		return l.NextRetry, true, nil
	}
	secretNow, err := latest(ctx, m, secret)
	if err != nil {
		return now, true, nil //nolint:nilerr // syncing it will say why
	}
	if secretNow.Version != l.Version || !secretNow.CreatedAt.Equal(l.VersionAt) {
		return now, true, nil
	}
	if secretNow.Live && secretNow.DeletedAt.After(now) {
		return secretNow.DeletedAt, true, nil
	}
	return time.Time{}, false, nil
}

// notBefore keeps to the time that a failed link is to be tried again.
func (s *Service) notBefore(l *link, now time.Time) time.Time {
	if l != nil && l.NextRetry.After(now) {
		return l.NextRetry
	}
	return now
}

// unfinished reports whether something was begun of which nobody knows how it ended.
func (l *link) unfinished() bool {
	for i := range l.Items {
		if l.Items[i].Intent != nil {
			return true
		}
	}
	return false
}

// rules stands for all that the names and values of an association depend on, and what is to become of them.
func (a *associationRecord) rules() string {
	return short(append(append([]string{a.Granularity, a.Template, a.ValueFormat, "include"}, a.Include...), append([]string{"exclude"}, a.Exclude...)...)...)
}
