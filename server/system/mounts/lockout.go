package mounts

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
)

// lockoutInput is user_lockout_config.
type lockoutInput struct {
	Threshold     int              `json:"lockout_threshold" help:"Wrong passwords for one name from one address that lock it there; 0: the server's."`
	Duration      engines.Duration `json:"lockout_duration" help:"How long the lock lasts; 0: the server's."`
	CounterReset  engines.Duration `json:"lockout_counter_reset_duration" help:"Time without a wrong password after which the earlier ones do not count; 0: the server's."`
	OlderReset    engines.Duration `json:"lockout_counter_reset" help:"Another name of lockout_counter_reset_duration."`
	LockDisable   bool             `json:"lockout_disable" help:"Lock no user of this mount out."`
	OlderDisabled bool             `json:"disable_lockout" help:"Another name of lockout_disable."`
}

// tuneLockout puts the given settings into the entry; null takes all of them back.
func tuneLockout(e *mount.Entry, config json.RawMessage) error {
	if !slices.Contains(engines.LockoutTypes, e.Type) {
		return engines.Invalid("field \"user_lockout_config\": is for auth methods with passwords, which are %s", strings.Join(engines.LockoutTypes, ", "))
	}
	var l engines.LockoutSettings
	if e.Config.UserLockout != nil {
		l = *e.Config.UserLockout
	}
	r := engines.NewRouter()
	engines.On(r, engines.Update, "config", "", 0, func(_ context.Context, req *engines.Request, in *lockoutInput) (*engines.Response, error) {
		if req.Given("lockout_counter_reset") && req.Given("lockout_counter_reset_duration") || req.Given("disable_lockout") && req.Given("lockout_disable") {
			return nil, engines.Invalid("field \"user_lockout_config\": one setting is given by two names")
		}
		for name, set := range map[string]func(){
			"lockout_threshold":              func() { l.Threshold = in.Threshold },
			"lockout_duration":               func() { l.Duration = time.Duration(in.Duration) },
			"lockout_counter_reset_duration": func() { l.CounterReset = time.Duration(in.CounterReset) },
			"lockout_counter_reset":          func() { l.CounterReset = time.Duration(in.OlderReset) },
			"lockout_disable":                func() { l.Disabled = &in.LockDisable },
			"disable_lockout":                func() { l.Disabled = &in.OlderDisabled },
		} {
			if req.Given(name) {
				set()
			}
		}
		return nil, l.Validate()
	})
	resp, err := r.Handle(context.Background(), &engines.Request{Op: engines.Update, Path: "config", Body: config})
	if err != nil {
		return err
	}
	if resp != nil && len(resp.Warnings) > 0 { // unknown fields: what is meant to protect is not ignored
		return engines.Invalid("field \"user_lockout_config\": %s", strings.ReplaceAll(resp.Warnings[0], "ignored", "in it"))
	}
	e.Config.UserLockout = &l
	return nil
}

// lockoutFields are the settings as clients read them.
func lockoutFields(l *engines.LockoutSettings) map[string]any {
	return map[string]any{
		"user_lockout_threshold": l.Threshold, "user_lockout_duration": int64(l.Duration.Seconds()),
		"user_lockout_counter_reset_duration": int64(l.CounterReset.Seconds()), "user_lockout_disable": l.Disabled != nil && *l.Disabled,
	}
}

func (p Paths) lockoutPaths(r *engines.Router) {
	engines.On(r, engines.Read, "locked-users", "List the users that are locked out after too many wrong passwords, in the namespace and those below it.", engines.Active, p.lockedUsers).
		Returns(`by_namespace: [{counts: integer, mount_accessors: [{alias_identifiers: [string], counts: integer, locks: [{alias_identifier,
			everywhere: boolean, locked_until, sources: [string]}], mount_accessor, mount_path}], namespace_id, namespace_path}], total:
			integer`)
	engines.On(r, engines.Update, "locked-users/{mount_accessor}/unlock/{alias_identifier}", "End the locks of a user.", engines.Active, p.unlockUser)
}

type lockedUsersInput struct {
	MountAccessor string `json:"mount_accessor" max:"256" help:"Only users of this auth method, in the namespace of the request."`
}

// lockedNamespace and what it holds are the response's form.
type lockedNamespace struct {
	ID     string        `json:"namespace_id"`
	Path   string        `json:"namespace_path"`
	Counts int           `json:"counts"`
	Mounts []lockedMount `json:"mount_accessors"`
}

type lockedMount struct {
	Accessor string       `json:"mount_accessor"`
	Path     string       `json:"mount_path"`
	Counts   int          `json:"counts"`
	Names    []string     `json:"alias_identifiers"`
	Locks    []lockedUser `json:"locks"`
}

type lockedUser struct {
	Name       string    `json:"alias_identifier"`
	Everywhere bool      `json:"everywhere"`
	Sources    []string  `json:"sources"`
	Until      time.Time `json:"locked_until"`
}

func (p Paths) lockedUsers(ctx context.Context, req *engines.Request, in *lockedUsersInput) (*engines.Response, error) {
	mounts, err := p.Table.Everywhere(ctx)
	if err != nil {
		return nil, err
	}
	here, total := namespaceOf(req), 0
	found := map[string]*lockedNamespace{}
	for _, m := range mounts {
		locker, ok := m.Engine.(engines.Locker)
		if !ok || m.Deleting || !p.within(ctx, here, m) || in.MountAccessor != "" && (m.Accessor != in.MountAccessor || m.Namespace != here) {
			continue
		}
		users, err := locker.LockedUsers(ctx, m.Mount)
		if err != nil {
			return nil, err
		}
		if len(users) == 0 {
			continue
		}
		ns := found[m.Namespace]
		if ns == nil {
			ns = &lockedNamespace{ID: m.Namespace, Path: m.Mount.Namespace}
			found[m.Namespace] = ns
		}
		ns.Mounts = append(ns.Mounts, describeLocks(m, users))
		ns.Counts += len(users)
		total += len(users)
	}
	list := []*lockedNamespace{}
	for _, ns := range found {
		slices.SortFunc(ns.Mounts, func(a, b lockedMount) int {
			return cmp.Or(cmp.Compare(b.Counts, a.Counts), strings.Compare(a.Path, b.Path))
		})
		list = append(list, ns)
	}
	slices.SortFunc(list, func(a, b *lockedNamespace) int {
		return cmp.Or(cmp.Compare(b.Counts, a.Counts), strings.Compare(a.Path, b.Path))
	})
	return &engines.Response{Data: map[string]any{"by_namespace": list, "total": total}}, nil
}

// within reports whether a mount is in a namespace or below it.
func (p Paths) within(ctx context.Context, namespace string, m *mount.Mounted) bool {
	return p.Namespaces.Below(ctx, namespace, m.Namespace)
}

func describeLocks(m *mount.Mounted, users []engines.LockedUser) lockedMount {
	out := lockedMount{Accessor: m.Accessor, Path: m.Path, Counts: len(users)}
	for _, u := range users {
		out.Names = append(out.Names, u.Name)
		out.Locks = append(out.Locks, lockedUser{Name: u.Name, Everywhere: u.Everywhere, Sources: append([]string{}, u.Sources...), Until: u.Until.UTC().Truncate(time.Second)})
	}
	return out
}

type unlockUserInput struct {
	Accessor string `json:"mount_accessor" help:"Accessor of the auth method."`
	Name     string `json:"alias_identifier" help:"Name of the user."`
}

func (p Paths) unlockUser(ctx context.Context, req *engines.Request, in *unlockUserInput) (*engines.Response, error) {
	m, err := p.Table.ByAccessor(ctx, namespaceOf(req), in.Accessor)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Invalid("invalid mount accessor: no auth method of this namespace has it; list them with sys/auth")
	}
	locker, ok := m.Engine.(engines.Locker)
	if !ok {
		return nil, engines.Invalid("auth method %s locks no users out", m.Path)
	}
	if err := m.Hold(); err != nil {
		return nil, err
	}
	defer m.Release()
	return nil, locker.UnlockUser(ctx, m.Mount, in.Name)
}
