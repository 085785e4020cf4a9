// Package secrets copies key/value secrets from another server: of version 2 with all versions that can be read, their times and states, of
// version 1 with their value. Many secrets go into one request to the destination. Start reading at Copier.Mount, then Copier.prepare.
package secrets

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/inventory"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"golang.org/x/sync/errgroup"
)

// Kinds of a ledger and a report.
const (
	kindSecret  = "secret"
	kindVersion = "secret version"
)

// Copier copies. Its Mode is that of package move.
type Copier struct {
	Source      *source.Client
	Destination *move.Destination
	Ledger      *ledger.Ledger
	Report      *move.Report
	Bar         *progress.Bar
	Mode        move.Mode
	Overwrite   bool
	DeleteGone  bool // what came once and is not at the source any more
	Workers     int  // requests to the source at once

	mu   sync.Mutex
	key  []byte
	seen map[string]string // of secrets of version 1 that this process has written: keyed hashes of their values
}

// copied is one run over one mount.
type copied struct {
	*Copier
	m       *inventory.Mount
	deleted atomic.Int64 // versions whose data cannot be read
	leftOut atomic.Int64 // versions beyond max_versions
	changed atomic.Int64 // secrets written
}

// Mount copies the secrets of one mount, and returns how many were written.
func (c *Copier) Mount(ctx context.Context, m *inventory.Mount) (int, error) {
	r := &copied{Copier: c, m: m}
	what := "secrets of " + r.name("")
	c.Bar.Begin("listing "+what, 0)
	names, err := r.walk(ctx)
	if err != nil {
		return 0, err
	}
	c.Bar.Begin(what, len(names))
	if m.KV() == 2 {
		err = r.versioned(ctx, names)
	} else {
		err = r.plain(ctx, names)
	}
	if n := r.deleted.Load(); n > 0 {
		c.Report.Add(move.Action{Action: move.Skip, Kind: kindVersion, Namespace: m.Namespace, Name: m.Path + "/",
			Reason: fmt.Sprintf("%d deleted versions come without their data, which cannot be read: undelete them at the source to bring it", n)})
	}
	if n := r.leftOut.Load(); n > 0 {
		c.Report.Add(move.Action{Action: move.Skip, Kind: kindVersion, Namespace: m.Namespace, Name: m.Path + "/",
			Reason: fmt.Sprintf("%d old versions were left out: the source would drop them, too, with the next write (max_versions)", n)})
	}
	if err == nil {
		err = r.gone(ctx, names)
	}
	return int(r.changed.Load()), err
}

// name is the path of a secret of the mount, with its namespace, for people.
func (r *copied) name(path string) string {
	return strings.TrimPrefix(r.m.Namespace+"/"+r.m.Path+"/"+path, "/")
}

// key is the name of a secret in the ledger and in reports.
func (r *copied) keyOf(path string) string { return r.m.Path + "/" + path }

func (r *copied) report(path, action, reason string) {
	if reason == "" && action != move.Missing {
		r.Report.Count(kindSecret, action, 1)
		return
	}
	r.Report.Add(move.Action{Action: action, Kind: kindSecret, Namespace: r.m.Namespace, Name: r.keyOf(path), Reason: reason})
}

// fail reports a secret that cannot be copied, unless the error ends everything.
func (r *copied) fail(ctx context.Context, path string, err error) error {
	switch {
	case move.Ends(ctx, err), source.Away(err), errors.Is(err, source.ErrToken):
		return err
	case source.Denied(err):
		r.report(path, move.Skip, "the token may not read it at the source")
	default:
		r.report(path, move.Failed, command.Shortly(err))
	}
	return nil
}

// walk returns the names of all secrets of the mount.
func (r *copied) walk(ctx context.Context) ([]string, error) {
	base := r.m.Path + "/"
	if r.m.KV() == 2 {
		base += "metadata/"
	}
	var names []string
	for folders := []string{""}; len(folders) > 0; {
		found := make([][]string, len(folders))
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(r.Workers)
		for i, folder := range folders {
			g.Go(func() error {
				keys, err := r.Source.List(ctx, r.m.Namespace, base+folder)
				if source.Denied(err) {
					r.report(folder, move.Skip, "the token may not list it at the source")
					return nil
				}
				found[i] = keys
				r.Bar.Add(len(keys))
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		var below []string
		for i, keys := range found {
			for _, key := range keys {
				if strings.HasSuffix(key, "/") {
					below = append(below, folders[i]+key)
				} else {
					names = append(names, folders[i]+key)
				}
			}
		}
		folders = below
	}
	return names, nil
}

// plain copies secrets of version 1.
func (r *copied) plain(ctx context.Context, names []string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Workers)
	for _, name := range names {
		g.Go(func() error {
			defer r.Bar.Add(1)
			action, reason, err := r.value(ctx, name)
			if err != nil {
				return r.fail(ctx, name, err)
			}
			r.report(name, action, reason)
			return nil
		})
	}
	return g.Wait()
}

// value copies one secret of version 1. As the ledger holds nothing of values, what differs is compared with what this process wrote.
func (r *copied) value(ctx context.Context, name string) (action, reason string, err error) {
	at := r.m.Path + "/" + name
	theirs, err := r.Source.Fields(ctx, r.m.Namespace, at)
	if err != nil {
		return "", "", err
	}
	if theirs == nil {
		return move.Unchanged, "", nil // deleted since it was listed
	}
	ours, err := r.Destination.Fields(ctx, r.m.Namespace, at)
	if err != nil {
		return "", "", err
	}
	r.mu.Lock()
	before := r.seen[r.name(name)]
	r.mu.Unlock()
	action = move.Create
	switch {
	case ours == nil && r.Mode == move.Verify:
		return move.Missing, "", nil
	case ours == nil:
	case same(theirs, ours):
		return move.Unchanged, "", r.remember(name, theirs)
	case r.Mode == move.Verify:
		return move.Different, "its value is another one", nil
	case before == r.hash(ours):
		action = move.Update
	case r.Overwrite:
		action = move.Overwrite
	default:
		return move.Conflict, "another value is there", nil
	}
	if r.Mode != move.Apply {
		return action, "", nil
	}
	if _, err := r.Destination.Send(ctx, "POST", r.m.Namespace, at, theirs); err != nil {
		return "", "", err
	}
	r.changed.Add(1)
	return action, "", r.remember(name, theirs)
}

func (r *copied) remember(name string, value map[string]any) error {
	if r.Mode != move.Apply {
		return nil
	}
	sum := r.hash(value)
	r.mu.Lock()
	r.seen[r.name(name)] = sum
	r.mu.Unlock()
	return r.Ledger.Put(ledger.Entry{Kind: kindSecret, Namespace: r.m.Namespace, Name: r.keyOf(name)})
}

// hash is of no use outside of this process.
func (c *Copier) hash(value map[string]any) string {
	c.mu.Lock()
	if c.key == nil {
		c.key, c.seen = make([]byte, 32), map[string]string{}
		rand.Read(c.key) // never fails
	}
	c.mu.Unlock()
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	sum := hmac.New(sha256.New, c.key)
	sum.Write(text)
	return string(sum.Sum(nil))
}

// same reports whether two values are the same, by their hashes.
func same(a, b map[string]any) bool {
	one, err := json.Marshal(a)
	other, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && reflect.DeepEqual(sha256.Sum256(one), sha256.Sum256(other))
}
