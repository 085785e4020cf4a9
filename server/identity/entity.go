package identity

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// routes declares the paths.
func (s *Store) routes(*engines.Router) {}

// newEntity returns an entity whose name, a random one if it is empty, it has taken.
func newEntity(ctx context.Context, t *storage.Txn, ns, name string) (*entity, error) {
	at := now()
	e := &entity{ID: newID(ns), Name: name, CreatedAt: at, UpdatedAt: at}
	if name == "" {
		e.Name = randomName("entity")
	}
	return e, takeName(ctx, t, entityNameKey(ns, e.Name), e.ID, e.Name)
}

func randomName(kind string) string {
	b := make([]byte, 8)
	rand.Read(b)
	return kind + "_" + hex.EncodeToString(b)
}

// takeName gives a name to its owner, or says that it has another one.
func takeName(ctx context.Context, t *storage.Txn, k storage.Key, owner, name string) error {
	p, err := get[pointer](ctx, t, k)
	switch {
	case missing(err):
	case err != nil:
		return err
	case p.Owner != owner:
		return engines.Invalid(`field "name": is already in use`)
	}
	put(t, k, &pointer{Owner: owner, Name: name})
	return nil
}
