package wal

import (
	"slices"
	"sort"

	"github.com/coffer-project/coffer/storage"
)

// memory is the newest records. It is complete from base on.
type memory struct {
	limit   int // bytes
	base    storage.Index
	baseMS  int64
	bytes   int
	records []remembered
}

type remembered struct {
	storage.Record
	bytes int
}

// restart forgets everything.
func (m *memory) restart(base storage.Index, ms int64) {
	m.base, m.baseMS, m.bytes, m.records = base, ms, 0, nil
}

func (m *memory) add(r storage.Record, bytes int) {
	m.records = append(m.records, remembered{r, bytes})
	m.bytes += bytes
	for m.bytes > m.limit {
		old := &m.records[0]
		m.base, m.baseMS = old.Index, old.TimeMS
		m.bytes -= old.bytes
		*old = remembered{} // the array lives on for a while
		m.records = m.records[1:]
	}
}

// since returns what is after an index that is not before base.
func (m *memory) since(after storage.Index, maxBytes int) []storage.Record {
	first := sort.Search(len(m.records), func(i int) bool { return m.records[i].Index > after })
	var found []storage.Record
	for _, r := range m.records[first:] {
		if maxBytes -= r.bytes; maxBytes < 0 && len(found) > 0 {
			break
		}
		found = append(found, r.Record)
	}
	return found
}

func (m *memory) clone() []remembered { return slices.Clone(m.records) }
