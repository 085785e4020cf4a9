package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// What is stored, all of class l:
//
//	l/lease/id/<namespace id>/<lease id>     the record
//	l/lease/exp/<name>                       what has to be looked at when; the name begins with the time
//	l/lease/stuck/<name>                     irrevocable leases; the name begins with when they became so
//	l/lease/token/<token>/<short name>       the leases of a token
//	l/lease/clock                            the latest time that the active node is known to have seen
//
// A lease is in exactly one of exp and stuck. All keys of one lease change in one batch. The names tell
// everything that counting and waiting need, so that neither decrypts anything.
const (
	idPrefix    storage.Key = "l/lease/id/"
	expPrefix   storage.Key = "l/lease/exp/"
	stuckPrefix storage.Key = "l/lease/stuck/"
	tokenPrefix storage.Key = "l/lease/token/"
	clockKey    storage.Key = "l/lease/clock"
)

// present is the value of index entries.
var present = []byte("1")

const rootNS = "root"

// Bounds of what one lease may hold.
const (
	maxNameBytes     = 2 << 10
	maxInternalBytes = 64 << 10
)

// state is how far a lease is on its way out.
type state string

const (
	living      state = ""
	revoking    state = "revoking"    // it will be revoked, whatever happens; it can no longer be renewed
	irrevocable state = "irrevocable" // given up after maxTries
)

// record is the stored form of a lease.
type record struct {
	Format    int             `json:"format"` // 1
	ID        string          `json:"id"`
	Namespace string          `json:"namespace"` // id
	Mount     string          `json:"mount"`     // uuid
	MountPath string          `json:"mount_path"`
	Path      string          `json:"path"` // below the mount
	Token     string          `json:"token,omitempty"`
	Kind      string          `json:"kind"`
	Internal  json.RawMessage `json:"internal,omitempty"`
	Renewable bool            `json:"renewable,omitempty"`
	TTL       time.Duration   `json:"ttl"` // as last granted
	// MaxTTL is counted from IssuedAt. Until, if set, is another limit that no renewal lifts.
	MaxTTL    time.Duration `json:"max_ttl"`
	Until     time.Time     `json:"until,omitzero"`
	IssuedAt  time.Time     `json:"issued_at"`
	ExpiresAt time.Time     `json:"expires_at"`
	RenewedAt time.Time     `json:"renewed_at,omitzero"`
	// IndexedAt is the time in the index. It may be earlier than ExpiresAt: the lease is then re-indexed.
	IndexedAt time.Time `json:"indexed_at"`
	State     state     `json:"state,omitempty"`
	Force     bool      `json:"force,omitempty"` // remove it whatever the engine says
	Tries     int       `json:"tries,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why the last try failed, for clients
}

func (r *record) encode() []byte {
	r.Format = 1
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts, numbers, times, and JSON that has been checked
	}
	return value
}

func decodeRecord(value []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return nil, errors.New("a stored lease has an unknown format")
	}
	return &r, nil
}

func recordKey(ns, id string) storage.Key { return idPrefix + storage.Key(ns+"/"+id) }

func (r *record) key() storage.Key { return recordKey(r.Namespace, r.ID) }

// indexKey is where the lease is in exp or stuck.
func (r *record) indexKey() storage.Key {
	if r.State == irrevocable {
		return stuckPrefix + storage.Key(r.name())
	}
	return expPrefix + storage.Key(r.name())
}

func (r *record) name() string {
	return fmt.Sprintf("%020d,%s,%s,%s,%s", r.IndexedAt.UnixNano(), r.Namespace, r.Mount, escape(r.MountPath), escape(strings.TrimPrefix(r.ID, r.MountPath)))
}

// tokenKey is the lease's entry among those of its token, or "".
func (r *record) tokenKey() storage.Key {
	if r.Token == "" {
		return ""
	}
	return tokenPrefix + storage.Key(r.Token+"/"+r.Namespace+","+escape(r.ID))
}

// keys are all that the lease has.
func (r *record) keys() []storage.Key {
	keys := []storage.Key{r.key(), r.indexKey()}
	if k := r.tokenKey(); k != "" {
		keys = append(keys, k)
	}
	return keys
}

// forEngine is what the engine gets back.
func (r *record) forEngine() engines.LeaseRecord {
	return engines.LeaseRecord{
		ID: r.ID, Kind: r.Kind, Path: r.Path, Internal: r.Internal, IssuedAt: r.IssuedAt, ExpiresAt: r.ExpiresAt,
	}
}

// ref is what the name of an index entry tells.
type ref struct {
	at        int64 // when to look, nanoseconds
	name      string
	ns, mount string
	mountPath string
	id        string
}

// parseName is the inverse of record.name.
func parseName(name string) (ref, bool) {
	parts := strings.Split(name, ",")
	if len(parts) != 5 || len(parts[0]) != 20 {
		return ref{}, false
	}
	at, err := strconv.ParseInt(parts[0], 10, 64)
	path, ok1 := unescape(parts[3])
	rest, ok2 := unescape(parts[4])
	if err != nil || !ok1 || !ok2 || parts[1] == "" || parts[2] == "" || rest == "" {
		return ref{}, false
	}
	return ref{at: at, name: name, ns: parts[1], mount: parts[2], mountPath: path, id: path + rest}, true
}

// parseShort is the inverse of the end of tokenKey.
func parseShort(name string) (ns, id string, ok bool) {
	ns, escaped, ok := strings.Cut(name, ",")
	if !ok || ns == "" {
		return "", "", false
	}
	id, ok = unescape(escaped)
	return ns, id, ok && id != ""
}

// timeName is less than every name of that time and greater than every name of an earlier one.
func timeName(at time.Time) string { return fmt.Sprintf("%020d", at.UnixNano()) }

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F", ",", "%2C")
	unescaper = strings.NewReplacer("%2F", "/", "%2C", ",", "%25", "%")
)

// escape makes a text that holds neither slash nor comma.
func escape(s string) string { return escaper.Replace(s) }

// unescape is the inverse of escape; it refuses what escape does not make.
func unescape(s string) (string, bool) {
	out := unescaper.Replace(s)
	return out, escape(out) == s
}

// namespaceOf returns the id of the namespace that a lease id names. Outside the root namespace it is the part
// after a dot in the last segment.
func namespaceOf(id string) string {
	last := id[strings.LastIndexByte(id, '/')+1:]
	if _, ns, ok := strings.Cut(last, "."); ok && ns != "" {
		return ns
	}
	return rootNS
}

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// get reads a record that belongs to the caller, or storage.ErrNotFound.
func get(ctx context.Context, from getter, ns, id string) (*record, error) {
	if id == "" || len(id) > maxNameBytes || strings.ContainsRune(id, 0) {
		return nil, storage.ErrNotFound
	}
	e, err := from.Get(ctx, recordKey(ns, id))
	if err != nil {
		return nil, err
	}
	return decodeRecord(e.Value)
}
