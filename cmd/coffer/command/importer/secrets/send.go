package secrets

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"golang.org/x/sync/errgroup"
)

const (
	batchBytes   = 1 << 20 // of one request, unless a secret alone is larger
	batchSecrets = 200
	batchWait    = 200 * time.Millisecond // how long a batch waits for more
	batchesSent  = 4                      // at once
	// secretBytes is what one request may have of one secret; the rest of its versions comes with the next one.
	secretBytes = 4 << 20
)

// send sends batches of what is ready, until the channel is closed.
func (r *copied) send(ctx context.Context, ready <-chan *pending) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batchesSent)
	var batch []*pending
	size := 0
	flush := func() {
		if some := batch; len(some) > 0 {
			g.Go(func() error { return r.sendBatch(ctx, some) })
		}
		batch, size = nil, 0
	}
	tick := time.NewTicker(batchWait)
	defer tick.Stop()
	for {
		select {
		case p, more := <-ready:
			if !more {
				flush()
				return g.Wait()
			}
			if size+p.size > batchBytes || len(batch) == batchSecrets {
				flush()
			}
			batch, size = append(batch, p), size+p.size
		case <-tick.C:
			flush()
		case <-ctx.Done():
			return g.Wait()
		}
	}
}

// result is what the destination says of a secret.
type result struct {
	Status, Reason string
	Dropped        int64 `json:"versions_dropped"`
}

// sendBatch sends secrets in one request, and one by one if the destination rejects the request.
func (r *copied) sendBatch(ctx context.Context, batch []*pending) error {
	if len(batch) == 1 && batch[0].size > secretBytes {
		return r.sendParts(ctx, batch[0])
	}
	secrets := map[string]any{}
	for _, p := range batch {
		secrets[p.path] = p.body(len(p.meta.Versions))
	}
	results, err := r.post(ctx, secrets)
	if err != nil && len(batch) > 1 && !move.Ends(ctx, err) {
		for _, p := range batch {
			if err := r.sendBatch(ctx, []*pending{p}); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		r.Bar.Add(1)
		return r.fail(ctx, batch[0].path, err)
	}
	var done []ledger.Entry
	for _, p := range batch {
		if results[p.path].Status == "incomplete" && len(p.data) < len(p.meta.Versions) {
			again, err := r.prepare(ctx, p.path, true)
			if err != nil {
				if err = r.fail(ctx, p.path, err); err != nil {
					return err
				}
			}
			if again != nil && len(again.data) > len(p.data) {
				if err := r.sendBatch(ctx, []*pending{again}); err != nil {
					return err
				}
				continue
			}
		}
		if r.sent(p, results[p.path]) {
			done = append(done, p.entry)
		}
	}
	return r.Ledger.Put(done...)
}

// sendParts sends a secret that is too large for one request, the oldest versions first. Those that an earlier attempt has brought go without
// their data.
func (r *copied) sendParts(ctx context.Context, p *pending) error {
	ours, err := r.ours(ctx, p.path)
	if err != nil {
		r.Bar.Add(1)
		return r.fail(ctx, p.path, err)
	}
	have := uint32(0)
	if action, _ := compare(p.meta, ours); ours != nil && action != move.Conflict {
		have = ours.newest()
	}
	last, first := result{}, ""
	all, versions := p.data, p.meta.Versions
	p.data, p.size = map[uint32]json.RawMessage{}, 0
	for i, v := range versions {
		if data := all[v.Number]; data != nil && v.Number > have {
			p.data[v.Number] = data
			p.size += len(data)
		}
		if i+1 < len(versions) && (v.Number <= have || p.size+len(all[versions[i+1].Number]) <= secretBytes) {
			continue
		}
		results, err := r.post(ctx, map[string]any{p.path: p.body(i + 1)})
		if err != nil {
			r.Bar.Add(1)
			return r.fail(ctx, p.path, err)
		}
		if last = results[p.path]; last.Status == "conflict" || last.Status == "incomplete" {
			break
		}
		first = cmp.Or(first, last.Status)
		p.data, p.size = map[uint32]json.RawMessage{}, 0
	}
	if last.Status == "extended" {
		last.Status = first
	}
	if r.sent(p, last) {
		return r.Ledger.Put(p.entry)
	}
	return nil
}

// sent reports what became of a secret, and returns whether the destination has it now.
func (r *copied) sent(p *pending, got result) bool {
	r.Bar.Add(1)
	switch got.Status {
	case "created", "extended", "overwritten":
		action := map[string]string{"created": move.Create, "extended": move.Update, "overwritten": move.Overwrite}[got.Status]
		r.changed.Add(1)
		r.leftOut.Add(got.Dropped)
		r.Report.Count(kindVersion, "copy", len(p.data))
		r.report(p.path, action, "")
		return true
	case "unchanged":
		r.report(p.path, move.Unchanged, "")
		return true
	case "conflict":
		r.report(p.path, move.Conflict, got.Reason)
	default:
		r.report(p.path, move.Failed, got.Reason)
	}
	return false
}

// post sends secrets to the import of the mount.
func (r *copied) post(ctx context.Context, secrets map[string]any) (map[string]result, error) {
	body := map[string]any{"secrets": secrets}
	if r.Overwrite {
		body["overwrite"] = true
	}
	a, err := r.Destination.Send(ctx, http.MethodPost, r.m.Namespace, r.m.Path+"/import", body)
	if err != nil {
		return nil, err
	}
	var out struct {
		Data struct{ Secrets map[string]result }
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return nil, command.ServerErrorf("the destination does not say what became of the secrets")
	}
	return out.Data.Secrets, nil
}

// body is the secret with its first n versions.
func (p *pending) body(n int) map[string]any {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	versions := make([]map[string]any, n)
	for i, v := range p.meta.Versions[:n] {
		versions[i] = map[string]any{"version": v.Number, "created_time": at(v.Created), "deletion_time": at(v.Deletion), "destroyed": v.Destroyed}
		if data := p.data[v.Number]; data != nil {
			versions[i]["data"] = data
		}
	}
	return map[string]any{
		"created_time": at(p.meta.Created), "updated_time": at(p.meta.Updated), "cas_required": p.meta.CASRequired, "max_versions": p.meta.MaxVersions,
		"delete_version_after": p.meta.DeleteAfter, "custom_metadata": p.meta.Custom, "versions": versions,
	}
}
