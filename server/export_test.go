package server

import (
	"context"

	"github.com/coffer-project/coffer/server/mount"
)

// Mount returns a mount of the root namespace.
func (s *Server) Mount(path string) (*mount.Mounted, error) {
	return s.mounts.Get(context.Background(), "root", path)
}
