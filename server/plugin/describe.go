package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Limits of what a plugin says about its paths.
const (
	maxHelpBytes = 4 << 20
	helpTimeout  = 5 * time.Second
)

// help is what a plugin says about a path, "" for the mount.
type help struct {
	Text    string          `json:"help"`
	OpenAPI json.RawMessage `json:"openapi"`
}

// PathHelp implements engines.Documenter.
func (e *engine) PathHelp(ctx context.Context, path string) (string, error) {
	h, err := e.help(ctx, path)
	switch {
	case err != nil:
		return "", err
	case h.Text == "":
		return "", engines.NotFound("no help for this path")
	}
	return h.Text, nil
}

// Description implements engines.Documenter.
func (e *engine) Description(ctx context.Context) ([]byte, error) {
	h, err := e.help(ctx, "")
	if err == nil && len(h.OpenAPI) == 0 {
		err = errors.New("the plugin has no OpenAPI document")
	}
	return h.OpenAPI, err
}

func (e *engine) help(ctx context.Context, path string) (h help, err error) {
	if !e.host.active() {
		return h, storage.ErrReadOnly
	}
	b, err := e.backend(ctx)
	if err != nil {
		return h, err
	}
	ctx, cancel := context.WithTimeout(ctx, helpTimeout)
	defer cancel()
	reply, err := e.send(ctx, b, &pb.Request{
		Operation: "help", Path: path, MountPoint: e.mount.Path, MountType: e.mount.Type, MountAccessor: e.mount.Accessor,
	})
	if err != nil {
		return h, err
	}
	if len(reply.GetData()) > maxHelpBytes {
		return h, &engines.Error{Kind: engines.KindUnavailable, Detail: "the help of the plugin is too long"}
	}
	resp, err := e.response(&engines.Request{Op: engines.Read, Path: path}, reply)
	if err != nil {
		return h, err
	}
	data, err := resp.EncodedData()
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return h, &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin returned what is no help", Err: err}
	}
	return h, nil
}
