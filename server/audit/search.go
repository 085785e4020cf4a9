package audit

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/search"
)

type searchInput struct {
	Path      string           `json:"path" help:"Name of the device, which must write a file."`
	From      string           `json:"from" max:"64" help:"Only records from this time on, as RFC 3339. Without it, since is meant."`
	To        string           `json:"to" max:"64" help:"Only records before this time, as RFC 3339. Without it, now is meant."`
	Since     engines.Duration `json:"since" help:"How far back to search, without from; an hour by default."`
	Actor     string           `json:"actor" max:"1024" help:"Who: a display name, the id of an entity, or an accessor, in clear or as it is recorded."`
	Prefix    string           `json:"path_prefix" max:"1024" help:"What the path of the request begins with, its namespace before it."`
	Operation string           `json:"operation" max:"64" help:"Operation, such as read, update, delete or list."`
	Outcome   string           `json:"outcome" enum:",ok,failed,denied" help:"Only requests that worked, that failed, or that policies did not allow."`
	Hash      string           `json:"hash" max:"256" help:"Only records with this hash of a value, as audit-hash tells it."`
	Requests  bool             `json:"requests" help:"Also the records of requests; those of responses have the same, and their outcome."`
	Limit     int              `json:"limit" default:"100" help:"At most this many records are answered, 500 at most."`
	Buckets   int              `json:"buckets" default:"60" help:"Parts of the time in which matches are counted, 120 at most."`
}

// filter returns what is wanted, but for the actor.
func (in *searchInput) filter(now time.Time) (search.Filter, error) {
	f := search.Filter{
		Path: in.Prefix, Operation: in.Operation, Outcome: in.Outcome, Hash: in.Hash, OfRequests: in.Requests, To: now,
	}
	since := time.Duration(in.Since)
	if since == 0 {
		since = time.Hour
	}
	for _, t := range []struct {
		name, text string
		at         *time.Time
	}{{"to", in.To, &f.To}, {"from", in.From, &f.From}} {
		if t.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, t.text)
		if err != nil {
			return f, engines.Invalid("field %q: is not a time of RFC 3339, such as 2026-05-01T12:00:00Z", t.name)
		}
		*t.at = at
	}
	if in.From == "" {
		f.From = f.To.Add(-since)
	}
	switch {
	case !f.From.Before(f.To):
		return f, engines.Invalid("field \"from\": must be before to")
	case in.Limit < 1 || in.Limit > search.MaxResults:
		return f, engines.Invalid("field \"limit\": must be 1 to %d", search.MaxResults)
	case in.Buckets < 0 || in.Buckets > search.MaxBuckets:
		return f, engines.Invalid("field \"buckets\": must be 0 to %d", search.MaxBuckets)
	}
	return f, nil
}

// serveSearch searches one device at a time: a search has a processor for itself.
func (t *Table) serveSearch(ctx context.Context, _ *engines.Request, in *searchInput) (*engines.Response, error) {
	want, err := in.filter(time.Now())
	if err != nil {
		return nil, err
	}
	list, err := t.List(ctx)
	if err != nil {
		return nil, err
	}
	path := device.CleanPath(in.Path)
	for _, c := range list {
		if c.Path != path {
			continue
		}
		if in.Actor != "" {
			hash, err := t.Hash(ctx, path, in.Actor)
			if err != nil && !errors.Is(err, ErrNoDevice) {
				return nil, err
			}
			want.Actor = []string{in.Actor, hash}
		}
		if !t.searching.TryLock() {
			return nil, &engines.Error{Kind: engines.KindLimited, Detail: "another search of audit devices is running on this node: try again in a moment"}
		}
		defer t.searching.Unlock()
		return t.search(ctx, c, want, in)
	}
	return nil, engines.Invalid("unknown audit backend %s/", path)
}

func (t *Table) search(ctx context.Context, c device.Config, want search.Filter, in *searchInput) (*engines.Response, error) {
	file, size, err := c.OpenToRead(t.files)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, engines.Invalid("the audit device %s/ has no file on this node yet", c.Path)
	case err != nil:
		return nil, err
	}
	defer file.Close()
	found, err := search.Search(ctx, file, size, want, in.Limit, in.Buckets)
	if err != nil {
		return nil, err
	}
	data := map[string]any{
		"records": found.Records, "matches": found.Matches, "buckets": found.Buckets, "from": want.From, "to": want.To,
		"complete": found.Ended == "range" || found.Ended == "start", "ended": found.Ended, "bytes": found.Read, "oldest": nil,
	}
	if !found.Oldest.IsZero() {
		data["oldest"] = found.Oldest
	}
	return &engines.Response{Data: data}, nil
}
