package inventory

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
)

// Gone reports namespaces, engines and methods that came once, are still here, and are not at the source any more. No flag deletes them,
// since what is in them would go, too.
func (v *Inventory) Gone(ctx context.Context, l *ledger.Ledger) error {
	for _, name := range l.Names(kindNamespace, "", "") {
		if slices.Contains(v.Namespaces, name) {
			continue
		}
		parent := strings.TrimPrefix(path.Dir(name), ".")
		// It may be there nevertheless: where the token may not list it.
		if _, err := v.Source.Get(ctx, parent, "sys/namespaces/"+path.Base(name), nil); source.Denied(err) || err == nil {
			continue
		} else if !source.Absent(err) {
			return err
		}
		there, err := v.Destination.Fields(ctx, "", "sys/namespaces/"+name)
		if err != nil {
			return err
		}
		if there != nil {
			v.gone(kindNamespace, "", name, "coffer namespace delete")
		}
	}
	for _, ns := range v.Namespaces {
		if v.unread[ns] {
			continue
		}
		if err := v.goneMounts(ctx, l, kindEngine, ns, "sys/mounts", v.Engines, "coffer secrets disable"); err != nil {
			return err
		}
		if err := v.goneMounts(ctx, l, kindMethod, ns, "sys/auth", v.Methods, "coffer auth disable"); err != nil {
			return err
		}
	}
	return nil
}

func (v *Inventory) goneMounts(ctx context.Context, l *ledger.Ledger, kind, ns, at string, now []*Mount, command string) error {
	names := slices.DeleteFunc(l.Names(kind, ns, ""), func(name string) bool {
		return slices.ContainsFunc(now, func(m *Mount) bool { return m.Namespace == ns && m.Path+"/" == name })
	})
	if len(names) == 0 {
		return nil
	}
	there, err := v.Destination.Fields(ctx, ns, at)
	if err != nil {
		return err
	}
	for _, name := range names {
		if there[name] != nil {
			v.gone(kind, ns, name, command)
		}
	}
	return nil
}

func (v *Inventory) gone(kind, ns, name, command string) {
	v.Report.Add(move.Action{Action: move.Gone, Kind: kind, Namespace: ns, Name: name,
		Reason: "it was imported, and is not at the source any more; -delete-gone leaves it, with all that is in it: " + command + " removes it"})
}
