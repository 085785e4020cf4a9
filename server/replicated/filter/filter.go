// Package filter says what a secondary may have: which unit a key belongs to (layout.go), and which units a paths filter lets through.
//
// It promises that what a filter does not clearly allow is excluded, and that a key belongs to one unit, always the same one. Units are what
// package replication compares and repairs as a whole. Start reading at Filter, then Resolve in scope.go.
package filter

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/storage"
)

// Mode says what the paths of a Filter mean. The texts are those of the API.
type Mode string

const (
	// Allow: the secondary gets the listed mounts, and the listed namespaces with everything below them.
	Allow Mode = "allow"
	// Deny: it gets everything but what is listed and what lies below that.
	Deny Mode = "deny"
)

// Limits of a filter.
const (
	maxFilterPaths = 4096
	maxFilterBytes = 512 << 10 // all paths together
)

// Filter is what a primary keeps for a secondary. Paths are full ones, sorted, and end in "/"; they may name what does not
// exist.
type Filter struct {
	Format int      `json:"format"` // 1
	Mode   Mode     `json:"mode"`
	Paths  []string `json:"paths"`
}

// always are the paths in each namespace that every secondary has, if it has the namespace.
var always = []string{"sys/", "identity/", "cubbyhole/", "auth/token/"}

// New checks what an operator has written. namespaces are those that there are now.
func New(mode string, paths []string, namespaces []Namespace) (*Filter, error) {
	f := &Filter{Format: 1, Mode: Mode(mode)}
	if f.Mode != Allow && f.Mode != Deny {
		return nil, engines.Invalid("field \"mode\": must be %q or %q", Allow, Deny)
	}
	if len(paths) > maxFilterPaths {
		return nil, engines.Invalid("field \"paths\": has %d elements, the limit is %d", len(paths), maxFilterPaths)
	}
	size := 0
	for _, written := range paths {
		path := strings.Trim(written, "/") + "/"
		size += len(path)
		if err := checkFilterPath(path); err != nil {
			return nil, err
		}
		if f.Mode == Deny && isAlways(path, namespaces) {
			return nil, engines.Invalid("field \"paths\": %q is part of every secondary that has its namespace and cannot be denied; deny the namespace instead", path)
		}
		f.Paths = append(f.Paths, path)
	}
	if size > maxFilterBytes {
		return nil, engines.Invalid("field \"paths\": is %d bytes, the limit is %d", size, maxFilterBytes)
	}
	slices.Sort(f.Paths)
	f.Paths = slices.Compact(f.Paths)
	return f, nil
}

// checkFilterPath refuses what cannot be the path of a mount or a namespace.
func checkFilterPath(path string) error {
	if path == "/" {
		return engines.Invalid("field \"paths\": the root namespace is part of every secondary; list mounts and namespaces, such as \"secret/\" or \"team/\"")
	}
	if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
		return engines.Invalid("field \"paths\": a path has characters that no mount's path has")
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		if segment == "" || segment == "." || segment == ".." || strings.TrimSpace(segment) != segment {
			return engines.Invalid("field \"paths\": %q is not the path of a mount or a namespace", path)
		}
	}
	return nil
}

// isAlways reports whether the path is that of a built-in mount, in the root or in one of the namespaces.
func isAlways(path string, namespaces []Namespace) bool {
	for _, name := range always {
		namespace, is := strings.CutSuffix(path, name)
		if is && (namespace == "" || slices.ContainsFunc(namespaces, func(n Namespace) bool { return n.Path == namespace })) {
			return true
		}
	}
	return false
}

// Prefix + hex of the secondary's opaque id is where a filter is kept.
const Prefix storage.Key = "l/replication/filter/"

func Key(id string) storage.Key { return Prefix + storage.Key(hex.EncodeToString([]byte(id))) }

// Read returns the filters that are stored under the ids.
func Read(ctx context.Context, from entry.Getter, ids ...string) ([]*Filter, error) {
	var found []*Filter
	for _, id := range ids {
		if id == "" {
			continue
		}
		var f Filter
		switch e, err := entry.Read(ctx, from, Key(id), &f); {
		case err != nil:
			return nil, err
		case e.Key == "":
		case f.Format != 1:
			return nil, fmt.Errorf("a paths filter has format %d, this version knows 1", f.Format)
		default:
			found = append(found, &f)
		}
	}
	return found, nil
}

// Inherit gives the filter of a secondary to the id that it has from now on, unless the operator has written one for
// that: what must not leave does not leave because of a new token.
func Inherit(ctx context.Context, txn *storage.Txn, from, to string) error {
	switch _, err := txn.Get(ctx, Key(to)); {
	case err == nil:
		return nil
	case !errors.Is(err, storage.ErrNotFound):
		return err
	}
	switch e, err := txn.Get(ctx, Key(from)); {
	case err == nil:
		txn.Put(Key(to), e.Value)
	case !errors.Is(err, storage.ErrNotFound):
		return err
	}
	return nil
}
