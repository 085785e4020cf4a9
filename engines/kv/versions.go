package kv

import (
	"context"
	"strconv"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/kv/limits"
	"github.com/coffer-project/coffer/storage"
)

type versionsIn struct {
	Path     string             `json:"path" help:"Path of the secret."`
	Versions engines.StringList `json:"versions" required:"true" max:"2000" help:"Version numbers."`
}

func (in *versionsIn) numbers() ([]uint32, error) {
	numbers := make([]uint32, len(in.Versions))
	for i, text := range in.Versions {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			return nil, engines.Invalid("field \"versions\": must be a list of version numbers")
		}
		numbers[i] = uint32(n)
	}
	return numbers, nil
}

func deleteLatest(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	return nil, change(ctx, req, in.Path, []uint32{0}, softDelete)
}

func deleteVersions(ctx context.Context, req *engines.Request, in *versionsIn) (*engines.Response, error) {
	return nil, changeVersions(ctx, req, in, softDelete)
}

func undeleteVersions(ctx context.Context, req *engines.Request, in *versionsIn) (*engines.Response, error) {
	return nil, changeVersions(ctx, req, in, undelete)
}

func destroyVersions(ctx context.Context, req *engines.Request, in *versionsIn) (*engines.Response, error) {
	return nil, changeVersions(ctx, req, in, destroy)
}

// What can be done to a version. Each reports whether it changed anything.

func softDelete(v *version) bool {
	at := now()
	if v.destroyed || v.deleted(at) {
		return false
	}
	v.deletion = at
	return true
}

func undelete(v *version) bool {
	if v.destroyed || v.deletion == 0 {
		return false
	}
	v.deletion = 0
	return true
}

func destroy(v *version) bool {
	if v.destroyed {
		return false
	}
	v.destroyed = true
	return true
}

func changeVersions(ctx context.Context, req *engines.Request, in *versionsIn, do func(*version) bool) error {
	numbers, err := in.numbers()
	if err != nil {
		return err
	}
	return change(ctx, req, in.Path, numbers, do)
}

// change does something to versions of a secret in one transaction. Unknown versions, and unknown secrets,
// are ignored; if nothing changes, nothing is written.
func change(ctx context.Context, req *engines.Request, path string, numbers []uint32, do func(*version) bool) error {
	if err := limits.Path(path); err != nil {
		return err
	}
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		r, err := recordToChange(ctx, t, path)
		if err != nil || r == nil {
			return err
		}
		changed := false
		for _, number := range numbers {
			v := r.find(number)
			if v == nil || !do(v) {
				continue
			}
			changed = true
			switch {
			case v.destroyed:
				t.Delete(payloadKey(path, v.number))
			case v.deletion == 0:
				if there, err := exists(ctx, t, payloadKey(path, v.number)); err != nil {
					return err
				} else if !there {
					return engines.Invalid("version %d was imported when it was deleted already, so it has no data to take back", v.number)
				}
			}
		}
		if changed {
			t.Put(recordKey(path), r.encode())
		}
		return nil
	})
	return err
}
