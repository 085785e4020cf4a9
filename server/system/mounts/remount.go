package mounts

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

func (p Paths) remountPaths(r *engines.Router) {
	engines.On(r, engines.Update, "remount", "Move a secrets engine or auth method to another path, perhaps of another namespace, in the background.", engines.Sudo, p.remount).
		Returns("migration_id")
	engines.On(r, engines.Read, "remount/status/{id}", "Tell what became of a move.", engines.Active, p.remountStatus).
		Returns("migration_id, migration_info: {source_mount, status, target_mount}")
}

type remountInput struct {
	From string `json:"from" form:"path" required:"true" max:"2048" help:"Path of the mount, with those of namespaces below this one; auth methods begin with \"auth/\" there."`
	To   string `json:"to" form:"path" required:"true" max:"2048" help:"Path to move it to, likewise."`
}

func (p Paths) remount(ctx context.Context, req *engines.Request, in *remountInput) (*engines.Response, error) {
	fromNS, from, err := p.mountPlace(ctx, req, "from", in.From)
	if err != nil {
		return nil, err
	}
	toNS, to, err := p.mountPlace(ctx, req, "to", in.To)
	if err != nil {
		return nil, err
	}
	m, err := p.Table.Get(ctx, fromNS, from)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Invalid("field \"from\": nothing is mounted at %s", from)
	}
	id, err := p.Table.Move(ctx, namespaceOf(req), fromNS, from, toNS, to)
	if err != nil {
		return nil, err
	}
	if err := p.awaitMove(ctx, namespaceOf(req), id); err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"migration_id": id}}, nil
}

// awaitMove waits, for two seconds at most, until a move has ended: many clients use the new path without asking for the status.
func (p Paths) awaitMove(ctx context.Context, namespace, id string) error {
	enough := time.After(2 * time.Second)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		m, err := p.Table.Migration(ctx, namespace, id)
		if err != nil || m.Status != mount.InProgress {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // the move goes on
		case <-enough:
			return nil
		case <-again.C:
		}
	}
}

// mountPlace splits the path of a mount into the namespace's id and the clean path in it.
func (p Paths) mountPlace(ctx context.Context, req *engines.Request, field, path string) (ns, clean string, err error) {
	ns, rest, err := p.resolveFrom(ctx, req, strings.Trim(path, "/"))
	if err != nil {
		return "", "", err
	}
	clean, err = mount.CleanPath(rest)
	var refused *engines.Error
	if errors.As(err, &refused) {
		err = engines.Invalid("field %q: %s", field, refused.Detail)
	}
	return ns, clean, err
}

type remountStatusInput struct {
	ID string `json:"id" max:"64" help:"The migration_id that the move answered."`
}

func (p Paths) remountStatus(ctx context.Context, req *engines.Request, in *remountStatusInput) (*engines.Response, error) {
	m, err := p.Table.Migration(ctx, namespaceOf(req), in.ID)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	info := map[string]any{"source_mount": m.Source, "target_mount": m.Target, "status": m.Status}
	if m.Reason != "" {
		info["reason"] = m.Reason
	}
	return &engines.Response{Data: map[string]any{"migration_id": m.ID, "migration_info": info}}, nil
}
