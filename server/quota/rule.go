package quota

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
)

// The types of quotas.
const (
	RateLimit  = "rate-limit"
	LeaseCount = "lease-count"
	Storage    = "storage"
)

// types are all types of quotas.
var types = []string{LeaseCount, RateLimit, Storage}

// Limits of what a quota may say.
const (
	maxNameBytes = 128
	maxPathBytes = 1024
	maxRoleBytes = 256
	maxRate      = 1e9
	maxSeconds   = 366 * 24 * 3600
)

// Rule is one quota, as it is stored.
type Rule struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`
	Type   string `json:"type"`
	// Path is "" for everything, else a full path: those of namespaces and mounts end in "/", those of globs in "*".
	Path        string `json:"path"`
	Role        string `json:"role,omitempty"`
	Inheritable bool   `json:"inheritable,omitempty"` // of a namespace's rule: counts in those below, too

	// Of rate limits: so many requests in so many seconds, and how many seconds to stay away after too many.
	Rate          float64 `json:"rate,omitempty"`
	Interval      int64   `json:"interval,omitempty"`
	BlockInterval int64   `json:"block_interval,omitempty"`

	// Of lease counts.
	MaxLeases int64 `json:"max_leases,omitempty"`

	// Of storage quotas.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

func (r *Rule) id() string { return r.Type + "/" + r.Name }

func (r *Rule) glob() bool { return strings.HasSuffix(r.Path, "*") }

func (r *Rule) interval() time.Duration { return time.Duration(r.Interval) * time.Second }

func (r *Rule) block() time.Duration { return time.Duration(r.BlockInterval) * time.Second }

// check reports what is wrong with a rule, as an error for the client.
func (r *Rule) check() error {
	switch {
	case !plainName(r.Name):
		return engines.Invalid(`field "name": must be 1 to %d letters, digits, "-", "_" or "."`, maxNameBytes)
	case len(r.Role) > maxRoleBytes || strings.ContainsFunc(r.Role, unicode.IsControl) || !utf8.ValidString(r.Role):
		return engines.Invalid(`field "role": must be at most %d bytes without control characters`, maxRoleBytes)
	case r.Role != "" && !strings.HasPrefix(r.Path, "auth/") && !strings.Contains(r.Path, "/auth/"):
		return engines.Invalid(`field "role": needs the path of an auth method, such as "auth/approle/"`)
	case r.Role != "" && !strings.HasSuffix(r.Path, "/"):
		return engines.Invalid(`field "role": the path must be that of an auth method and end in "/"`)
	}
	if err := checkPath(r.Path); err != nil {
		return err
	}
	switch {
	case r.Type == LeaseCount && r.MaxLeases < 1:
		return engines.Invalid(`field "max_leases": must be at least 1`)
	case r.Type == Storage && r.MaxBytes < 1:
		return engines.Invalid(`field "max_bytes": must be at least 1`)
	case r.Type == Storage && (r.Role != "" || r.Path != "" && !strings.HasSuffix(r.Path, "/")):
		return engines.Invalid(`field "path": a storage quota concerns a namespace or a mount`)
	case r.Type != RateLimit:
		return nil
	case math.IsNaN(r.Rate) || r.Rate <= 0 || r.Rate > maxRate:
		return engines.Invalid(`field "rate": must be greater than 0 and at most %.0f`, maxRate)
	case r.Interval < 1 || r.Interval > maxSeconds:
		return engines.Invalid(`field "interval": must be from 1 second to 366 days`)
	case r.BlockInterval < 0 || r.BlockInterval > maxSeconds:
		return engines.Invalid(`field "block_interval": must be at most 366 days`)
	}
	return nil
}

// plainName reports whether a name can be one segment of a path.
func plainName(name string) bool {
	if name == "" || len(name) > maxNameBytes || strings.Trim(name, ".") == "" {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// checkPath checks a path that may end in "*".
func checkPath(path string) error {
	inner := strings.TrimSuffix(path, "*")
	switch {
	case len(path) > maxPathBytes:
		return engines.Invalid(`field "path": is longer than %d bytes`, maxPathBytes)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl):
		return engines.Invalid(`field "path": contains a control character or is not valid UTF-8`)
	case strings.Contains(inner, "*"):
		return engines.Invalid(`field "path": "*" stands for anything at the end only`)
	case path == "*":
		return engines.Invalid(`field "path": leave it empty for a quota on everything`)
	case strings.HasPrefix(path, "/") || strings.Contains(path, "//"):
		return engines.Invalid(`field "path": contains an empty segment`)
	}
	return nil
}

// locate completes the rule's path, checks that there is something at it, and sets what depends on it. given
// says that inheritable is the client's choice.
func (q *Quotas) locate(ctx context.Context, r *Rule, given bool) error {
	isNamespace := r.Path == ""
	if r.Path != "" && q.opts.Usage != nil {
		namespace, mount, err := q.opts.Usage.Split(ctx, strings.TrimRight(r.Path, "/*")+"/")
		if err != nil {
			return fmt.Errorf("looking for the path of a quota: %w", err)
		}
		switch whole := strings.TrimSuffix(r.Path, "/") + "/"; {
		case whole == namespace:
			r.Path, isNamespace = whole, true
		case mount == "":
			return engines.Invalid(`field "path": there is neither a namespace nor a mount at this path`)
		case whole == namespace+mount:
			r.Path = whole
		default:
			r.Path = strings.TrimSuffix(r.Path, "/") // below a mount
		}
		if r.Role != "" && (isNamespace || r.Path != namespace+mount || !strings.HasPrefix(mount, "auth/")) {
			return engines.Invalid(`field "role": the path must be that of an auth method`)
		}
		if r.Inheritable && !isNamespace {
			return engines.Invalid(`field "inheritable": only the quota of a namespace can be inherited`)
		}
	}
	if r.Path == "" && !given {
		r.Inheritable = true
	}
	return nil
}
