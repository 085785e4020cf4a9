// Package reload takes at a hangup what a server can take while it runs: certificates, some keys of the configuration, and log files
// that were moved.
package reload

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/node/process"
	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
	"github.com/coffer-project/coffer/server/audit/device"
)

// Audit are the audit devices of the server.
type Audit interface {
	// ReloadAudit opens their files again.
	ReloadAudit() error
	// DeclareAudit takes those of the configuration.
	DeclareAudit(context.Context, []device.Config) error
}

// Listener is an address that is served.
type Listener interface {
	// Take takes what Listener says of a configuration, and reads the certificate again. On error the old one stays.
	Take(config.Listener) error
}

// Reloader has what takes something at a hangup.
type Reloader struct {
	// Read reads the configuration as at the start. It returns nil if there are no files of it.
	Read      func() (*config.Config, error)
	Config    *atomic.Pointer[config.Config] // that is in use
	Listeners []Listener                     // in the order of Config
	Audit     Audit
	Lockout   func(*config.Config) error // takes what a configuration says of lockouts
	Logs      *process.Logs
	Log       *slog.Logger
	Dev       bool // the configuration in use differs from the one read
}

// Run reloads at each hangup until the context ends.
func (r *Reloader) Run(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reload(ctx)
		}
	}
}

func (r *Reloader) reload(ctx context.Context) {
	failed := false
	attempt := func(what string, err error) {
		if err != nil {
			failed = true
			r.Log.Error(what+" failed: what was there before stays", "err", err)
		}
	}
	cfg, err := r.Read()
	attempt("reading the configuration again", err)
	if err != nil {
		cfg = nil
	}
	now := *r.Config.Load()
	now.Listeners = slices.Clone(now.Listeners)
	for i := range now.Listeners {
		if cfg != nil {
			take(&now.Listeners[i], cfg.Listeners)
		}
		attempt("reloading a certificate", r.Listeners[i].Take(now.Listeners[i]))
	}
	attempt("reopening audit files", r.Audit.ReloadAudit())
	attempt("reopening the log", r.Logs.Reopen())
	if cfg != nil {
		attempt("setting the log level", r.Logs.Reconfigure(cfg))
		devices, err := settings.AuditDevices(cfg)
		if err == nil {
			err = r.Audit.DeclareAudit(ctx, devices)
		}
		attempt("applying the audit stanzas of the configuration", err)
		if !reflect.DeepEqual(now.UserLockout, cfg.UserLockout) {
			err := r.Lockout(cfg)
			attempt("applying the user_lockout stanzas of the configuration", err)
			if err == nil {
				now.UserLockout = cfg.UserLockout
			}
		}
		now.LogLevel, now.Audit.Devices, now.Warnings = cfg.LogLevel, cfg.Audit.Devices, cfg.Warnings
		r.Config.Store(&now)
		if !r.Dev && !reflect.DeepEqual(&now, cfg) {
			r.Log.Warn("the configuration has other changes, which have no effect until the server is restarted", "keys", differing(&now, cfg))
		}
	}
	if !failed {
		r.Log.Info("reloaded certificates, audit files, the log, and of the configuration what needs no restart")
	}
}

// take takes from the stanza of the same address what needs no restart.
func take(c *config.Listener, all []config.Listener) {
	i := slices.IndexFunc(all, func(o config.Listener) bool { return o.Address == c.Address && o.Unix == c.Unix })
	if i >= 0 {
		c.Headers, c.TLSCertFile, c.TLSKeyFile = all[i].Headers, all[i].TLSCertFile, all[i].TLSKeyFile
	}
}

// differing returns the top-level keys in which two configurations differ.
func differing(a, b *config.Config) []string {
	var keys []string
	is, would := a.Sanitized(), b.Sanitized()
	for _, key := range slices.Sorted(maps.Keys(would)) {
		if !reflect.DeepEqual(is[key], would[key]) {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return []string{"one that sys/config/state/sanitized does not show"}
	}
	return keys
}
