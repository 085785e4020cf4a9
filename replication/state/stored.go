package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// What a secondary stores: the cursor, in an entry that every step has as a precondition and writes; the state of each
// unit; copies of what was replaced; and in which epochs this cluster was the primary.
const (
	ownKey              = progressPrefix + "own"
	unitPrefix          = progressPrefix + "unit/"
	conflictPrefix      = progressPrefix + "conflict/"       // + a number: what it was
	conflictValuePrefix = progressPrefix + "conflict-value/" // + the same: its value, as it was
	cursorFormat        = 1
	ownFormat           = 1
	unitFormat          = 1
	conflictFormat      = 1
	maxConflicts        = 10_000 // the newest are kept
)

// storedCursor is the entry at CursorKey.
type storedCursor struct {
	Format   int              `json:"format"`
	Cursor   storage.Position `json:"cursor"`
	TimeMS   int64            `json:"time_ms"` // of the last entry applied, on the primary's clock
	Lineage  storage.Lineage  `json:"lineage,omitempty"`
	Diverged storage.Position `json:"diverged,omitzero"`
	Scope    uint64           `json:"scope"`
	// Part is set while a step is made in several writes, of which this was not the last.
	Part bool `json:"part,omitempty"`
	// Exact is set if the cluster holds, of all its units, exactly what the primary held at the cursor.
	Exact bool `json:"exact,omitempty"`
	// Conflicts counts the copies that were ever made.
	Conflicts uint64 `json:"conflicts,omitempty"`
}

// storedOwn is the entry at ownKey: the epochs in which this cluster was the primary, also those that are not part of the
// set's history any more. Without it, positions of what was written in them would be understood wrongly.
type storedOwn struct {
	Format   int             `json:"format"`
	Branches storage.Lineage `json:"branches"`
}

// storedUnit is the entry of a unit.
type storedUnit struct {
	Format int `json:"format"`
	replication.UnitState
}

// storedConflict is the entry of a copy.
type storedConflict struct {
	Format int              `json:"format"`
	Key    storage.Key      `json:"key"`
	Mine   storage.Position `json:"mine"`
	Theirs storage.Position `json:"theirs"`
	At     time.Time        `json:"at"`
}

// encodeStored is for types that always have an encoding.
func encodeStored(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// readCursor returns the cursor's entry; a zero one and version 0 if there is none.
func readCursor(ctx context.Context, store storage.Reader) (storedCursor, storage.Index, error) {
	e, err := store.Get(ctx, replication.CursorKey)
	if errors.Is(err, storage.ErrNotFound) {
		return storedCursor{Format: cursorFormat}, 0, nil
	}
	if err != nil {
		return storedCursor{}, 0, fmt.Errorf("reading the cursor: %w", err)
	}
	var c storedCursor
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Format != cursorFormat {
		return storedCursor{}, 0, errors.New("reading the cursor: it is of an unknown format")
	}
	return c, e.Version, nil
}

// readOwn returns the entry at ownKey, an empty one if there is none.
func readOwn(ctx context.Context, store storage.Reader) (storedOwn, error) {
	e, err := store.Get(ctx, ownKey)
	if errors.Is(err, storage.ErrNotFound) {
		return storedOwn{Format: ownFormat}, nil
	}
	if err != nil {
		return storedOwn{}, fmt.Errorf("reading the epochs of this cluster: %w", err)
	}
	var own storedOwn
	if err := json.Unmarshal(e.Value, &own); err != nil || own.Format != ownFormat {
		return storedOwn{}, errors.New("reading the epochs of this cluster: they are of an unknown format")
	}
	return own, nil
}

func readUnits(ctx context.Context, store storage.Reader) (map[replication.Unit]replication.UnitState, error) {
	entries, err := store.Scan(ctx, unitPrefix, "", 0)
	if err != nil {
		return nil, fmt.Errorf("reading the units: %w", err)
	}
	units := make(map[replication.Unit]replication.UnitState, len(entries))
	for _, e := range entries {
		var u storedUnit
		if err := json.Unmarshal(e.Value, &u); err != nil || u.Format != unitFormat {
			return nil, errors.New("reading the units: one is of an unknown format")
		}
		units[replication.Unit(strings.TrimPrefix(string(e.Key), string(unitPrefix)))] = u.UnitState
	}
	return units, nil
}

// ConflictCopy is a value that only this cluster had, and that a repair has replaced.
type ConflictCopy struct {
	Key          storage.Key
	Value        []byte
	Mine, Theirs storage.Position
	At           time.Time
}

// Conflicts lists the copies, oldest first.
func (l *Local) Conflicts(ctx context.Context) ([]ConflictCopy, error) {
	entries, err := l.o.Store.Scan(ctx, conflictPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	var out []ConflictCopy
	for _, e := range entries {
		var c storedConflict
		if err := json.Unmarshal(e.Value, &c); err != nil || c.Format != conflictFormat {
			return nil, errors.New("a copy of a conflict is of an unknown format")
		}
		value, err := l.o.Store.Get(ctx, conflictValuePrefix+e.Key[len(conflictPrefix):])
		if errors.Is(err, storage.ErrNotFound) {
			continue // it became too old meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, ConflictCopy{Key: c.Key, Value: value.Value, Mine: c.Mine, Theirs: c.Theirs, At: c.At})
	}
	return out, nil
}

// Units returns the units that this secondary holds; false: not whole.
func (l *Local) Units(ctx context.Context) (map[string]bool, error) {
	units, err := readUnits(ctx, l.o.Store)
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool, len(units))
	for unit, state := range units {
		if state.Phase != replication.Dropping {
			out[string(unit)] = state.Phase == replication.Whole
		}
	}
	return out, nil
}

// Reset forgets the cursor and all units, of a cluster that begins from the start. Copies of conflicts stay.
func (l *Local) Reset(ctx context.Context) error {
	for {
		_, version, err := readCursor(ctx, l.o.Store)
		if err != nil {
			return err
		}
		entries, err := l.o.Store.Scan(ctx, unitPrefix, "", dropAtOnce)
		if err != nil {
			return err
		}
		batch := storage.Batch{Reads: []storage.Read{{Key: replication.CursorKey, Version: version}}}
		for _, e := range entries {
			batch.Deletes = append(batch.Deletes, e.Key)
		}
		batch.Deletes = append(batch.Deletes, replication.CursorKey)
		if _, err := l.o.Store.Commit(ctx, batch); err != nil {
			return fmt.Errorf("forgetting the cursor: %w", err)
		}
		if len(entries) < dropAtOnce {
			return nil
		}
	}
}

// SetCursor writes the cursor of a cluster that has just been demoted, and that it has these units, whole as of at.
func (l *Local) SetCursor(ctx context.Context, at storage.Position, lineage storage.Lineage, units []string) error {
	_, version, err := readCursor(ctx, l.o.Store)
	if err != nil {
		return err
	}
	conflicts, err := l.nextConflict(ctx)
	if err != nil {
		return err
	}
	stale, err := readUnits(ctx, l.o.Store)
	if err != nil {
		return err
	}
	states := make(map[replication.Unit]*replication.UnitState, len(units))
	for unit := range stale {
		states[unit] = nil
	}
	for _, unit := range units {
		states[replication.Unit(unit)] = &replication.UnitState{Phase: replication.Whole, Until: at}
	}
	own, err := readOwn(ctx, l.o.Store)
	if err != nil {
		return err
	}
	as := l.resolver()
	as.lineage = lineage
	if fresh := as.own(); !slices.Equal(own.Branches, fresh) { // it has those that were known, too
		own.Branches = fresh
		if _, err := l.o.Store.Commit(ctx, storage.Batch{
			Reads: []storage.Read{{Key: replication.CursorKey, Version: version}}, Puts: []storage.Put{{Key: ownKey, Value: encodeStored(own)}},
		}); err != nil {
			return fmt.Errorf("writing the epochs of this cluster: %w", err)
		}
	}
	r := &Replica{
		l: l, cursor: storedCursor{Format: cursorFormat, Conflicts: conflicts}, version: version,
		units: map[replication.Unit]replication.UnitState{}, open: map[replication.Unit]bool{},
	}
	return r.Commit(ctx, replication.Change{
		Cursor: &at, TimeMS: time.Now().UnixMilli(), Lineage: lineage, Units: states,
	})
}
