package api

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/index"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
	"github.com/coffer-project/coffer/storage"
)

func (s *API) stateRoutes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}"
	route(r, engines.Update, of+"/plan", "What syncing would do now, name by name; with a secret, also what associating it would do. Nothing is changed.", flags, s.planDestination).
		Returns("actions: [{action, external_name, mount, reason, secret_name, sub_key}], totals: {*: integer}")
	route(r, engines.Update, of+"/associations/retry", "Sync again now what has failed, or one secret whatever its state.", flags, s.retry).Returns(associated)
	route(r, engines.Update, of+"/associations/pause", "Stop syncing an association.", flags, s.setAssociationPaused(true)).Returns(associated)
	route(r, engines.Update, of+"/associations/resume", "Go on syncing an association.", flags, s.setAssociationPaused(false)).Returns(associated)
	route(r, engines.Update, of+"/associations/history", "What came of the last attempts to sync a secret.", flags, s.history).
		Returns("events: [{at, cause, code, done, sync_status, version: integer}]")
	route(r, engines.Update, of+"/drift", "Look for what other clients have changed at the destination, now.", flags, s.driftNow).
		Returns("drifted: [{action, drift, external_name, mount, secret_name, sub_key}], names: integer")
}

// readAssociations answers all associations of a destination.
func (s *API) readAssociations(ctx context.Context, req *engines.Request, in *AssociationsIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all, left, err := s.associationsFor(ctx, req, d)
	if err != nil {
		return nil, err
	}
	resp, err := s.RespondAssociations(ctx, d, all...)
	if err == nil {
		resp.Warnings = missingWarning(left)
	}
	return resp, err
}

// associationsFor returns the associations of a destination that the caller may see. left is the number of unreadable ones.
func (s *API) associationsFor(ctx context.Context, req *engines.Request, d *state.Destination) (all []*state.Association, left int, err error) {
	left, err = apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		if req.Caller.Sees(a.MountUUID) {
			all = append(all, a)
		}
		return true
	})
	return all, left, err
}

// listAssociations answers the secrets of all destinations of the namespace.
func (s *API) listAssociations(ctx context.Context, req *engines.Request, _ *emptyIn) (*engines.Response, error) {
	info := map[string][]map[string]string{}
	paths := map[string]string{} // of mounts, by uuid
	links := map[index.SecretRef]bool{}
	_, err := s.EachDestinationOf(ctx, req.Mount.NamespaceID, func(d *state.Destination) error {
		return s.EachLink(ctx, d, func(a *state.Association, l *state.Link) {
			if !req.Caller.Sees(a.MountUUID) {
				return
			}
			links[index.SecretRef{Destination: d.ID, Mount: a.MountUUID, Secret: l.Secret}] = true
			path, ok := paths[a.MountUUID]
			if !ok {
				m, err := s.Host.MountOf(ctx, a.MountUUID)
				if err != nil {
					m = nil
				}
				path = strings.TrimSuffix(status.MountPath(a, m), "/")
				paths[a.MountUUID] = path
			}
			info[path+"/"+l.Secret] = []map[string]string{{"mount": path, "secret_path": l.Secret}}
		})
	})
	if err != nil {
		return nil, err
	}
	if len(links) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{
		"keys": slices.Sorted(maps.Keys(info)), "key_info": info, "total_associations": len(links), "total_secrets": len(info),
	}}, nil
}

type mountSecretIn struct {
	Mount      string `json:"mount" form:"path" max:"512" query:"true" required:"true" help:"Mount that holds the secret: its path, or its accessor."`
	SecretName string `json:"secret_name" max:"512" query:"true" required:"true" help:"Name of the secret."`
}

// destinationsOf answers where a secret is synced to.
func (s *API) destinationsOf(ctx context.Context, req *engines.Request, in *mountSecretIn) (*engines.Response, error) {
	m, secret, err := s.sourceOf(ctx, req, in)
	if err != nil {
		return nil, err
	}
	to := map[string]any{}
	_, err = s.EachDestinationOf(ctx, req.Mount.NamespaceID, func(d *state.Destination) error {
		entries, err := s.SecretEntries(ctx, d, m, secret)
		if err != nil {
			return err
		}
		for key, e := range entries {
			kind := s.Pool.ListedType(d)
			e["type"], e["name"], e["type_names"] = kind, d.Name, s.Pool.TypeNames(s.Pool.Types[d.Type])
			to[kind+"/"+d.Name+strings.TrimPrefix(key, m.Accessor+"/"+secret)] = e
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(to) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"associated_destinations": to}}, nil
}

// sourceOf finds the mount and the secret that a path names. Where the two are one path, the mount's may have several segments.
func (s *API) sourceOf(ctx context.Context, req *engines.Request, in *mountSecretIn) (*engines.Mounted, string, error) {
	path, secret := in.Mount, in.SecretName
	for req.Param("mount") != "" {
		m, err := s.Host.MountAt(ctx, req.Mount.NamespaceID, path)
		if err != nil {
			return nil, "", err
		}
		segment, rest, more := strings.Cut(secret, "/")
		if m != nil || !more {
			break
		}
		path, secret = path+"/"+segment, rest
	}
	m, _, err := s.SourceAt(ctx, req, path)
	return m, secret, err
}
