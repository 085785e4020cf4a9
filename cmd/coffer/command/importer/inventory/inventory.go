// Package inventory finds what a server of the Vault family has, as objects that package move brings over, and says what cannot come. Secrets
// of key/value engines are not among them: it only finds their mounts. Start reading at Discover, then Steps.
package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"golang.org/x/sync/errgroup"
)

// Inventory is what was found. It is made by Discover.
type Inventory struct {
	Source      *source.Client
	Destination *move.Destination
	Report      *move.Report
	// RootSource and RootDestination tell whether the two ends are root namespaces: some things are only there.
	RootSource, RootDestination bool
	// Planning says that nothing is written, so that what comes is not at the destination yet.
	Planning bool

	Namespaces []string // relative to the source's, "" first, parents before children
	Engines    []*Mount // secrets engines, of all namespaces
	Methods    []*Mount // auth methods

	accessors map[string]*Mount // auth methods of the source, by accessor
	skipped   map[*Mount]bool   // those that the destination has no type for
	unread    map[string]bool   // namespaces whose mounts the token may not read

	identities map[string][]found // entities and groups of the source, by kind

	mu     sync.Mutex
	theirs map[string]map[string]any    // sys/auth of the destination, by namespace
	names  map[string]map[string]string // entities and groups of the source: name by kind and id
	ids    map[string]string            // their ids at the destination, by kind, namespace and name
}

// Mount is a secrets engine or an auth method.
type Mount struct {
	Namespace string
	Path      string // as in sys/mounts or sys/auth, without the slash at the end
	Type      string
	Accessor  string
	Fields    map[string]any // as the source describes it
}

// KV returns the version of a key/value engine, 0 for other engines.
func (m *Mount) KV() int {
	options, _ := m.Fields["options"].(map[string]any)
	switch {
	case m.Type == "kv" && fmt.Sprint(options["version"]) == "2":
		return 2
	case m.Type == "kv", m.Type == "generic":
		return 1
	}
	return 0
}

// Discover walks through the namespaces and finds what is mounted in them.
func (v *Inventory) Discover(ctx context.Context) error {
	v.Namespaces, v.Engines, v.Methods, v.skipped = nil, nil, nil, map[*Mount]bool{}
	v.unread = map[string]bool{}
	v.identities = map[string][]found{}
	v.accessors, v.names, v.ids, v.theirs = map[string]*Mount{}, map[string]map[string]string{}, map[string]string{}, map[string]map[string]any{}
	if err := v.walk(ctx, ""); err != nil {
		return err
	}
	for _, ns := range v.Namespaces {
		engines, err := v.mounts(ctx, ns, "sys/mounts")
		if err != nil {
			return err
		}
		methods, err := v.mounts(ctx, ns, "sys/auth")
		if err != nil {
			return err
		}
		v.Engines, v.Methods = append(v.Engines, engines...), append(v.Methods, methods...)
		for _, m := range methods {
			v.accessors[m.Accessor] = m
		}
	}
	return nil
}

func (v *Inventory) walk(ctx context.Context, ns string) error {
	v.Namespaces = append(v.Namespaces, ns)
	children, err := v.list(ctx, ns, "sys/namespaces", kindNamespace)
	if err != nil {
		return err
	}
	for _, name := range children {
		if err := v.walk(ctx, strings.TrimPrefix(ns+"/"+strings.Trim(name, "/"), "/")); err != nil {
			return err
		}
	}
	return nil
}

// mounts reads sys/mounts or sys/auth, without what every server has.
func (v *Inventory) mounts(ctx context.Context, ns, path string) ([]*Mount, error) {
	fields, err := v.Source.Fields(ctx, ns, path)
	if err != nil {
		if source.Denied(err) && ns != "" {
			v.unread[ns] = true
			v.skip("mount", ns, path, "the token may not read it at the source")
			return nil, nil
		}
		return nil, err
	}
	var out []*Mount
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		about, ok := fields[name].(map[string]any)
		if !ok {
			continue
		}
		m := &Mount{Namespace: ns, Path: strings.Trim(name, "/"), Fields: about}
		m.Type, _ = about["type"].(string)
		m.Type = strings.TrimPrefix(m.Type, "ns_")
		m.Accessor, _ = about["accessor"].(string)
		switch m.Type {
		case "system", "identity", "cubbyhole":
		default:
			out = append(out, m)
		}
	}
	return out, nil
}

// list is Source.List of things that the token may not be allowed to see.
func (v *Inventory) list(ctx context.Context, ns, path, kind string) ([]string, error) {
	names, err := v.Source.List(ctx, ns, path)
	if source.Denied(err) {
		v.skip(kind, ns, path, "the token may not list it at the source")
		return nil, nil
	}
	return names, err
}

func (v *Inventory) skip(kind, ns, name, reason string) {
	v.Report.Add(move.Action{Action: move.Skip, Kind: kind, Namespace: ns, Name: name, Reason: reason})
}

// Step is objects that do not depend on each other, but on those of the steps before.
type Step struct {
	What    string
	Objects func(context.Context) ([]*move.Object, error)
}

// Steps returns all steps in their order.
func (v *Inventory) Steps() []Step {
	var steps []Step
	depth := 0
	for _, ns := range v.Namespaces {
		depth = max(depth, strings.Count(ns+"/", "/"))
	}
	for level := range depth {
		steps = append(steps, Step{"namespaces", func(ctx context.Context) ([]*move.Object, error) { return v.namespaces(ctx, level) }})
	}
	return append(steps, []Step{
		{"secrets engines", v.engines},
		{"auth methods", v.methods},
		{"password policies", v.passwordPolicies},
		{"policies", v.policies},
		{"configurations of auth methods", v.methodConfigs},
		{"roles and users", v.roles},
		{"entities", v.entities},
		{"aliases of entities", v.aliases},
		{"groups", v.groups},
		{"members of groups", v.members},
		{"aliases of groups", v.groupAliases},
		{"quotas", v.quotas},
	}...)
}

// without drops names.
func without(fields map[string]any, names ...string) map[string]any {
	out := maps.Clone(fields)
	for _, name := range names {
		delete(out, name)
	}
	return out
}

// workers is how many things are read at once.
const workers = 8

// readAll reads paths of a namespace, in their order; what is not there is nil.
func (v *Inventory) readAll(ctx context.Context, ns string, paths []string) ([]map[string]any, error) {
	out := make([]map[string]any, len(paths))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i, path := range paths {
		g.Go(func() (err error) {
			out[i], err = v.Source.Fields(ctx, ns, path)
			return err
		})
	}
	return out, g.Wait()
}

// below returns paths of names in a folder.
func below(folder string, names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = folder + "/" + name
	}
	return out
}

// reader returns the Current of objects that are read at one path.
func (v *Inventory) reader(ns, path string) func(context.Context) (map[string]any, error) {
	return func(ctx context.Context) (map[string]any, error) { return v.Destination.Fields(ctx, ns, path) }
}
