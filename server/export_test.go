package server

import (
	"context"
	"encoding/json"

	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// Mount returns a mount of the root namespace.
func (s *Server) Mount(path string) (*mount.Mounted, error) {
	return s.mounts.Get(context.Background(), "root", path)
}

// AddMount stores a mount as another version of the server may have.
func (s *Server) AddMount(e *mount.Entry) error {
	value, err := json.Marshal(e)
	if err != nil {
		return err
	}
	key := storage.NewKey(storage.Shared, "sys", e.Namespace+"/mounts/"+e.UUID)
	_, err = s.barrier.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}})
	return err
}
