package datadir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// NodeID returns the configured id, or the one made at the first start. The file that keeps it has a checksum:
// a node that came back under another name would be a second node to the cluster.
func NodeID(s config.Storage) (string, error) {
	if s.NodeID != "" {
		return s.NodeID, nil
	}
	path := filepath.Join(s.Path, "node-id")
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		id, sum, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
		if !ok || sum != idSum(id) {
			return "", fmt.Errorf("%w\nSet node_id in the storage stanza to the id that \"coffer operator raft list-peers\" shows for this node, "+
				"or remove the file to start as a new node", &storage.CorruptError{File: path, Detail: "its checksum is wrong"})
		}
		return id, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("reading the node id: %w", err)
	}
	raw := make([]byte, 8)
	rand.Read(raw)
	id := "node-" + hex.EncodeToString(raw)
	err = local.WritePrivate(path, func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s %s\n", id, idSum(id))
		return err
	})
	if err != nil {
		return "", err
	}
	return id, boltfile.SyncDir(s.Path)
}

func idSum(id string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(id), crc32.MakeTable(crc32.Castagnoli)))
}
