// Package registry knows the secondaries of a primary: who was invited, who has enrolled, and who may not come back.
//
// It promises that a secret enrols one cluster, once; that who was revoked is not admitted; and that a cluster which is demoted meanwhile admits
// no more of them. The other side is here, too: what an operator of a secondary does with an activation token (activation.go, unwrap.go).
// Keys and certificates are in enrol. Start reading at Registry, then enrol.go.
package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// Options of a Registry. All but Logger are required.
type Options struct {
	Store     storage.Store // plaintext
	Cluster   Cluster
	Secrets   Secrets
	Primaries Primaries
	Logger    *slog.Logger // nil: discard
}

// Cluster is where secondaries reach this cluster.
type Cluster interface {
	// Addrs are the cluster addresses that secondaries get, APIAddr is where they unwrap their tokens.
	Addrs() []string
	APIAddr() string
}

// Secrets are those of the cluster that a secondary gets to know.
type Secrets interface {
	// Wrap keeps data for the holder of the wrapping token that it returns. path is the request that it is the response to.
	Wrap(ctx context.Context, path string, ttl time.Duration, data any) (*engines.WrapInfo, error)
	// Parted replaces what all clusters of a set have in common and a cluster that has left the set must not be able to use.
	// It is part of the commit by which a secondary is revoked, or this cluster leaves.
	Parted(ctx context.Context, tx *storage.Txn) error
}

// Primaries are what is known of the other primaries of the set.
type Primaries interface {
	// FollowsNow is part of the commit by which a cluster enrols.
	FollowsNow(ctx context.Context, tx *storage.Txn, clusterID string) error
}

// Registry knows the secondaries of a primary: who was invited, who has enrolled, and who may not come back. Every
// change of it is one transaction that also has the Role and, for certificates, the CA as preconditions, so a cluster
// that is demoted meanwhile admits no secondary. What is asked often is in memory until Changed says that it is not so any
// more. Safe for concurrent use.
type Registry struct {
	opts Options
	now  func() time.Time // time.Now, but in tests
	log  *slog.Logger

	mu      sync.Mutex
	table   *table // nil: to be loaded
	changes uint64 // so that a load that raced with a change is not kept
	server  *serverCert
}

// New returns a Registry.
func New(opts Options) *Registry {
	r := &Registry{opts: opts, now: time.Now, log: opts.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r
}

// Keys of what is kept. Local to the cluster.
const (
	CAKey     storage.Key = "l/replication/ca"
	InviteKey storage.Key = "l/replication/invite"     // private key of generate-public-key
	registry  storage.Key = "l/replication/secondary/" // + hex of the opaque id
)

// enrolledPrefix + hex of a cluster id says as which secondary the cluster has enrolled last. It outlives a revocation.
const enrolledPrefix storage.Key = "l/replication/enrolled/"

func secondaryKey(id string) storage.Key {
	return registry + storage.Key(hex.EncodeToString([]byte(id)))
}

func enrolledKey(clusterID string) storage.Key {
	return enrolledPrefix + storage.Key(hex.EncodeToString([]byte(clusterID)))
}

// State of a registered secondary.
type State string

const (
	Issued  State = "issued"  // there is a token, which is not used yet
	Expired State = "expired" // there was. Not stored: an issued one becomes it by itself
	Active  State = "active"
	Revoked State = "revoked"
)

// record is one secondary as it is stored.
type record struct {
	Format     int       `json:"format"` // 1
	ID         string    `json:"id"`     // opaque
	State      State     `json:"state"`
	SecretHash []byte    `json:"secret_hash"` // SHA-256 of the one-time secret
	ExpiresAt  time.Time `json:"expires_at"`  // of the secret
	ClusterID  string    `json:"cluster_id,omitempty"`
	// Enrolment is in the certificates of this enrolment and of no other.
	Enrolment  string    `json:"enrolment,omitempty"`
	IssuedAt   time.Time `json:"issued_at"`
	EnrolledAt time.Time `json:"enrolled_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
}

// enrolled is what is stored under an enrolledKey.
type enrolled struct {
	Format int    `json:"format"` // 1
	ID     string `json:"id"`     // opaque
	Key    string `json:"key"`    // SHA-256 of the certificate's key, which stays the same when that is renewed
}

// storedCA is what is stored under caKey.
type storedCA struct {
	Format   int `json:"format"` // 1
	enrol.CA     // its fields
}

// PutCA is the write that makes ca the CA of this primary. It belongs into the commit that makes the cluster one.
func PutCA(tx *storage.Txn, ca enrol.CA) { tx.Put(CAKey, entry.Encode(storedCA{Format: 1, CA: ca})) }

// Registered is a secondary as operators see it.
type Registered struct {
	ID         string
	State      State
	ClusterID  string // "" until it has enrolled
	IssuedAt   time.Time
	ExpiresAt  time.Time // of the token
	EnrolledAt time.Time // zero: not yet
	RevokedAt  time.Time // zero: not
}

// checkID reports what is wrong with an opaque id.
func checkID(id string) error {
	printable := utf8.ValidString(id)
	for _, c := range id {
		printable = printable && unicode.IsPrint(c)
	}
	if id == "" || len(id) > enrol.MaxIDBytes || !printable {
		return engines.Invalid(`field "id": must be 1 to %d bytes of printable characters`, enrol.MaxIDBytes)
	}
	return nil
}

func randomText(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) //nolint:errcheck // it does not fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// invitation is what Issue has made.
type invitation struct {
	secret    string
	expiresAt time.Time
	role      roles.Role
	ca        enrol.CA
}

// issue registers a secondary that may enrol once, within ttl. An id whose token was not used, has expired or was
// revoked is invited again, and the token before is good no more.
func (r *Registry) issue(ctx context.Context, id string, ttl time.Duration) (invitation, error) {
	if err := checkID(id); err != nil {
		return invitation{}, err
	}
	now := r.now().UTC()
	inv := invitation{secret: randomText(32), expiresAt: now.Add(ttl)}
	_, err := storage.Update(ctx, r.opts.Store, func(txn *storage.Txn) error {
		var err error
		if inv.role, err = roles.PrimaryRole(ctx, txn); err != nil {
			return err
		}
		ca, err := entry.Fetch[storedCA](ctx, txn, CAKey)
		if err != nil {
			return fmt.Errorf("the replication CA is missing: %w", err)
		}
		inv.ca = ca.CA
		old, err := entry.Fetch[record](ctx, txn, secondaryKey(id))
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if old.State == Active {
			return engines.Invalid(`field "id": a secondary with this id is enrolled: choose another, or revoke it with primary/revoke-secondary first`)
		}
		// Filters may be named by either id: they must not mean two clusters.
		if e, err := entry.Fetch[enrolled](ctx, txn, enrolledKey(id)); err == nil && e.ID != id {
			return engines.Invalid(`field "id": this is the cluster id of another secondary: choose another`)
		} else if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		txn.Put(secondaryKey(id), entry.Encode(record{
			Format: 1, ID: id, State: Issued, SecretHash: hashSecret(inv.secret), ExpiresAt: inv.expiresAt, IssuedAt: now,
		}))
		return nil
	})
	return inv, err
}

// Revoke ends a secondary's right to connect, or that of its token to be used. id is the opaque one or the cluster's;
// what was revoked may be revoked again. What a secondary had in common with the set is worth nothing afterwards. 404 if it is not known.
func (r *Registry) Revoke(ctx context.Context, id string) error {
	now := r.now().UTC()
	_, err := storage.Update(ctx, r.opts.Store, func(txn *storage.Txn) error {
		if _, err := roles.PrimaryRole(ctx, txn); err != nil {
			return err
		}
		rec, err := entry.Fetch[record](ctx, txn, secondaryKey(id))
		if errors.Is(err, storage.ErrNotFound) {
			var e enrolled
			if e, err = entry.Fetch[enrolled](ctx, txn, enrolledKey(id)); err == nil {
				rec, err = entry.Fetch[record](ctx, txn, secondaryKey(e.ID))
			}
			if err == nil && rec.ClusterID != id { // another cluster has that opaque id now
				err = storage.ErrNotFound
			}
		}
		switch {
		case errors.Is(err, storage.ErrNotFound):
			return engines.NotFound(`no secondary has this id: "known_secondaries" of sys/replication/performance/status lists those there are`)
		case err != nil:
			return err
		case rec.State == Revoked:
			return nil
		}
		had := rec.State == Active // what all clusters of the set have
		rec.State, rec.RevokedAt = Revoked, now
		txn.Put(secondaryKey(rec.ID), entry.Encode(rec))
		if had {
			return r.opts.Secrets.Parted(ctx, txn)
		}
		return nil
	})
	return err
}

// Empty removes everybody: for a cluster that becomes a primary, before its role is written, and for one whose
// replication was disabled, after. It may be called again after a crash in its middle.
func (r *Registry) Empty(ctx context.Context) error {
	for _, prefix := range []storage.Key{registry, enrolledPrefix} {
		if err := storage.DeletePrefix(ctx, r.opts.Store, prefix); err != nil {
			return fmt.Errorf("emptying the registry of secondaries: %w", err)
		}
	}
	return nil
}

// List returns all secondaries that were ever invited, by id.
func (r *Registry) List(ctx context.Context) ([]Registered, error) {
	t, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	now := r.now()
	var list []Registered
	for _, id := range slices.Sorted(maps.Keys(t.secondaries)) {
		rec := t.secondaries[id]
		if rec.State == Issued && !now.Before(rec.ExpiresAt) {
			rec.State = Expired
		}
		list = append(list, Registered{
			ID: rec.ID, State: rec.State, ClusterID: rec.ClusterID, IssuedAt: rec.IssuedAt, ExpiresAt: rec.ExpiresAt,
			EnrolledAt: rec.EnrolledAt, RevokedAt: rec.RevokedAt,
		})
	}
	return list, nil
}

// Resolve returns the opaque id of a secondary, revoked ones too, from that or from the id of its cluster while it is
// enrolled; false if neither is known.
func (r *Registry) Resolve(ctx context.Context, id string) (opaque string, ok bool, err error) {
	t, err := r.load(ctx)
	if err != nil {
		return "", false, err
	}
	if _, ok := t.secondaries[id]; ok {
		return id, true, nil
	}
	opaque, ok = t.clusters[id]
	return opaque, ok, nil
}
