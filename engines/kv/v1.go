package kv

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/engines/kv/limits"
	"github.com/coffer-project/coffer/storage"
)

func newRouterV1() *engines.Router {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "{path...}", "Read a secret.", 0, readV1).Returns("*: any")
	engines.On(r, engines.Scan, "{path...}", "List all secrets below a folder.", 0, scanV1).Returns("keys: [string]")
	engines.On(r, engines.List, "{path...}", "List the secrets and folders in a folder.", 0, listV1).Returns("keys: [string]")
	engines.On(r, engines.Delete, "{path...?}", "Delete a secret.", 0, deleteV1)
	engines.On(r, engines.Update, "{path...?}", "Write a secret: any JSON object.", 0, writeV1).Exists =
		func(ctx context.Context, req *engines.Request) (bool, error) {
			return exists(ctx, req.Mount.Storage, keyV1(req.Param("path")))
		}
	return r
}

func keyV1(path string) storage.Key { return storage.Key("d/" + path) }

// writeV1In is the input of a write: the whole body is the secret.
type writeV1In struct {
	Path string         `json:"path" help:"Path of the secret."`
	Data engines.Object `json:"data" body:"true" help:"The secret. A field \"ttl\" or \"lease\" sets the lease_duration that readers are told."`
}

func readV1(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	e, err := req.Mount.Storage.Get(ctx, keyV1(in.Path))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	seconds, data, err := decodeHeader(e.Value)
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", in.Path, err)
	}
	if seconds == statedZero {
		return &engines.Response{Data: data, Held: &engines.HeldLease{}}, nil
	}
	// Without a stated one, the zero TTL becomes the mount's default.
	return &engines.Response{Data: data, Lease: &engines.Lease{TTL: time.Duration(seconds) * time.Second}}, nil
}

func writeV1(ctx context.Context, req *engines.Request, in *writeV1In) (*engines.Response, error) {
	if err := limits.Path(in.Path); err != nil {
		return nil, err
	}
	seconds, err := statedLease(in.Data)
	if err != nil {
		return nil, err
	}
	if err := limits.Size(len(in.Data)); err != nil {
		return nil, err
	}
	put := storage.Put{Key: keyV1(in.Path), Value: encodeHeader(seconds, in.Data)}
	_, err = req.Mount.Storage.Commit(ctx, storage.Batch{Puts: []storage.Put{put}})
	return nil, err
}

// statedZero is stored of a secret whose own lease is shorter than a second.
const statedZero = -1

// statedLease returns what the secret's own "ttl" or "lease" says, in seconds or statedZero, 0 if nothing that can be
// understood, and rejects secrets without any field.
func statedLease(data engines.Object) (int64, error) {
	var fields map[string]json.RawMessage
	if len(data) > 0 {
		if err := json.Unmarshal(data, &fields); err != nil {
			return 0, engines.Invalid("the secret is not a JSON object")
		}
	}
	if len(fields) == 0 {
		return 0, engines.Invalid("missing data fields")
	}
	for _, name := range []string{"ttl", "lease"} {
		text := string(fields[name])
		if s := ""; json.Unmarshal(fields[name], &s) == nil {
			text = s
		}
		d, err := input.ParseDuration(text)
		switch {
		case text == "" || err != nil || d < 0:
		case d < time.Second:
			return statedZero, nil
		default:
			return int64(d / time.Second), nil
		}
	}
	return 0, nil
}

func deleteV1(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	if err := limits.Path(in.Path); err != nil {
		return nil, err
	}
	_, err := req.Mount.Storage.Commit(ctx, storage.Batch{Deletes: []storage.Key{keyV1(in.Path)}})
	return nil, err
}

func listV1(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return list(ctx, req, "d/", in)
}

func scanV1(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(below(ctx, req.Mount.Storage, "d/", in))
}

// A stored secret, of either version of the engine, is a header and the JSON as it came. The header is the
// format byte 1 and a number: the stated lease in seconds (version 1), or the time that the version was
// created, in nanoseconds since 1970 (version 2).
const (
	formatSecret = 1
	headerBytes  = limits.HeaderBytes
)

func encodeHeader(n int64, data []byte) []byte {
	value := make([]byte, headerBytes, headerBytes+len(data))
	value[0] = formatSecret
	binary.BigEndian.PutUint64(value[1:], uint64(n))
	return append(value, data...)
}

func decodeHeader(value []byte) (n int64, data json.RawMessage, err error) {
	if len(value) <= headerBytes || value[0] != formatSecret {
		return 0, nil, errors.New("stored secret has an unknown format")
	}
	return int64(binary.BigEndian.Uint64(value[1:])), json.RawMessage(value[headerBytes:]), nil
}
