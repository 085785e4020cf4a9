package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/storage"
)

// What is stored below s/identity/<namespace id>/. Everything that belongs to an entity is in its record, and so
// are the groups that it is directly in: what an entity may do is found by reading it and its groups.
//
//	entity/<id>                          entity
//	entity-name/<name>                   pointer: Owner is the entity
//	alias/<accessor hash>/<name hash>    pointer: ID is the alias, Owner the entity
//	alias-id/<alias id>                  pointer: Owner is the entity
//	merged/<id>                          pointer: Owner is the entity that this one was merged into
//	group/<id>                           group
//	group-name/<name>                    pointer: Owner is the group
//	group-alias/<accessor hash>/<name hash>  pointer: ID is the alias, Owner the group, Source the alias's
//	group-alias-id/<alias id>            pointer: Owner is the group
//	member/<group id>/<source>/<entity id>   pointer to the group: the entity is directly in it
//	guest/<member id>/<group id>         pointer to the group: an entity or group of a namespace above is directly in it
//
// What belongs to a namespace above is not written by changes of groups here: its records would grow, and clash, by what
// others do. Version 1 did; such memberships move to guest keys when the record is written next.
//
// A membership counts if the group exists and has the same source. Both are never used again once gone, so that
// deleting a group of any size, or its alias, ends all memberships at once; the leftovers are removed later.
const area storage.Key = "s/identity/"

// entity is a human user or a workload that logs in.
type entity struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Policies  []string          `json:"policies,omitempty"`
	Disabled  bool              `json:"disabled,omitempty"`
	Aliases   []alias           `json:"aliases,omitempty"` // at most one for each mount
	Groups    []membership      `json:"groups,omitempty"`  // of its own namespace
	MergedIDs []string          `json:"merged,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

// alias is a name that an auth mount knows an entity or a group by.
type alias struct {
	ID             string            `json:"id"`
	Accessor       string            `json:"accessor"`
	Name           string            `json:"name"`
	Metadata       map[string]string `json:"metadata,omitempty"` // replaced at each login
	CustomMetadata map[string]string `json:"custom_metadata,omitempty"`
	Local          bool              `json:"local,omitempty"`
	MergedFrom     []string          `json:"merged_from,omitempty"` // entities it belonged to before
	Source         string            `json:"source,omitempty"`      // of a group's alias; another one whenever its name or mount changes
	CreatedAt      time.Time         `json:"created_at"`
	UpdatedAt      time.Time         `json:"updated_at"`
}

// membership is an entity's place in a group. Those in external groups were made at a login through the mount
// with the accessor, by the group alias with the source.
type membership struct {
	Group    string `json:"group"`
	Source   string `json:"source,omitempty"`
	Accessor string `json:"accessor,omitempty"`
}

const (
	internal = "internal"
	external = "external"
)

// group is a set of entities and groups. Its direct entities are found through their own records and the
// member keys.
type group struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Type         string            `json:"type"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Policies     []string          `json:"policies,omitempty"`
	MemberGroups []string          `json:"member_groups,omitempty"`
	Parents      []string          `json:"parents,omitempty"` // of its own namespace
	Alias        *alias            `json:"alias,omitempty"`   // of an external group
	ModifyIndex  int               `json:"modify_index"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
}

// source returns what memberships must carry to count, and false if none can.
func (g *group) source() (string, bool) {
	if g.Type == internal {
		return "", true
	}
	if g.Alias == nil {
		return "", false
	}
	return g.Alias.Source, true
}

// counts reports whether a membership of this group is one.
func (g *group) counts(m membership) bool {
	source, ok := g.source()
	return ok && source == m.Source
}

// pointer is the value of an index key.
type pointer struct {
	ID     string `json:"id,omitempty"`
	Owner  string `json:"owner"`
	Name   string `json:"name,omitempty"` // as written, where the key has it in lower case
	Source string `json:"source,omitempty"`
}

const format = 1

// envelope is how every record is stored.
type envelope[T any] struct {
	Format int `json:"format"`
	Value  T   `json:"value"`
}

func encode[T any](v *T) []byte {
	value, err := json.Marshal(envelope[*T]{format, v})
	if err != nil {
		panic(err) // texts, numbers and times
	}
	return value
}

func decode[T any](e storage.Entry) (*T, error) {
	var env envelope[T]
	if err := json.Unmarshal(e.Value, &env); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", e.Key, err)
	}
	if env.Format != format {
		return nil, fmt.Errorf("%s has format %d, this version knows %d", e.Key, env.Format, format)
	}
	return &env.Value, nil
}

// getter is what reads need of a store or of a transaction.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// get returns a record that the caller may change, or storage.ErrNotFound.
func get[T any](ctx context.Context, r getter, key storage.Key) (*T, error) {
	e, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return decode[T](e)
}

// getEntity and getGroup also find nothing under ids that cannot be one.
func getEntity(ctx context.Context, r getter, id string) (*entity, error) {
	if !validID(id) {
		return nil, storage.ErrNotFound
	}
	return get[entity](ctx, r, entityKey(id))
}

func getGroup(ctx context.Context, r getter, id string) (*group, error) {
	if !validID(id) {
		return nil, storage.ErrNotFound
	}
	return get[group](ctx, r, groupKey(id))
}

func put[T any](t *storage.Txn, key storage.Key, v *T) { t.Put(key, encode(v)) }

// guestKey is where a group has a member of a namespace above; guestsKey is where all groups of the namespace ns have it.
func guestKey(member, group string) storage.Key {
	return guestsKey(namespaceOf(group), member) + storage.Key(group)
}

func guestsKey(ns, member string) storage.Key { return key(ns, "guest", member+"/") }

// putGuest makes a member of a namespace above one of the group.
func putGuest(t *storage.Txn, member, group string) {
	put(t, guestKey(member, group), &pointer{Owner: group})
}

func (e *entity) put(t *storage.Txn) {
	e.Groups = slices.DeleteFunc(e.Groups, func(m membership) bool {
		foreign := namespaceOf(m.Group) != namespaceOf(e.ID)
		if foreign {
			putGuest(t, e.ID, m.Group)
		}
		return foreign
	})
	put(t, entityKey(e.ID), e)
}

func (g *group) put(t *storage.Txn) {
	g.Parents = slices.DeleteFunc(g.Parents, func(parent string) bool {
		foreign := namespaceOf(parent) != namespaceOf(g.ID)
		if foreign {
			putGuest(t, g.ID, parent)
		}
		return foreign
	})
	g.ModifyIndex++
	put(t, groupKey(g.ID), g)
}

// newID returns an id that tells its namespace.
func newID(ns string) string {
	if ns == rootNamespace {
		return uuid.NewString()
	}
	return uuid.NewString() + "." + ns
}

const maxIDBytes = 128

// validID reports whether a text that a client sent can be an id, and so be part of a key.
func validID(id string) bool {
	return id != "" && len(id) <= maxIDBytes && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

func key(ns, kind, path string) storage.Key { return area + storage.Key(ns+"/"+kind+"/"+path) }

func entityKey(id string) storage.Key { return key(namespaceOf(id), "entity", id) }
func groupKey(id string) storage.Key  { return key(namespaceOf(id), "group", id) }
func mergedKey(id string) storage.Key { return key(namespaceOf(id), "merged", id) }

func aliasIDKey(id string) storage.Key      { return key(namespaceOf(id), "alias-id", id) }
func groupAliasIDKey(id string) storage.Key { return key(namespaceOf(id), "group-alias-id", id) }

func entityNameKey(ns, name string) storage.Key { return key(ns, "entity-name", nameInKey(name)) }
func groupNameKey(ns, name string) storage.Key  { return key(ns, "group-name", nameInKey(name)) }

func aliasKey(ns, accessor, name string) storage.Key {
	return aliasesKey(ns, "alias", accessor) + storage.Key(hash(name))
}

func groupAliasKey(ns, accessor, name string) storage.Key {
	return aliasesKey(ns, "group-alias", accessor) + storage.Key(hash(name))
}

// aliasesKey is where all aliases of a mount are, of kind "alias" or "group-alias".
func aliasesKey(ns, kind, accessor string) storage.Key {
	return key(ns, kind, hash(accessor)[:32]+"/")
}

// allMembersKey is where the direct members of a group are, membersKey where those of one source are.
func allMembersKey(id string) storage.Key { return key(namespaceOf(id), "member", id+"/") }

func membersKey(id, source string) storage.Key {
	if source == "" {
		source = internal
	}
	return allMembersKey(id) + storage.Key(source+"/")
}

func (m membership) key(entityID string) storage.Key {
	return membersKey(m.Group, m.Source) + storage.Key(entityID)
}

// isGroupKey reports whether what entities are in can depend on the value.
func isGroupKey(k storage.Key) bool {
	rest, ok := strings.CutPrefix(string(k), string(area))
	if !ok {
		return false
	}
	_, rest, _ = strings.Cut(rest, "/")
	return strings.HasPrefix(rest, "group/") || strings.HasPrefix(rest, "guest/")
}

var escapeName = strings.NewReplacer("%", "%25", "/", "%2F")

// nameInKey returns the form in which names are compared: case does not count.
func nameInKey(name string) string { return escapeName.Replace(strings.ToLower(name)) }

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// aliasAt returns the index of the entity's alias for a mount, or -1.
func (e *entity) aliasAt(accessor string) int {
	return slices.IndexFunc(e.Aliases, func(a alias) bool { return a.Accessor == accessor })
}

// putAlias and deleteAlias keep the index keys of an alias whose place is in the entity's record.
func (e *entity) putAlias(t *storage.Txn, a *alias) {
	ns := namespaceOf(e.ID)
	put(t, aliasKey(ns, a.Accessor, a.Name), &pointer{ID: a.ID, Owner: e.ID})
	put(t, aliasIDKey(a.ID), &pointer{Owner: e.ID})
}

func (e *entity) deleteAlias(t *storage.Txn, a *alias) {
	t.Delete(aliasKey(namespaceOf(e.ID), a.Accessor, a.Name))
	t.Delete(aliasIDKey(a.ID))
}

// now is the time in the form it is stored and shown.
func now() time.Time { return time.Now().UTC().Round(0) }
