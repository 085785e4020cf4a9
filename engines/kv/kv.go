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
	"fmt"
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
		return engineV2{engine{routerV2()}}, nil
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
	return engines.Listed(req.Mount.Storage.List(ctx, prefix+storage.Key(in.Path), in.After, in.Limit))
}

// checkWritePath refuses paths that name no secret.
func checkWritePath(path string) error {
	switch {
	case path == "":
		return engines.Invalid("the path is empty: name the secret")
	case strings.HasSuffix(path, "/"):
		return engines.Invalid("the path ends in \"/\", which names a folder, not a secret")
	}
	return nil
}

// maxSecretBytes leaves room for the header in one stored value.
const maxSecretBytes = storage.MaxValueBytes - headerBytes

func checkSize(n int) error {
	if n > maxSecretBytes {
		return &engines.Error{Kind: engines.KindTooLarge,
			Detail: fmt.Sprintf("the secret is %d bytes, the limit is %d", n, maxSecretBytes)}
	}
	return nil
}

func exists(ctx context.Context, s engines.Getter, key storage.Key) (bool, error) {
	_, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
