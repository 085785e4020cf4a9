package server

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// alone stands in for replicated.Store until that is there.
type alone struct{}

func (alone) Role() replicated.Role { return replicated.Role{Mode: replicated.Disabled} }
func (alone) Current(context.Context) (replicated.Role, error) {
	return replicated.Role{Mode: replicated.Disabled}, nil
}
func (alone) Scope(context.Context, replicated.Peer) (map[string]bool, uint64, error) {
	return nil, 0, storage.ErrUnavailable
}
func (alone) Answer(context.Context, replicated.Peer, string, []byte) ([]byte, storage.Index, error) {
	return nil, 0, engines.Invalid("unknown")
}
