// Package replication tries replication between clusters of real processes: its tests do. What is not a test reads the
// files of stopped nodes and compares what two clusters hold, byte for byte. Start reading at ReadState.
package replication

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
)

// State is the shared data of a node, decrypted.
type State struct {
	Role   roles.Role
	Values map[storage.Key]Value // of the keys that replicate
	Local  int                   // how many keys there are besides
}

// Value is what a key holds, and since where in the history of the set.
type Value struct {
	Plain []byte
	At    storage.Position
}

// ReadState reads the data directory of a node that is stopped and was sealed with the static key.
func ReadState(ctx context.Context, dir, key string) (*State, error) {
	state, err := fsm.Open(dir, fsm.Options{})
	if err != nil {
		return nil, err
	}
	defer state.Close()
	b, err := unsealed(ctx, state, key)
	if err != nil {
		return nil, err
	}
	s := &State{Values: map[storage.Key]Value{}}
	if err := s.readRole(ctx, b); err != nil {
		return nil, err
	}
	frozen, err := state.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	defer frozen.Close()
	var bad error
	err = frozen.Walk(ctx, "", "", func(k storage.Key, mod storage.Position, value []byte) bool {
		if _, ok := filter.Unit(k); !ok {
			s.Local++
			return true
		}
		plain, err := b.OpenValue(ctx, k, bytes.Clone(value))
		if err != nil {
			bad = fmt.Errorf("opening %s: %w", k, err)
			return false
		}
		s.Values[k] = Value{Plain: bytes.Clone(plain), At: s.Role.Lineage.Resolve(s.Role.ClusterID, mod)}
		return true
	})
	return s, errors.Join(err, bad)
}

// unsealed returns the barrier over a state without writers.
func unsealed(ctx context.Context, state *fsm.FSM, key string) (*barrier.Barrier, error) {
	w, err := seal.NewStatic(map[string]string{"current_key_id": "k1", "current_key": key})
	if err != nil {
		return nil, err
	}
	wrapped, err := state.Get(ctx, seal.RootKey)
	if err != nil {
		return nil, fmt.Errorf("reading the root key: %w", err)
	}
	root, err := seal.UnwrapRoot(ctx, w, wrapped.Value)
	if err != nil {
		return nil, fmt.Errorf("unwrapping the root key: %w", err)
	}
	b := barrier.New(readOnly{state})
	return b, b.Unseal(ctx, root)
}

type readOnly struct{ storage.Reader }

func (readOnly) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrReadOnly
}

func (s *State) readRole(ctx context.Context, from storage.Reader) error {
	e, err := from.Get(ctx, roles.RoleKey)
	if err != nil {
		return fmt.Errorf("reading the role: %w", err)
	}
	if err := json.Unmarshal(e.Value, &s.Role); err != nil {
		return fmt.Errorf("decoding the role: %w", err)
	}
	// A primary does not know the index at which it became one before it has written that.
	if n := len(s.Role.Lineage); n > 0 && s.Role.Lineage[n-1].Base == 0 {
		s.Role.Lineage[n-1].Base = e.Version
	}
	return nil
}

// Differences describes, in the order of keys, what of the units in scope is not the same in the two, at most so many; nil
// if nothing is. A nil inScope is everything. What the secondary has of other units is a difference, too. Values are not in
// the texts.
func Differences(primary, secondary *State, inScope func(unit string) bool, most int) []string {
	var found []string
	all := maps.Clone(primary.Values)
	maps.Copy(all, secondary.Values)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		unit, _ := filter.Unit(key)
		p, there := primary.Values[key]
		s, here := secondary.Values[key]
		wanted := inScope == nil || inScope(unit)
		text := ""
		switch {
		case !wanted && here:
			text = "is on the secondary, where it must not be"
		case !wanted:
		case there && !here:
			text = fmt.Sprintf("is missing; the primary has it from %v", p.At)
		case here && !there:
			text = fmt.Sprintf("is only on the secondary, from %v", s.At)
		case p.At != s.At:
			text = fmt.Sprintf("is from %v, on the primary from %v", s.At, p.At)
		case !bytes.Equal(p.Plain, s.Plain):
			text = fmt.Sprintf("has another value than on the primary, both from %v", p.At)
		}
		if text != "" {
			found = append(found, fmt.Sprintf("%s: %s %s", unit, key, text))
		}
		if len(found) == most {
			break
		}
	}
	return found
}
