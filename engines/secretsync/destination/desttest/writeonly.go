package desttest

import (
	"context"
	"sync"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// remembering is a destination that cannot be read, with what a sync state has of it: what was written and not deleted.
type remembering struct {
	destination.Destination

	mu   sync.Mutex
	held map[string]destination.Found
}

// Read implements destination.Destination.
func (r *remembering) Read(_ context.Context, name string) (destination.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, ok := r.held[name]; ok {
		return f, nil
	}
	return destination.Found{Name: name}, nil
}

// Write implements destination.Destination.
func (r *remembering) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	held, err := r.Destination.Write(ctx, it, was)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held[it.Name] = destination.Found{Name: it.Name, State: destination.Present, OwnerTag: it.OwnerTag, ID: held.ID, Version: held.Version}
	}
	return held, err
}

// Delete implements destination.Destination.
func (r *remembering) Delete(ctx context.Context, was destination.Found) error {
	err := r.Destination.Delete(ctx, was)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.held, was.Name)
	}
	return err
}
