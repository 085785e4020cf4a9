package kv

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/kv/limits"
	"github.com/coffer-project/coffer/storage"
)

type metadataIn struct {
	Path string `json:"path" help:"Path of the secret."`
	settings
	Custom engines.StringMap `json:"custom_metadata" max:"64" help:"Names and texts of your own; replaces all that were there."`
}

type metadataPatchIn struct {
	Path string `json:"path" help:"Path of the secret."`
	settings
	Custom map[string]json.RawMessage `json:"custom_metadata" help:"Names and texts of your own to add, change or (null) remove."`
}

func listMetadata(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(merged(ctx, req.Mount.Storage, in, folder))
}

func scanMetadata(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(merged(ctx, req.Mount.Storage, in, below))
}

func readMetadata(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	r, err := getRecord(ctx, req.Mount.Storage, in.Path)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("")
	}
	versions := make(map[string]any, len(r.versions))
	for _, v := range r.versions {
		versions[strconv.FormatUint(uint64(v.number), 10)] = map[string]any{
			"created_time":  v.created.String(),
			"deletion_time": v.deletion.String(),
			"destroyed":     v.destroyed,
		}
	}
	return &engines.Response{Data: map[string]any{
		"cas_required":         r.casRequired,
		"created_time":         r.created.String(),
		"current_version":      r.current,
		"custom_metadata":      r.custom,
		"delete_version_after": r.deleteAfter.String(),
		"max_versions":         r.maxVersions,
		"oldest_version":       r.oldest(),
		"updated_time":         r.updated.String(),
		"versions":             versions,
	}}, nil
}

func writeMetadata(ctx context.Context, req *engines.Request, in *metadataIn) (*engines.Response, error) {
	return changeRecord(ctx, req, in.Path, &in.settings, func(r *record) error {
		if !req.Given("custom_metadata") {
			return nil
		}
		return r.setCustom(in.Custom)
	})
}

func patchMetadata(ctx context.Context, req *engines.Request, in *metadataPatchIn) (*engines.Response, error) {
	return changeRecord(ctx, req, in.Path, &in.settings, func(r *record) error {
		if r.created == 0 {
			return engines.NotFound("")
		}
		custom := map[string]string{}
		if r.custom != nil && !req.Null("custom_metadata") {
			if err := json.Unmarshal(r.custom, &custom); err != nil {
				return fmt.Errorf("decoding custom metadata: %w", err)
			}
		}
		for name, raw := range in.Custom {
			text := ""
			switch {
			case string(raw) == "null":
				delete(custom, name)
				continue
			case json.Unmarshal(raw, &text) != nil:
				return engines.Invalid("field \"custom_metadata\": values must be strings, or null to remove them")
			}
			custom[name] = text
		}
		return r.setCustom(custom)
	})
}

// changeRecord applies settings and then fn to a secret's record, new if there is none, in one transaction.
func changeRecord(ctx context.Context, req *engines.Request, path string, s *settings, fn func(*record) error) (*engines.Response, error) {
	if err := limits.Path(path); err != nil {
		return nil, err
	}
	warnings, err := s.check()
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		r, err := recordToChange(ctx, t, path)
		if err != nil {
			return err
		}
		if r == nil {
			r = &record{}
		}
		if err := fn(r); err != nil {
			return err
		}
		s.apply(req, &r.maxVersions, &r.casRequired, &r.deleteAfter)
		r.updated = now()
		if r.created == 0 {
			r.created = r.updated
		}
		t.Put(recordKey(path), r.encode())
		return nil
	})
	return warned(warnings), err
}

// setCustom replaces the custom metadata after checking them.
func (r *record) setCustom(custom map[string]string) error {
	if err := limits.Custom(custom); err != nil || len(custom) == 0 {
		r.custom = nil
		return err
	}
	encoded, err := json.Marshal(custom)
	r.custom = encoded
	return err
}

func deleteMetadata(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	if err := limits.Path(in.Path); err != nil {
		return nil, err
	}
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		r, err := recordToChange(ctx, t, in.Path)
		if err != nil || r == nil {
			return err
		}
		for _, v := range r.versions {
			t.Delete(payloadKey(in.Path, v.number))
		}
		t.Delete(recordKey(in.Path))
		return nil
	})
	return nil, err
}
