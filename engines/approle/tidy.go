package approle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type noInput struct{}

// tidyPage is how many secret ids are looked at, and at most removed, at a time.
const tidyPage = 256

// tidy answers when the work is done. If the request ends before, what was removed by then stays removed.
func (e *engine) tidy(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	if !e.tidying.CompareAndSwap(false, true) {
		return tidied("Tidy operation already in progress."), nil
	}
	defer e.tidying.Store(false)
	run := tidying{roles: req.Mount.Storage, live: map[string]bool{}}
	for _, s := range []storage.Store{req.Mount.Storage, req.Mount.ClusterStorage} {
		if err := run.all(ctx, s); err != nil {
			return nil, err
		}
	}
	return tidied(fmt.Sprintf("Tidy operation done: %d secret ids removed.", run.removed)), nil
}

func tidied(warning string) *engines.Response {
	return &engines.Response{Status: http.StatusAccepted, Warnings: []string{warning}}
}

// tidying is one run.
type tidying struct {
	roles   storage.Reader
	live    map[string]bool // by uid: whether the role was there when a secret id of it was first met
	removed int
}

func (run *tidying) all(ctx context.Context, s storage.Store) error {
	var after storage.Key
	for {
		entries, err := s.Scan(ctx, secretPrefix, after, tidyPage)
		if err != nil || len(entries) == 0 {
			return err
		}
		switch n, err := run.page(ctx, s, entries); {
		case errors.Is(err, storage.ErrConflict):
			continue // one of them changed meanwhile: look again
		case err != nil:
			return err
		default:
			run.removed += n
			after = entries[len(entries)-1].Key
		}
	}
}

// page removes what is dead among the entries and returns how many those are.
func (run *tidying) page(ctx context.Context, s storage.Store, entries []storage.Entry) (int, error) {
	var b storage.Batch
	for _, entry := range entries {
		uid, _, ok := strings.Cut(strings.TrimPrefix(string(entry.Key), string(secretPrefix)), "/")
		var id secretID
		if err := json.Unmarshal(entry.Value, &id); err != nil || id.Format != 1 || !ok {
			return 0, errors.New("stored secret id has an unknown format")
		}
		live, err := run.isLive(ctx, uid, id.Role)
		if err != nil {
			return 0, err
		}
		if live && !id.expired(time.Now()) {
			continue
		}
		b.Reads = append(b.Reads, storage.Read{Key: entry.Key, Version: entry.Version})
		b.Deletes = append(b.Deletes, entry.Key, accessorKey(uid, id.Accessor))
	}
	if b.Empty() {
		return 0, nil
	}
	_, err := s.Commit(ctx, b)
	return len(b.Reads), err
}

// isLive reports whether the role of a secret id is there. The role is read after the secret id was, which was
// made after its role: a role that is missing now was deleted.
func (run *tidying) isLive(ctx context.Context, uid, name string) (bool, error) {
	live, ok := run.live[uid]
	if ok {
		return live, nil
	}
	ro, err := getRole(ctx, run.roles, name)
	if err == nil {
		run.live[uid] = ro != nil && ro.UID == uid
	}
	return run.live[uid], err
}
