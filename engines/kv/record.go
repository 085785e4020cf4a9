package kv

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// record is the metadata of one secret, stored under recordKey. Its versions' payloads are stored apart, so
// that a read touches one payload however many versions there are.
type record struct {
	created, updated instant
	current          uint32 // newest version number ever given, 0 if none
	casRequired      bool
	maxVersions      uint32          // 0: what the mount says
	deleteAfter      time.Duration   // 0: what the mount says
	custom           json.RawMessage // JSON object of texts, nil if empty
	versions         []version       // retained ones, ascending
	// unconverted is the data of a secret of version 1 that reads as one of version 2, until it is converted. It is not stored.
	unconverted json.RawMessage
}

// version is one version of a secret.
type version struct {
	number    uint32
	created   instant
	deletion  instant // 0: none; may be in the future
	destroyed bool
}

// instant is a time in nanoseconds since 1970, UTC; 0 is no time.
type instant int64

func now() instant { return instant(time.Now().UnixNano()) }

// append adds the time in RFC 3339, nothing for no time.
func (i instant) append(b []byte) []byte {
	if i == 0 {
		return b
	}
	return time.Unix(0, int64(i)).UTC().AppendFormat(b, time.RFC3339Nano)
}

func (i instant) String() string { return string(i.append(nil)) }

func recordKey(path string) storage.Key { return storage.Key("m/" + path) }

func payloadKey(path string, number uint32) storage.Key {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 2+8+1+len(path))
	b = append(b, "v/"...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, digits[number>>shift&15])
	}
	b = append(b, '/')
	return storage.Key(append(b, path...))
}

// deleted reports whether the version is soft deleted by now.
func (v *version) deleted(now instant) bool { return v.deletion != 0 && v.deletion <= now }

// find returns the version with this number, or nil. 0 is the newest.
func (r *record) find(number uint32) *version {
	if number == 0 {
		number = r.current
	}
	for i := len(r.versions) - 1; i >= 0; i-- {
		if r.versions[i].number == number {
			return &r.versions[i]
		}
	}
	return nil
}

// oldest returns the oldest retained version, 0 as long as none has been pruned.
func (r *record) oldest() uint32 {
	if len(r.versions) == 0 || r.versions[0].number == 1 {
		return 0
	}
	return r.versions[0].number
}

const (
	defaultMaxVersions = 10
	// maxRetained bounds what a secret keeps, whatever max_versions says, so that deleting all versions fits
	// into one batch.
	maxRetained = 2000
)

// add appends the next version and returns it, and the numbers of those that it pushes out.
func (r *record) add(now instant, cfg *config) (added *version, pruned []uint32, err error) {
	if r.current == math.MaxUint32 {
		return nil, nil, engines.Invalid("the secret has used up all version numbers")
	}
	if r.created == 0 {
		r.created = now
	}
	r.updated = now
	r.current++
	v := version{number: r.current, created: now}
	if after := shorter(r.deleteAfter, cfg.deleteAfter); after > 0 {
		v.deletion = now + instant(after)
		if v.deletion < now {
			v.deletion = math.MaxInt64
		}
	}
	r.versions = append(r.versions, v)
	keep := int(min(r.keep(cfg), maxRetained))
	for len(r.versions) > keep {
		pruned = append(pruned, r.versions[0].number)
		r.versions = r.versions[1:]
	}
	return &r.versions[len(r.versions)-1], pruned, nil
}

// keep returns how many versions to keep.
func (r *record) keep(cfg *config) uint32 {
	switch {
	case r.maxVersions > 0:
		return r.maxVersions
	case cfg.maxVersions > 0:
		return cfg.maxVersions
	}
	return defaultMaxVersions
}

// shorter returns the smaller of two durations of which 0 means none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// getRecord returns the record, or nil if there is none.
func getRecord(ctx context.Context, s engines.Getter, path string) (*record, error) {
	r, _, err := getRecordAt(ctx, s, path)
	return r, err
}

// getRecordAt is getRecord that also returns the index the record was written at.
func getRecordAt(ctx context.Context, s engines.Getter, path string) (*record, storage.Index, error) {
	r, at, err := storedRecord(ctx, s, path)
	if r == nil && err == nil {
		return unconverted(ctx, s, path)
	}
	return r, at, err
}

func storedRecord(ctx context.Context, s engines.Getter, path string) (*record, storage.Index, error) {
	e, err := s.Get(ctx, recordKey(path))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	r, err := decodeRecord(e.Value)
	if err != nil {
		return nil, 0, fmt.Errorf("metadata of secret %q: %w", path, err)
	}
	return r, e.Version, nil
}

// The stored form of a record: the format byte, then unsigned varints in the order of the struct. Flags are
// one varint, custom metadata is its length and bytes, versions are their number and then each one.
const (
	formatRecord = 1

	flagCASRequired = 1 // of a record
	flagDestroyed   = 1 // of a version
)

func (r *record) encode() []byte {
	b := make([]byte, 0, 64+len(r.custom)+24*len(r.versions))
	b = append(b, formatRecord)
	flags := uint64(0)
	if r.casRequired {
		flags = flagCASRequired
	}
	for _, n := range []uint64{uint64(r.created), uint64(r.updated), uint64(r.current), flags,
		uint64(r.maxVersions), uint64(r.deleteAfter), uint64(len(r.custom))} {
		b = binary.AppendUvarint(b, n)
	}
	b = append(b, r.custom...)
	b = binary.AppendUvarint(b, uint64(len(r.versions)))
	for _, v := range r.versions {
		b = binary.AppendUvarint(b, uint64(v.number))
		b = binary.AppendUvarint(b, uint64(v.created))
		b = binary.AppendUvarint(b, uint64(v.deletion))
		flags = 0
		if v.destroyed {
			flags = flagDestroyed
		}
		b = binary.AppendUvarint(b, flags)
	}
	return b
}

// decodeRecord reads a stored record and shares its bytes. It refuses what encode cannot have written.
func decodeRecord(value []byte) (*record, error) {
	if len(value) == 0 || value[0] != formatRecord {
		return nil, errors.New("unknown format")
	}
	d := decoder{rest: value[1:]}
	n := d.numbers(math.MaxInt64, math.MaxInt64, math.MaxUint32, flagCASRequired, math.MaxUint32, math.MaxInt64, storage.MaxValueBytes)
	r := &record{
		created: instant(n[0]), updated: instant(n[1]), current: uint32(n[2]), casRequired: n[3] != 0,
		maxVersions: uint32(n[4]), deleteAfter: time.Duration(n[5]), custom: d.text(n[6]),
	}
	r.versions = d.versions(r.current)
	if d.failed || len(d.rest) != 0 {
		return nil, errors.New("malformed")
	}
	return r, nil
}

// decoder takes numbers off the front of a record.
type decoder struct {
	rest   []byte
	failed bool
}

// numbers returns the next numbers, one for each limit, which it takes the place of; one above its limit is a failure, and
// then it and all that follow read as 0.
func (d *decoder) numbers(limits ...uint64) []uint64 {
	for i, most := range limits {
		n, size := binary.Uvarint(d.rest)
		if d.failed || size <= 0 || n > most {
			d.failed = true
			clear(limits[i:])
			break
		}
		d.rest = d.rest[size:]
		limits[i] = n
	}
	return limits
}

// versions returns the versions, none newer than the current one, with room for one more, which a write adds.
func (d *decoder) versions(current uint32) []version {
	const fields = 4
	limits := [fields]uint64{uint64(current), math.MaxInt64, math.MaxInt64, flagDestroyed}
	count := d.numbers(uint64(len(d.rest) / fields))[0] // a field is at least one byte
	all := make([]version, 0, count+1)
	last := uint64(0)
	for range count {
		var n [fields]uint64
		for i := range n {
			size := 0
			if n[i], size = binary.Uvarint(d.rest); size <= 0 || n[i] > limits[i] {
				d.failed = true
				return nil
			}
			d.rest = d.rest[size:]
		}
		d.failed = d.failed || n[0] <= last
		last = n[0]
		all = append(all, version{number: uint32(n[0]), created: instant(n[1]), deletion: instant(n[2]), destroyed: n[3] != 0})
	}
	return all
}

// text returns the next n bytes, nil if n is 0.
func (d *decoder) text(n uint64) []byte {
	if n == 0 || n > uint64(len(d.rest)) {
		d.failed = d.failed || n != 0
		return nil
	}
	text := d.rest[:n:n]
	d.rest = d.rest[n:]
	return text
}

// appendVersion adds the version's metadata as a data read or write answers it.
func (r *record) appendVersion(b []byte, v *version) []byte {
	b = append(b, `{"created_time":"`...)
	b = v.created.append(b)
	b = append(b, `","custom_metadata":`...)
	if r.custom == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, r.custom...)
	}
	b = append(b, `,"deletion_time":"`...)
	b = v.deletion.append(b)
	b = append(b, `","destroyed":`...)
	b = strconv.AppendBool(b, v.destroyed)
	b = append(b, `,"version":`...)
	b = strconv.AppendUint(b, uint64(v.number), 10)
	return append(b, '}')
}
