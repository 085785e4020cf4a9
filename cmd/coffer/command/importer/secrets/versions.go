package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"golang.org/x/sync/errgroup"
)

// pending is a secret that is ready to be sent.
type pending struct {
	path  string
	meta  *metadata
	data  map[uint32]json.RawMessage // by version
	size  int
	entry ledger.Entry
}

// versioned copies secrets of version 2: workers read them, and batches of what they have read go to the destination.
func (r *copied) versioned(ctx context.Context, names []string) error {
	g, ctx := errgroup.WithContext(ctx)
	ready := make(chan *pending, r.Workers) // closed once all are read
	g.Go(func() error { return r.send(ctx, ready) })
	g.Go(func() error {
		defer close(ready)
		readers, ctx := errgroup.WithContext(ctx)
		readers.SetLimit(r.Workers)
		for _, name := range names {
			if ctx.Err() != nil {
				break
			}
			readers.Go(func() error {
				p, err := r.prepare(ctx, name, false)
				if err != nil {
					err = r.fail(ctx, name, err)
				}
				if p == nil {
					r.Bar.Add(1)
					return err
				}
				select {
				case ready <- p:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}
		return readers.Wait()
	})
	return g.Wait()
}

// prepare reads what is to be sent of a secret, nil if that is nothing. all reads the data of versions that were sent before, too.
func (r *copied) prepare(ctx context.Context, path string, all bool) (*pending, error) {
	for attempt := 1; ; attempt++ {
		raw, err := r.Source.Get(ctx, r.m.Namespace, r.m.Path+"/metadata/"+path, nil)
		if source.Absent(err) {
			return nil, nil // deleted since it was listed
		}
		if err != nil {
			return nil, err
		}
		meta, err := parseMetadata(raw)
		if err != nil {
			return nil, errors.New("its metadata at the source cannot be understood")
		}
		p := &pending{path: path, meta: meta, data: map[uint32]json.RawMessage{}}
		p.entry = ledger.Entry{Kind: kindSecret, Namespace: r.m.Namespace, Name: r.keyOf(path), Source: ledger.Fingerprint(meta), Version: meta.newest()}
		before, known := r.Ledger.Get(kindSecret, r.m.Namespace, p.entry.Name)
		r.countDeleted(meta, before, known)
		if r.Mode != move.Apply {
			return nil, r.check(ctx, p)
		}
		if known && before == p.entry && !all {
			r.report(path, move.Unchanged, "")
			return nil, nil
		}
		switch err := r.readData(ctx, p, before.Version, all); {
		case err == nil:
			return p, nil
		case !errors.Is(err, errChanged) || attempt == 3:
			return nil, err
		}
	}
}

// countDeleted counts the versions that have lost their data since the last time, or at all.
func (r *copied) countDeleted(meta *metadata, before ledger.Entry, known bool) {
	for _, v := range meta.Versions {
		if !v.Destroyed && !v.readable(time.Now()) && (r.Mode == move.Plan || !known || v.Number > before.Version) {
			r.deleted.Add(1)
		}
	}
	if r.Mode == move.Plan {
		r.Report.Count(kindVersion, "copy", len(meta.Versions))
	}
}

// errChanged says that the source has changed between two requests.
var errChanged = errors.New("it changes at the source while it is read")

// readData reads the data of the versions after one, or of all.
func (r *copied) readData(ctx context.Context, p *pending, after uint32, all bool) error {
	for _, v := range p.meta.Versions {
		p.size += 200 + len(p.path)
		if v.Number <= after && !all || !v.readable(time.Now()) {
			continue
		}
		data, err := r.version(ctx, p.path, v.Number)
		if err != nil {
			return err
		}
		p.data[v.Number] = data
		p.size += len(data)
	}
	return nil
}

// version reads the data of one version at the source.
func (r *copied) version(ctx context.Context, path string, number uint32) (json.RawMessage, error) {
	raw, err := r.Source.Get(ctx, r.m.Namespace, r.m.Path+"/data/"+path, url.Values{"version": {strconv.FormatUint(uint64(number), 10)}})
	if source.Absent(err) {
		return nil, errChanged
	}
	if err != nil {
		return nil, err
	}
	var out struct{ Data json.RawMessage }
	if err := json.Unmarshal(raw, &out); err != nil || len(out.Data) == 0 || out.Data[0] != '{' {
		return nil, fmt.Errorf("version %d at the source has no data", number)
	}
	return out.Data, nil
}

// ours returns what the destination says of a secret, nil if it is not there.
func (r *copied) ours(ctx context.Context, path string) (*metadata, error) {
	a, err := r.Destination.Send(ctx, http.MethodGet, r.m.Namespace, r.m.Path+"/metadata/"+path, nil)
	switch status := command.StatusOf(err); {
	case status == http.StatusNotFound, status == http.StatusBadRequest: // nor is the mount there
		return nil, nil
	case err != nil:
		return nil, err
	}
	var out struct{ Data json.RawMessage }
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return nil, err
	}
	return parseMetadata(out.Data)
}

// check compares a secret with what the destination has, and writes nothing.
func (r *copied) check(ctx context.Context, p *pending) error {
	ours, err := r.ours(ctx, p.path)
	if err != nil {
		return err
	}
	action, reason := compare(p.meta, ours)
	if r.Mode == move.Plan {
		if action == move.Conflict && r.Overwrite {
			action = move.Overwrite
		}
		r.report(p.path, action, reason)
		return nil
	}
	switch action {
	case move.Create:
		r.report(p.path, move.Missing, "")
		return nil
	case move.Unchanged:
	case move.Update:
		reason = "its versions, states or settings are others"
		fallthrough
	default:
		r.report(p.path, move.Different, reason)
		return nil
	}
	left := leftOut(p.meta, ours)
	r.leftOut.Add(int64(left))
	for _, v := range p.meta.Versions[left:] {
		if !v.readable(time.Now()) {
			continue
		}
		equal, err := r.sameData(ctx, p.path, v.Number)
		if err != nil {
			return err
		}
		if !equal {
			r.report(p.path, move.Different, fmt.Sprintf("version %d has other data", v.Number))
			return nil
		}
		r.Report.Count(kindVersion, move.Unchanged, 1)
	}
	r.report(p.path, move.Unchanged, "")
	return nil
}

// sameData compares the data of a version at both ends.
func (r *copied) sameData(ctx context.Context, path string, number uint32) (bool, error) {
	raw, err := r.version(ctx, path, number)
	if err != nil {
		return false, err
	}
	theirs, err := source.Decode(raw)
	if err != nil {
		return false, err
	}
	ours, err := r.Destination.Read(ctx, r.m.Namespace, r.m.Path+"/data/"+path, url.Values{"version": {strconv.FormatUint(uint64(number), 10)}})
	if err != nil {
		return false, err
	}
	data, _ := ours["data"].(map[string]any)
	return same(theirs, data), nil
}
