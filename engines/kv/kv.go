// Package kv is the key-value secrets engine. Version 2 keeps several versions of each secret, with
// check-and-set, soft deletion and metadata; version 1 keeps one value. The mount option "version" chooses,
// "1" if it is absent.
//
// A secret's JSON is stored as it came and goes out as it was stored: it is validated, but never decoded and
// encoded again, except by a patch. Everything one request changes is one transaction, and reads never write.
// Engines hold no state, so all mounts share two routers. Start reading at New, then v2.go, then record.go.
package kv

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// engine is one mount. Requests carry the mount and its stores.
type engine struct{ router *engines.Router }

// Router implements engines.Engine.
func (e engine) Router() *engines.Router { return e.router }

var (
	routerV1 = sync.OnceValue(newRouterV1)
	routerV2 = sync.OnceValue(newRouterV2)
)

// New is the engines.Factory. It refuses versions other than 1 and 2.
func New(m engines.Mount) (engines.Engine, error) {
	switch v := m.Options["version"]; v {
	case "", "1":
		return engine{routerV1()}, nil
	case "2":
		return &engineV2{engine: engine{routerV2()}}, nil
	default:
		return nil, engines.Invalid("option \"version\" must be \"1\" or \"2\"")
	}
}

// pathIn is the input of routes that need nothing but the path.
type pathIn struct {
	Path string `json:"path" help:"Path of the secret."`
}

// listIn is the input of lists.
type listIn struct {
	Path  string `json:"path" help:"Folder to list."`
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

// list answers the names directly below the folder.
func list(ctx context.Context, req *engines.Request, prefix storage.Key, in *listIn) (*engines.Response, error) {
	return engines.Listed(folder(ctx, req.Mount.Storage, prefix, in))
}

func folder(ctx context.Context, s storage.Reader, prefix storage.Key, in *listIn) ([]string, error) {
	return s.List(ctx, prefix+storage.Key(in.Path), in.After, in.Limit)
}

// below returns the names of all secrets below the folder, relative to it.
func below(ctx context.Context, s storage.Reader, prefix storage.Key, in *listIn) (names []string, err error) {
	const page = 1000
	prefix += storage.Key(in.Path)
	after := storage.Key("")
	if in.After != "" {
		after = prefix + storage.Key(in.After)
	}
	for in.Limit <= 0 || len(names) < in.Limit {
		limit := page
		if in.Limit > 0 {
			limit = min(page, in.Limit-len(names))
		}
		entries, err := s.Scan(ctx, prefix, after, limit)
		if err != nil || len(entries) == 0 {
			return names, err
		}
		for _, e := range entries {
			names = append(names, strings.TrimPrefix(string(e.Key), string(prefix)))
		}
		after = entries[len(entries)-1].Key
	}
	return names, nil
}

func exists(ctx context.Context, s engines.Getter, key storage.Key) (bool, error) {
	_, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
