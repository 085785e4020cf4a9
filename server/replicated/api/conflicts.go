package api

import (
	"context"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/storage"
)

// naming knows what clients call what is stored under a key.
type naming struct {
	mounts     map[string]filter.Mount // by UUID
	namespaces map[string]string       // paths, by id
}

func (s *API) naming(ctx context.Context) (naming, error) {
	n := naming{mounts: map[string]filter.Mount{}, namespaces: map[string]string{}}
	mounts, err := s.opts.Data.Mounts(ctx)
	if err != nil {
		return n, err
	}
	for _, m := range mounts {
		n.mounts[m.UUID] = m
	}
	namespaces, err := s.opts.Data.Namespaces(ctx)
	for _, ns := range namespaces {
		n.namespaces[ns.ID] = ns.Path
	}
	return n, err
}

// name returns the path that a client would use, from the root namespace on, and which part of that the key holds: "" if it
// is the whole. What has no such path keeps its key.
func (n *naming) name(key storage.Key) (path, part string) {
	unit, ok := filter.Unit(key)
	if !ok {
		return string(key), ""
	}
	kind, id := filter.SplitUnit(unit)
	if kind == filter.KindMount {
		return n.inMount(id, key)
	}
	if kind == filter.KindNS {
		ns, known := n.namespaces[id]
		if !known {
			return string(key), ""
		}
		rest, inside := strings.CutPrefix(key.Path(), id+"/")
		if key.Area() == "namespace" || !inside {
			return ns, "namespace"
		}
		return ns + key.Area() + "/" + rest, ""
	}
	return "sys/" + key.Path(), ""
}

func (n *naming) inMount(id string, key storage.Key) (path, part string) {
	m, known := n.mounts[id]
	switch {
	case !known:
		return string(key), "of a mount that is gone"
	case filter.Anchor(key):
		return m.FullPath(), "mount"
	case m.Type != "kv":
		return m.FullPath() + key.Path(), ""
	}
	kind, rest, _ := strings.Cut(key.Path(), "/")
	switch kind {
	case "d":
		return m.FullPath() + rest, ""
	case "m":
		return m.FullPath() + rest, "metadata"
	case "v":
		number, secret, _ := strings.Cut(rest, "/")
		if version, err := strconv.ParseUint(number, 16, 32); err == nil {
			return m.FullPath() + secret, "version " + strconv.FormatUint(version, 10)
		}
	}
	return m.FullPath() + key.Path(), ""
}

// conflict is a Conflict as it is shown; the value, in base64, only to a caller that asks for the path or the key.
type conflict struct {
	Path   string      `json:"path"`
	Part   string      `json:"part,omitempty"` // of what is at the path: "metadata", "version 3"
	Key    storage.Key `json:"key"`
	Mine   string      `json:"mine"`
	Theirs string      `json:"theirs"` // "0:0": the primary does not have the key
	At     string      `json:"at"`
	Value  []byte      `json:"value,omitempty"`
}

func (s *API) serveConflicts(ctx context.Context, _ *engines.Request, in *conflictsInput) (*engines.Response, error) {
	list, err := s.link.Conflicts(ctx)
	if err != nil {
		return nil, err
	}
	names, err := s.naming(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]conflict, 0, len(list))
	for _, c := range list {
		if c.Key == replicated.CanaryKey {
			continue // a primary's heartbeat: there is nothing to restore
		}
		shown := conflict{Key: c.Key, Mine: c.Mine.String(), Theirs: c.Theirs.String(), At: replicated.TimeText(c.At)}
		shown.Path, shown.Part = names.name(c.Key)
		if in.Key != "" {
			if in.Key != string(c.Key) && in.Key != shown.Path {
				continue
			}
			shown.Value = c.Value
		}
		out = append(out, shown)
	}
	switch {
	case in.Key == "":
		return &engines.Response{Data: map[string]any{"conflicts": out}}, nil
	case len(out) == 0:
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"conflicts": out, "value": out[len(out)-1].Value}}, nil
}
