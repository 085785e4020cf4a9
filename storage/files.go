package storage

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"strings"
)

// FileIdentity names the node that the files in a data directory belong to. Each file has it, so that one from elsewhere is
// detected when a node starts. The zero value is that of unmarked files.
type FileIdentity struct {
	Node        string `json:"node"`
	Cluster     string `json:"cluster_id,omitempty"` // "" until the node has been unsealed; it does not tell files apart
	Incarnation string `json:"incarnation"`          // of the data directory: made when the node begins without data, 16 hex digits
}

// NewFileIdentity returns the identity of a node that begins without data.
func NewFileIdentity(node string) FileIdentity {
	raw := make([]byte, 8)
	rand.Read(raw)
	raw[0] |= 0x80 // not 0
	return FileIdentity{Node: node, Incarnation: hex.EncodeToString(raw)}
}

// Same reports whether files with these identities belong together.
func (i FileIdentity) Same(o FileIdentity) bool {
	return i.Node == o.Node && i.Incarnation == o.Incarnation
}

// IsZero reports whether it is that of unmarked files.
func (i FileIdentity) IsZero() bool { return i.Incarnation == "" }

// Mark is the identity in two numbers for files that have no room for more; 0 stands for no mark.
func (i FileIdentity) Mark() (incarnation, node uint64) {
	raw, err := hex.DecodeString(i.Incarnation)
	if err != nil || len(raw) != 8 {
		return 0, 0
	}
	return binary.BigEndian.Uint64(raw), NodeMark(i.Node)
}

// NodeMark is the second number of Mark.
func NodeMark(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64() | 1
}

// String names node and cluster.
func (i FileIdentity) String() string {
	var b strings.Builder
	if i.Node == "" {
		b.WriteString("another node")
	} else {
		fmt.Fprintf(&b, "node %q", i.Node)
	}
	if i.Cluster != "" {
		fmt.Fprintf(&b, " of cluster %s", i.Cluster)
	}
	if i.Incarnation != "" {
		fmt.Fprintf(&b, " (incarnation %s)", i.Incarnation)
	}
	return b.String()
}

// Encode returns one line of text with a checksum.
func (i FileIdentity) Encode() []byte {
	text, err := json.Marshal(i)
	if err != nil {
		panic(err) // plain strings only
	}
	return fmt.Appendf(nil, "%s %08x\n", text, crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// DecodeFileIdentity reads what Encode wrote.
func DecodeFileIdentity(b []byte) (i FileIdentity, err error) {
	line := strings.TrimSuffix(string(b), "\n")
	at := strings.LastIndexByte(line, ' ')
	if at < 0 || line[at+1:] != fmt.Sprintf("%08x", crc32.Checksum([]byte(line[:at]), crc32.MakeTable(crc32.Castagnoli))) {
		return i, errors.New("its checksum is wrong")
	}
	if err := json.Unmarshal([]byte(line[:at]), &i); err != nil {
		return i, err
	}
	if incarnation, _ := i.Mark(); incarnation == 0 || i.Node == "" {
		return FileIdentity{}, errors.New("it names no node or no incarnation")
	}
	return i, nil
}

// ForeignError says that a file belongs to another node, another cluster, or an earlier life of the node.
type ForeignError struct {
	File string
	Is   FileIdentity // of the file, as far as it says
	Want FileIdentity // of the data directory
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to %s, the data directory around it to %s: put back the file that belongs there, or move the whole "+
		"directory away and let the node join again", e.File, e.Is, e.Want)
}
