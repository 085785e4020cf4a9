package quota

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Where quotas are stored: rules by type and name, one key for each thing that has a quota of a type, and the
// configuration.
const (
	prefix        storage.Key = "s/sys/root/quotas/"
	targetsPrefix             = prefix + "targets/"
	configKey                 = prefix + "config"
)

func rulesPrefix(kind string) storage.Key { return prefix + storage.Key(kind+"/") }

func ruleKey(kind, name string) storage.Key { return rulesPrefix(kind) + storage.Key(name) }

// targetKey is the key that two quotas of one type for the same thing would both write.
func (r *Rule) targetKey() storage.Key {
	sum := sha256.Sum256([]byte(roleKey(r.Path, r.Role)))
	return targetsPrefix + storage.Key(r.Type+"/"+hex.EncodeToString(sum[:]))
}

// target is what is stored under a targetKey.
type target struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`   // of the quota
}

// Config is what concerns all quotas.
type Config struct {
	Format int `json:"format"` // 1
	// Exempt are paths that rate limits do not count, relative to the namespace of the request; AbsoluteExempt
	// are full ones. Both may end in "*".
	Exempt         []string `json:"exempt"`
	AbsoluteExempt []string `json:"absolute_exempt"`
	// RateLimitHeaders tells clients of their limits, AuditRateLimits records rejected requests in the audit log.
	RateLimitHeaders bool `json:"rate_limit_headers"`
	AuditRateLimits  bool `json:"audit_rate_limits"`
}

// maxExempt limits the exempt paths of each sort.
const maxExempt = 256

// defaultConfig keeps a cluster operable, however tight its limits.
func defaultConfig() Config {
	return Config{Format: 1, Exempt: []string{
		"sys/generate-root*", "sys/health", "sys/leader", "sys/seal-status", "sys/unseal",
	}}
}

func (c *Config) check() error {
	for name, paths := range map[string][]string{"rate_limit_exempt_paths": c.Exempt, "absolute_rate_limit_exempt_paths": c.AbsoluteExempt} {
		if len(paths) > maxExempt {
			return engines.Invalid("field %q: has more than %d elements", name, maxExempt)
		}
		for _, path := range paths {
			if path == "" || len(path) > maxPathBytes || strings.Contains(strings.TrimSuffix(path, "*"), "*") {
				return engines.Invalid(`field %q: each path must be 1 to %d bytes, with a "*" at its end only`, name, maxPathBytes)
			}
		}
	}
	return nil
}

// errFormat means that this build does not understand an entry.
var errFormat = errors.New("unknown format")

// load reads everything. A quota that this build does not understand is left out, and the defaults stand in for
// such a configuration: neither may keep the cluster from answering.
func (q *Quotas) load(ctx context.Context) ([]Rule, Config, error) {
	var rules []Rule
	for _, kind := range types {
		entries, err := q.opts.Store.Scan(ctx, rulesPrefix(kind), "", 0)
		if err != nil {
			return nil, Config{}, fmt.Errorf("reading the quotas: %w", err)
		}
		for _, e := range entries {
			r, err := decodeRule(e)
			if err != nil {
				q.log.Error("a quota is not in force", "err", err)
				continue
			}
			rules = append(rules, r)
		}
	}
	config, err := readConfig(ctx, q.opts.Store)
	if errors.Is(err, errFormat) {
		q.log.Error("the configuration of quotas is not in force", "err", err)
		return rules, defaultConfig(), nil
	}
	return rules, config, err
}

func decodeRule(e storage.Entry) (Rule, error) {
	var r Rule
	if err := json.Unmarshal(e.Value, &r); err != nil || r.Format != 1 {
		return Rule{}, fmt.Errorf("reading %s: %w", e.Key, errFormat)
	}
	if err := r.check(); err != nil {
		return Rule{}, fmt.Errorf("reading %s: %w", e.Key, err)
	}
	return r, nil
}

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(context.Context, storage.Key) (storage.Entry, error)
}

func readConfig(ctx context.Context, r getter) (Config, error) {
	e, err := r.Get(ctx, configKey)
	if errors.Is(err, storage.ErrNotFound) {
		return defaultConfig(), nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration of quotas: %w", err)
	}
	var c Config
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Format != 1 {
		return Config{}, fmt.Errorf("reading %s: %w", configKey, errFormat)
	}
	return c, nil
}

func encode(v any) []byte {
	value, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts, booleans and finite numbers only
	}
	return value
}

// get returns a rule, or storage.ErrNotFound.
func get(ctx context.Context, r getter, kind, name string) (Rule, error) {
	if !plainName(name) {
		return Rule{}, storage.ErrNotFound
	}
	e, err := r.Get(ctx, ruleKey(kind, name))
	if err != nil {
		return Rule{}, err
	}
	return decodeRule(e)
}

// put stores a rule, whatever was there under its name. Another one for the same thing is an error.
func (q *Quotas) put(ctx context.Context, r Rule) error {
	r.Format = 1
	if err := r.check(); err != nil {
		return err
	}
	_, err := storage.Update(ctx, q.opts.Store, func(tx *storage.Txn) error {
		old, err := get(ctx, tx, r.Type, r.Name)
		switch {
		case err == nil && old.targetKey() != r.targetKey():
			tx.Delete(old.targetKey())
		case err != nil && !errors.Is(err, storage.ErrNotFound):
			return err
		}
		e, err := tx.Get(ctx, r.targetKey())
		switch {
		case err == nil:
			var t target
			if err := json.Unmarshal(e.Value, &t); err != nil || t.Format != 1 {
				return fmt.Errorf("reading %s: %w", e.Key, errFormat)
			}
			if t.Name != r.Name {
				return engines.Invalid("quota rule with similar properties exists under the name %q", t.Name)
			}
		case !errors.Is(err, storage.ErrNotFound):
			return err
		}
		tx.Put(r.targetKey(), encode(target{Format: 1, Name: r.Name}))
		tx.Put(ruleKey(r.Type, r.Name), encode(r))
		return nil
	})
	q.changes.Add(1)
	return err
}

// remove forgets a rule. One that is not there is fine.
func (q *Quotas) remove(ctx context.Context, kind, name string) error {
	_, err := storage.Update(ctx, q.opts.Store, func(tx *storage.Txn) error {
		r, err := get(ctx, tx, kind, name)
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		tx.Delete(ruleKey(kind, name))
		tx.Delete(r.targetKey())
		return nil
	})
	q.changes.Add(1)
	return err
}

// Drop forgets the quotas of a namespace or mount that is no more, and of everything below it. path is a full
// one and ends in "/".
func (q *Quotas) Drop(ctx context.Context, path string) error {
	if path == "" || !strings.HasSuffix(path, "/") {
		return fmt.Errorf("dropping quotas: %q is not the path of a namespace or mount", path)
	}
	rules, _, err := q.load(ctx)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if strings.HasPrefix(r.Path, path) {
			if err := q.remove(ctx, r.Type, r.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Move takes the quotas of a namespace or mount along to where it moved, with those of everything below it. Both
// are full paths and end in "/". It may be repeated after it broke off.
func (q *Quotas) Move(ctx context.Context, from, to string) error {
	for _, path := range []string{from, to} {
		if path == "" || !strings.HasSuffix(path, "/") {
			return fmt.Errorf("moving quotas: %q is not the path of a namespace or mount", path)
		}
	}
	rules, _, err := q.load(ctx)
	if err != nil {
		return err
	}
	for _, r := range rules {
		below, ok := strings.CutPrefix(r.Path, from)
		if !ok {
			continue
		}
		r.Path = to + below
		if err := q.put(ctx, r); err != nil {
			return fmt.Errorf("moving the quota %s: %w", r.id(), err)
		}
	}
	return nil
}

// list returns the sorted names of the rules of a type.
func (q *Quotas) list(ctx context.Context, kind string) ([]string, error) {
	names, err := q.opts.Store.List(ctx, rulesPrefix(kind), "", 0)
	slices.Sort(names)
	return names, err
}

// configure changes the configuration.
func (q *Quotas) configure(ctx context.Context, change func(*Config)) error {
	_, err := storage.Update(ctx, q.opts.Store, func(tx *storage.Txn) error {
		c, err := readConfig(ctx, tx)
		if err != nil {
			return err
		}
		change(&c)
		if err := c.check(); err != nil {
			return err
		}
		tx.Put(configKey, encode(c))
		return nil
	})
	q.changes.Add(1)
	return err
}
