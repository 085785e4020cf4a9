// Package cubbyhole is the engine that gives every token a private store. What a token writes here, no other
// token can read, not even one with the root policy. It never leaves the cluster.
//
// Entries are stored below the caller's TokenKey in the mount's ClusterStorage; the end of a token deletes
// everything below Prefix.
package cubbyhole

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

type engine struct{ router *engines.Router }

// Router implements engines.Engine.
func (e engine) Router() *engines.Router { return e.router }

// New is the engines.Factory. Engines hold no state, so all mounts share one router.
func New(engines.Mount) (engines.Engine, error) { return engine{router()}, nil }

var router = sync.OnceValue(func() *engines.Router {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "{path...}", "Read a value that this token wrote.", 0, read).Returns("*: any")
	engines.On(r, engines.List, "{path...}", "List what this token wrote.", 0, list).Returns("keys: [string]")
	engines.On(r, engines.Delete, "{path...?}", "Delete a value.", 0, remove)
	engines.On(r, engines.Update, "{path...?}", "Write a value: any JSON object.", 0, write).Exists = exists
	return r
})

// Prefix returns where a token's entries are in the mount's ClusterStorage. tokenKey is Caller.TokenKey.
func Prefix(tokenKey string) storage.Key { return storage.Key(tokenKey + "/") }

// key returns where the caller's value is, and denies callers without a token.
func key(req *engines.Request, path string) (storage.Key, error) {
	k := req.Caller.TokenKey
	if k == "" || strings.Contains(k, "/") {
		return "", engines.Denied(errors.New("cubbyhole needs a token of the caller"))
	}
	return Prefix(k) + storage.Key(path), nil
}

type pathIn struct {
	Path string `json:"path" help:"Path of the value."`
}

type listIn struct {
	Path  string `json:"path" help:"Folder to list."`
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

type writeIn struct {
	Path string         `json:"path" help:"Path of the value."`
	Data engines.Object `json:"data" body:"true" help:"The value, a JSON object."`
}

func exists(ctx context.Context, req *engines.Request) (bool, error) {
	k, err := key(req, req.Param("path"))
	if err != nil {
		return false, err
	}
	_, err = req.Mount.ClusterStorage.Get(ctx, k)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// format begins every stored value; the JSON as it came follows.
const format = 1

func read(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	k, err := key(req, in.Path)
	if err != nil {
		return nil, err
	}
	e, err := req.Mount.ClusterStorage.Get(ctx, k)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	if len(e.Value) < 2 || e.Value[0] != format {
		return nil, errors.New("stored value has an unknown format")
	}
	return &engines.Response{Data: json.RawMessage(e.Value[1:])}, nil
}

func list(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	prefix, err := key(req, in.Path)
	if err != nil {
		return nil, err
	}
	return engines.Listed(req.Mount.ClusterStorage.List(ctx, prefix, in.After, in.Limit))
}

func write(ctx context.Context, req *engines.Request, in *writeIn) (*engines.Response, error) {
	k, err := writeKey(req, in.Path)
	if err != nil {
		return nil, err
	}
	if len(in.Data) == 0 || strings.TrimSpace(string(in.Data[1:len(in.Data)-1])) == "" {
		return nil, engines.Invalid("missing data fields")
	}
	if n := len(in.Data) + 1; n > storage.MaxValueBytes {
		return nil, &engines.Error{Kind: engines.KindTooLarge,
			Detail: fmt.Sprintf("the value is %d bytes, the limit is %d", n, storage.MaxValueBytes)}
	}
	value := append([]byte{format}, in.Data...)
	_, err = req.Mount.ClusterStorage.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: k, Value: value}}})
	return nil, err
}

func remove(ctx context.Context, req *engines.Request, in *pathIn) (*engines.Response, error) {
	k, err := writeKey(req, in.Path)
	if err != nil {
		return nil, err
	}
	_, err = req.Mount.ClusterStorage.Commit(ctx, storage.Batch{Deletes: []storage.Key{k}})
	return nil, err
}

// writeKey is key for paths that must name one value.
func writeKey(req *engines.Request, path string) (storage.Key, error) {
	if path == "" || strings.HasSuffix(path, "/") {
		return "", engines.Invalid("the path must name a value, not a folder")
	}
	return key(req, path)
}
