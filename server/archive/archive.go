// Package archive reads and writes the operator's snapshot file.
//
// The file is a gzipped tar, as the family's clients insist on: meta.json; the state, cut into pieces
// state-000001.bin, state-000002.bin, … of at most 4 MiB, so that it can be written without knowing its
// size; SHA256SUMS over all of these; and last SHA256SUMS.sealed, the sums under the cluster's seal. Clients
// take a file for complete only if that last entry is present and not empty, so Write sends it when, and only
// when, all before it succeeded.
//
// Extract promises that nothing of a file is used before all of it was verified. What the state holds, and
// how the sums are sealed, is not known here. Start reading at Write and Extract.
package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Names of the entries, in the order they must have; the state's pieces come second.
const (
	metaName   = "meta.json"
	sumsName   = "SHA256SUMS"
	sealedName = "SHA256SUMS.sealed"
)

// Limits, for writing and for reading.
const (
	pieceBytes     = 4 << 20
	maxPieces      = 1 << 16 // 256 GiB of state
	maxMetaBytes   = 64 << 10
	maxSumsBytes   = 8 << 20
	maxSealedBytes = 64 << 10
)

const (
	magic         = "coffer-snapshot"
	formatVersion = 1
)

// ErrInvalid means that a file is not a complete, unaltered snapshot. The text around it says what is wrong.
var ErrInvalid = errors.New("not a valid snapshot file")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// Meta describes a snapshot. Write sets Magic and FormatVersion.
type Meta struct {
	Magic          string    `json:"magic"`
	FormatVersion  int       `json:"format_version"`
	ClusterID      string    `json:"cluster_id"`
	ClusterName    string    `json:"cluster_name"`
	Index          uint64    `json:"index"` // Raft index the state is as of
	Term           uint64    `json:"term"`
	Created        time.Time `json:"created"`
	ProductVersion string    `json:"product_version"`
}

func decodeMeta(raw []byte) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(raw, &m); err != nil || m.Magic != magic {
		return Meta{}, invalid("%s does not describe a snapshot of this product", metaName)
	}
	if m.FormatVersion < 1 || m.FormatVersion > formatVersion {
		return Meta{}, invalid("it has format version %d, this build reads up to %d", m.FormatVersion, formatVersion)
	}
	return m, nil
}

// pieceName returns the name of the n-th piece of the state, counted from 1.
func pieceName(n int) string { return fmt.Sprintf("state-%06d.bin", n) }

// appendSum adds one line of SHA256SUMS, in the format of the sha256sum command.
func appendSum(sums []byte, sum []byte, name string) []byte {
	return fmt.Appendf(sums, "%x  %s\n", sum, name)
}
