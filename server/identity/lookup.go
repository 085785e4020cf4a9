package identity

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

type lookupIn struct {
	ID       string `json:"id" help:"The id." max:"128"`
	Name     string `json:"name" form:"lower" help:"The name; case does not count." max:"512"`
	AliasID  string `json:"alias_id" help:"Id of an alias." max:"128"`
	Alias    string `json:"alias_name" help:"Name of an alias, together with alias_mount_accessor." max:"1024"`
	Accessor string `json:"alias_mount_accessor" help:"Accessor of the alias's auth method." max:"256"`
}

// check wants exactly one way to find something.
func (in *lookupIn) check() error {
	if (in.Alias == "") != (in.Accessor == "") {
		return engines.Invalid(`fields "alias_name", "alias_mount_accessor": must be given together`)
	}
	ways := 0
	for _, way := range []string{in.ID, in.Name, in.AliasID, in.Alias} {
		if way != "" {
			ways++
		}
	}
	if ways != 1 {
		return engines.Invalid(`give exactly one of "id", "name", "alias_id", or "alias_name" with "alias_mount_accessor"`)
	}
	return nil
}

func (s *Store) lookupEntity(ctx context.Context, req *engines.Request, in *lookupIn) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ns := namespace(req.Mount)
	var e *entity
	var err error
	switch {
	case in.ID != "":
		e, err = entityWithin(ctx, s.store, ns, in.ID)
	case in.Name != "":
		e, err = entityNamed(ctx, s.store, ns, in.Name)
	case in.AliasID != "":
		e, _, err = s.aliasByID(ctx, s.store, req, in.AliasID)
	default:
		e, _, err = ownerOf(ctx, s.store, aliasKey(ns, in.Accessor, in.Alias), "")
	}
	if missing(err) {
		return nil, nil
	}
	return s.answerEntity(ctx, e, err)
}

func (s *Store) lookupGroup(ctx context.Context, req *engines.Request, in *lookupIn) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ns := namespace(req.Mount)
	var g *group
	var err error
	switch {
	case in.ID != "":
		g, err = groupWithin(ctx, s.store, ns, in.ID)
	case in.Name != "":
		g, err = groupNamed(ctx, s.store, ns, in.Name)
	case in.AliasID != "":
		g, err = groupOfAlias(ctx, s.store, ns, in.AliasID)
	default:
		var p *pointer
		if p, err = get[pointer](ctx, s.store, groupAliasKey(ns, in.Accessor, in.Alias)); err == nil {
			g, err = getGroup(ctx, s.store, p.Owner)
		}
	}
	if missing(err) {
		return nil, nil
	}
	return s.answerGroup(ctx, g, err)
}
