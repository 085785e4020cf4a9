package inventory

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
)

func (v *Inventory) passwordPolicies(ctx context.Context) ([]*move.Object, error) {
	return v.texts(ctx, "password policy", "sys/policies/password", nil)
}

func (v *Inventory) policies(ctx context.Context) ([]*move.Object, error) {
	for _, ns := range v.Namespaces {
		for _, kind := range []string{"rgp", "egp"} {
			names, err := v.Source.List(ctx, ns, "sys/policies/"+kind)
			if err != nil {
				continue // most servers have none
			}
			for _, name := range names {
				v.skip("policy", ns, kind+"/"+name, "policies of this kind are programs of another system")
			}
		}
	}
	return v.texts(ctx, "policy", "sys/policies/acl", v.rewrite)
}

// texts are the objects of policies of one kind.
func (v *Inventory) texts(ctx context.Context, kind, at string, rewrite func(context.Context, *move.Object) error) ([]*move.Object, error) {
	var out []*move.Object
	for _, ns := range v.Namespaces {
		names, err := v.list(ctx, ns, at, kind)
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name == "root" })
		all, err := v.readAll(ctx, ns, below(at, names))
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			text, ok := all[i]["policy"].(string)
			if !ok {
				v.skip(kind, ns, name, "the source shows no text")
				continue
			}
			o := &move.Object{
				Kind: kind, Namespace: ns, Name: name, Want: map[string]any{"policy": text}, Prepare: rewrite,
				Current: v.reader(ns, at+"/"+name), Write: v.Destination.Post(at + "/" + name),
			}
			if name == "default" {
				o.Differing = "the destination has a default policy of its own: -overwrite replaces it"
			}
			if rewrite != nil {
				o.Notes = v.policyNotes(ns, text)
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// rewrite replaces accessors of auth methods in a policy by those that they have at the destination.
func (v *Inventory) rewrite(ctx context.Context, o *move.Object) error {
	text := o.Want["policy"].(string)
	for accessor := range v.accessors {
		if accessor == "" || !strings.Contains(text, accessor) {
			continue
		}
		theirs, err := v.accessor(ctx, accessor)
		if err != nil {
			return err
		}
		if theirs != "" {
			text = strings.ReplaceAll(text, accessor, theirs)
		}
	}
	o.Want["policy"] = text
	return nil
}

var (
	policyPath = regexp.MustCompile(`(?m)path\s+"([^"]+)"`)
	identityID = regexp.MustCompile(`identity\.(groups\.ids|entity\.id\s*==)`)
)

// policyNotes says what a policy speaks of that is not at the destination.
func (v *Inventory) policyNotes(ns, text string) []string {
	var notes []string
	for _, found := range policyPath.FindAllStringSubmatch(text, -1) {
		for _, m := range v.Engines {
			if m.Namespace == ns && m.KV() == 0 && strings.HasPrefix(found[1], m.Path+"/") {
				notes = append(notes, "names paths of "+m.Path+"/, which is not imported")
			}
		}
	}
	if identityID.MatchString(text) {
		notes = append(notes, "names ids of groups or entities, which are others at the destination")
	}
	slices.Sort(notes)
	return slices.Compact(notes)
}

// quotas are those of the root namespace, which has them for all.
func (v *Inventory) quotas(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	for _, kind := range []string{"rate-limit", "lease-count"} {
		names, err := v.list(ctx, "", "sys/quotas/"+kind, "quota")
		if err != nil {
			return nil, err
		}
		if len(names) > 0 && !v.RootDestination {
			v.skip("quota", "", kind, "quotas are in the root namespace: import without -namespace")
			return nil, nil
		}
		for _, name := range names {
			at := "sys/quotas/" + kind + "/" + name
			fields, err := v.Source.Fields(ctx, "", at)
			if err != nil {
				return nil, err
			}
			out = append(out, &move.Object{
				Kind: "quota", Name: kind + "/" + name, Want: without(fields, "name", "type"),
				Current: v.reader("", at), Write: v.Destination.Post(at),
			})
		}
	}
	fields, err := v.Source.Fields(ctx, "", "sys/quotas/config")
	if err != nil || !v.RootDestination || fields == nil {
		return out, nil
	}
	return append(out, &move.Object{
		Kind: "quota", Name: "config", Want: fields, Differing: "the destination has settings of its own: -overwrite replaces them", Current: v.reader("", "sys/quotas/config"),
		Write: v.Destination.Post("sys/quotas/config"),
	}), nil
}

// Remarks are about what no server gives away, and what is set up by hand.
func (v *Inventory) Remarks(ctx context.Context) error {
	v.skip("token", "", "all tokens and leases", "they are only known to the server that issued them: clients log in again, and get credentials again")
	if n := len(v.identities["entity"]) + len(v.identities["group"]); n > 0 {
		v.skip("identity", "", "ids of entities and groups", "they get new ids at the destination: change what names one of the old")
	}
	for _, ns := range v.Namespaces {
		names, err := v.Source.List(ctx, ns, "identity/mfa/method")
		if err == nil && len(names) > 0 {
			v.skip("mfa method", ns, "all", "their secrets cannot be read: set them up at the destination, and have users enrol again")
		}
	}
	if !v.RootSource {
		return nil
	}
	devices, err := v.Source.Fields(ctx, "", "sys/audit")
	if err != nil {
		v.skip("audit device", "", "all", "the token may not list them at the source")
		return nil
	}
	for name, about := range devices {
		m, _ := about.(map[string]any)
		kind, _ := m["type"].(string)
		options, _ := m["options"].(map[string]any)
		file, _ := options["file_path"].(string)
		reason := "enable one at the destination, if its machines have the same: "
		if kind == "file" && strings.HasPrefix(file, "/") {
			v.skip("audit device", "", name, reason+"coffer audit enable -path="+strings.Trim(name, "/")+" file file_path="+file)
		} else {
			v.skip("audit device", "", name, reason+"it is of type "+kind)
		}
	}
	return nil
}
