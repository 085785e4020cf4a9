package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/kv/limits"
	"github.com/coffer-project/coffer/engines/kv/mergepatch"
	"github.com/coffer-project/coffer/storage"
)

type readIn struct {
	Path    string `json:"path" help:"Path of the secret."`
	Version int    `json:"version" help:"Version to read; 0 is the latest."`
}

type writeIn struct {
	Path    string                     `json:"path" help:"Path of the secret."`
	Data    engines.Object             `json:"data" help:"The secret, a JSON object."`
	Options map[string]json.RawMessage `json:"options" help:"Options of the write. \"cas\": write only if this is the current version; 0 if there must be none."`
	// CAS at the top is what one client sends besides the one in options, which counts.
	CAS json.RawMessage `json:"cas" help:"Ignored: belongs into options."`
}

// load returns a version of a secret with its data, nil data if the version is deleted or destroyed, and
// KindNotFound if there is none.
func load(ctx context.Context, s engines.Getter, path string, number uint32) (*record, *version, json.RawMessage, error) {
	// A writer may come between reading the record and reading the payload. Then the payload is gone, or
	// belongs to another version of the same number, which the time in it tells, and the record is another
	// one too: read again.
	for last := storage.Index(0); ; {
		r, at, err := getRecordAt(ctx, s, path)
		if err != nil {
			return nil, nil, nil, err
		}
		if r == nil {
			return nil, nil, nil, engines.NotFound("")
		}
		v := r.find(number)
		if v == nil {
			return nil, nil, nil, engines.NotFound("")
		}
		if v.destroyed || v.deleted(now()) {
			return r, v, nil, nil
		}
		if r.unconverted != nil {
			return r, v, r.unconverted, nil
		}
		data, err := getPayload(ctx, s, path, v)
		if data != nil || err != nil {
			return r, v, data, err
		}
		if at == last && v.deletion != 0 { // imported without data, which its server did not show any more
			return r, v, nil, nil
		}
		if at == last {
			return nil, nil, nil, fmt.Errorf("version %d of secret %q has no data", v.number, path)
		}
		last = at
	}
}

// getPayload returns the data of a version, or nil if what is stored is not that version's.
func getPayload(ctx context.Context, s engines.Getter, path string, v *version) (json.RawMessage, error) {
	e, err := s.Get(ctx, payloadKey(path, v.number))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	created, data, err := decodeHeader(e.Value)
	if err != nil {
		return nil, fmt.Errorf("version %d of secret %q: %w", v.number, path, err)
	}
	if instant(created) != v.created {
		return nil, nil
	}
	return data, nil
}

// versionNumber checks the version parameter of a read.
func versionNumber(n int) (uint32, error) {
	switch {
	case n < 0:
		return 0, engines.Invalid("field \"version\": must not be negative")
	case uint64(n) > uint64(^uint32(0)):
		return 0, engines.NotFound("")
	}
	return uint32(n), nil
}

func readData(ctx context.Context, req *engines.Request, in *readIn) (*engines.Response, error) {
	number, err := versionNumber(in.Version)
	if err != nil {
		return nil, err
	}
	r, v, data, err := load(ctx, req.Mount.Storage, in.Path, number)
	if err != nil {
		return nil, err
	}
	return versionAnswer("data", r, v, data), nil
}

// versionAnswer builds {"<name>": data, "metadata": {…}}, with status 404 when the version has no data any more.
func versionAnswer(name string, r *record, v *version, data json.RawMessage) *engines.Response {
	resp := &engines.Response{}
	if data == nil {
		resp.Status, data = http.StatusNotFound, json.RawMessage("null")
	}
	b := make([]byte, 0, len(name)+len(data)+len(r.custom)+192)
	b = append(b, `{"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	b = append(b, data...)
	b = append(b, `,"metadata":`...)
	b = r.appendVersion(b, v)
	resp.Data = json.RawMessage(append(b, '}'))
	return resp
}

func writeData(ctx context.Context, req *engines.Request, in *writeIn) (*engines.Response, error) {
	if err := limits.Path(in.Path); err != nil {
		return nil, err
	}
	if in.Data == nil {
		return nil, engines.Invalid("no data provided")
	}
	return addVersion(ctx, req, in, func(*storage.Txn, *record) (json.RawMessage, error) {
		return json.RawMessage(in.Data), nil
	})
}

// addVersion writes what data returns as the next version and answers its metadata. data sees the secret's
// record before the new version, without versions if the secret is new.
func addVersion(ctx context.Context, req *engines.Request, in *writeIn, data func(*storage.Txn, *record) (json.RawMessage, error)) (*engines.Response, error) {
	cas, err := casOption(in.Options)
	if err != nil {
		return nil, err
	}
	var answer json.RawMessage
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		cfg, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		r, err := recordToChange(ctx, t, in.Path)
		if err != nil {
			return err
		}
		if r == nil {
			r = &record{}
		}
		if err := checkCAS(cas, r, cfg); err != nil {
			return err
		}
		secret, err := data(t, r)
		if err != nil {
			return err
		}
		if err := limits.Size(len(secret)); err != nil {
			return err
		}
		v, err := r.put(t, in.Path, cfg, secret)
		if err != nil {
			return err
		}
		answer = r.appendVersion(nil, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: answer}, nil
}

// put stores data as the next version.
func (r *record) put(t *storage.Txn, path string, cfg *config, data json.RawMessage) (*version, error) {
	v, pruned, err := r.add(now(), cfg)
	if err != nil {
		return nil, err
	}
	t.Put(payloadKey(path, v.number), encodeHeader(int64(v.created), data))
	for _, number := range pruned {
		t.Delete(payloadKey(path, number))
	}
	t.Put(recordKey(path), r.encode())
	return v, nil
}

// casOption returns the version that the write expects, nil if it expects none in particular.
func casOption(options map[string]json.RawMessage) (*uint32, error) {
	raw := options["cas"]
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	text := string(raw)
	if quoted := ""; json.Unmarshal(raw, &quoted) == nil {
		text = quoted
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, engines.Invalid("field \"options.cas\": must be a version number")
	}
	if n < 0 || n > math.MaxUint32 {
		return nil, errCAS // no secret has such a version
	}
	cas := uint32(n)
	return &cas, nil
}

var errCAS = engines.Invalid("check-and-set parameter did not match the current version")

func checkCAS(cas *uint32, r *record, cfg *config) error {
	switch {
	case cas == nil && (cfg.casRequired || r.casRequired):
		return engines.Invalid("check-and-set parameter required for this call")
	case cas != nil && *cas != r.current:
		return errCAS
	}
	return nil
}

func patchData(ctx context.Context, req *engines.Request, in *writeIn) (*engines.Response, error) {
	if err := limits.Path(in.Path); err != nil {
		return nil, err
	}
	if in.Data == nil {
		return nil, engines.Invalid("no data provided")
	}
	var gone *engines.Response
	resp, err := addVersion(ctx, req, in, func(t *storage.Txn, _ *record) (json.RawMessage, error) {
		r, v, latest, err := load(ctx, t, in.Path, 0)
		if err != nil {
			return nil, err
		}
		if latest == nil {
			gone = versionAnswer("data", r, v, nil)
			return nil, errGone
		}
		return mergepatch.Apply(latest, json.RawMessage(in.Data))
	})
	if errors.Is(err, errGone) {
		return gone, nil
	}
	return resp, err
}

// errGone ends a patch of a deleted version; the client gets the same 404 as from a read.
var errGone = errors.New("the latest version is deleted")

type subkeysIn struct {
	Path    string `json:"path" help:"Path of the secret."`
	Version int    `json:"version" help:"Version to read; 0 is the latest."`
	Depth   int    `json:"depth" help:"How many levels to show; 0 is all."`
}

func readSubkeys(ctx context.Context, req *engines.Request, in *subkeysIn) (*engines.Response, error) {
	number, err := versionNumber(in.Version)
	if err != nil {
		return nil, err
	}
	if in.Depth < 0 {
		return nil, engines.Invalid("field \"depth\": must not be negative")
	}
	r, v, data, err := load(ctx, req.Mount.Storage, in.Path, number)
	if err != nil {
		return nil, err
	}
	if data != nil {
		if data, err = mergepatch.Subkeys(data, in.Depth); err != nil {
			return nil, err
		}
	}
	return versionAnswer("subkeys", r, v, data), nil
}
