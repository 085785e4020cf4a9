package kv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/kv/imported"
	"github.com/coffer-project/coffer/engines/kv/mergepatch"
	"github.com/coffer-project/coffer/storage"
)

type importIn struct {
	Secrets   map[string]json.RawMessage `json:"secrets" required:"true" help:"Secrets by path: created_time, updated_time, cas_required, max_versions, delete_version_after, custom_metadata, and versions, a list of version, created_time, deletion_time, destroyed and data."`
	Overwrite bool                       `json:"overwrite" help:"Replace secrets that are there and differ."`
}

// maxImportBytes bounds the data of one transaction of an import; a secret with more comes in several requests, its oldest versions first.
const maxImportBytes = storage.MaxBatchBytes / 2

// What became of an imported secret.
const (
	importCreated     = "created"
	importExtended    = "extended"    // was the same with fewer versions, or another state
	importUnchanged   = "unchanged"   // was the same
	importOverwritten = "overwritten" // was another one
	importConflict    = "conflict"    // is another one, and stays
	importIncomplete  = "incomplete"  // a version has no data, neither in the request nor in the store
)

type importResult struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	// Dropped is how many of the oldest versions were left out because of max_versions.
	Dropped int `json:"versions_dropped,omitempty"`
}

// importSecrets creates secrets with versions, times and states that another server gave them. A secret that is there is only replaced
// with overwrite, unless an earlier import made it: then it gets what has been added since. Each secret is written whole or not at all;
// when the request fails, some may have been, and the same request does the rest.
func importSecrets(ctx context.Context, req *engines.Request, in *importIn) (*engines.Response, error) {
	secrets := make([]*imported.Secret, 0, len(in.Secrets))
	for _, path := range slices.Sorted(maps.Keys(in.Secrets)) {
		s, err := imported.Parse(path, in.Secrets[path])
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, s)
	}
	results, totals := map[string]importResult{}, map[string]int{}
	for len(secrets) > 0 {
		n, size := 1, secrets[0].Size()
		for n < len(secrets) && size+secrets[n].Size() <= maxImportBytes {
			size += secrets[n].Size()
			n++
		}
		if err := importSome(ctx, req, secrets[:n], in.Overwrite, results); err != nil {
			return nil, err
		}
		secrets = secrets[n:]
	}
	for _, r := range results {
		totals[r.Status]++
	}
	return &engines.Response{Data: map[string]any{"secrets": results, "totals": totals}}, nil
}

// importSome writes secrets in one transaction.
func importSome(ctx context.Context, req *engines.Request, secrets []*imported.Secret, overwrite bool, results map[string]importResult) error {
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		cfg, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		for _, s := range secrets {
			if results[s.Path], err = importSecret(ctx, t, s, cfg, overwrite); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// importSecret adds the secret to a transaction, if it may.
func importSecret(ctx context.Context, t *storage.Txn, s *imported.Secret, cfg *config, overwrite bool) (importResult, error) {
	old, err := recordToChange(ctx, t, s.Path)
	if err != nil {
		return importResult{}, err
	}
	r := &record{
		created: instant(s.Created), updated: instant(s.Updated), casRequired: s.CASRequired,
		maxVersions: s.MaxVersions, deleteAfter: s.After,
	}
	if err := r.setCustom(s.Custom); err != nil {
		return importResult{}, err
	}
	dropped := max(0, len(s.Versions)-int(min(r.keep(cfg), maxRetained)))
	versions := s.Versions[dropped:]
	result := importResult{Status: importCreated, Dropped: dropped}
	if old != nil {
		result.Status = importExtended
		if result.Reason, err = differs(ctx, t, s, old, versions); err != nil {
			return result, err
		}
		switch {
		case result.Reason != "" && !overwrite:
			return importResult{Status: importConflict, Reason: result.Reason}, nil
		case result.Reason != "":
			result.Status = importOverwritten
		}
	}
	puts := map[storage.Key][]byte{}
	for _, v := range versions {
		n := version{number: v.Number, created: instant(v.Created), deletion: instant(v.Deletion), destroyed: v.Destroyed}
		r.versions, r.current = append(r.versions, n), v.Number
		had := json.RawMessage(nil)
		if result.Status == importExtended {
			if had, err = getPayload(ctx, t, s.Path, &n); err != nil {
				return result, err
			}
		}
		switch {
		case v.Data != nil && had == nil:
			puts[payloadKey(s.Path, n.number)] = encodeHeader(int64(n.created), json.RawMessage(v.Data))
		case v.Data == nil && had == nil && !v.Destroyed && v.Deletion == 0:
			return importResult{Status: importIncomplete, Reason: "a version has no data, neither in the request nor here"}, nil
		}
	}
	if old != nil && len(puts) == 0 && bytes.Equal(r.encode(), old.encode()) {
		return importResult{Status: importUnchanged}, nil
	}
	if old != nil {
		for _, v := range old.versions {
			if kept := r.find(v.number); result.Status == importOverwritten || kept == nil || kept.destroyed {
				t.Delete(payloadKey(s.Path, v.number))
			}
		}
	}
	for key, value := range puts {
		t.Put(key, value)
	}
	t.Put(recordKey(s.Path), r.encode())
	return result, nil
}

// differs says why the stored secret is not what an earlier import of this one made, "" if it may be. versions are those to be kept.
func differs(ctx context.Context, t *storage.Txn, s *imported.Secret, old *record, versions []imported.Version) (string, error) {
	if old.created != instant(s.Created) {
		return "another secret of this name was created here", nil
	}
	if old.updated > instant(s.Updated) {
		return "it was changed here since it was imported", nil
	}
	first := uint32(math.MaxUint32)
	if len(versions) > 0 {
		first = versions[0].Number
	}
	for i := range old.versions {
		v := &old.versions[i]
		at, found := slices.BinarySearchFunc(versions, v.number, func(v imported.Version, n uint32) int { return cmp.Compare(v.Number, n) })
		switch {
		case !found && v.number < first:
			continue
		case !found:
			return "it has versions here that are not imported", nil
		case v.created != instant(versions[at].Created):
			return "it has another version of the same number here", nil
		case v.destroyed && !versions[at].Destroyed:
			return "a version was destroyed here", nil
		case versions[at].Data == nil:
			continue
		}
		data, err := getPayload(ctx, t, s.Path, v)
		if err != nil {
			return "", err
		}
		if data != nil && !mergepatch.Same(data, json.RawMessage(versions[at].Data)) {
			return "it has a version with other data here", nil
		}
	}
	return "", nil
}
