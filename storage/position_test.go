package storage_test

import (
	"testing"

	"github.com/coffer-project/coffer/storage"
)

func at(epoch uint32, index storage.Index) storage.Position {
	return storage.Position{Epoch: epoch, Index: index}
}

func TestPositionOrder(t *testing.T) {
	ascending := []storage.Position{{}, at(0, 9), at(1, 1), at(1, 2), at(2, 1), at(3, 0)}
	for i, p := range ascending {
		for j, q := range ascending {
			if got := p.Before(q); got != (i < j) {
				t.Errorf("%s before %s is %v", p, q, got)
			}
		}
		if p.IsZero() != (i == 0) {
			t.Errorf("%s is zero: %v", p, p.IsZero())
		}
	}
}

// In history a was the primary, then b from (1, 50) on, then a again from (2, 80) on.
var history = storage.Lineage{
	{Epoch: 1, ClusterID: "a", Base: 10},
	{Epoch: 2, ClusterID: "b", From: at(1, 50), Base: 60},
	{Epoch: 3, ClusterID: "a", From: at(2, 80), Base: 200},
}

func TestLineageResolve(t *testing.T) {
	tests := []struct {
		cluster string
		p, want storage.Position
	}{
		{"a", at(0, 5), at(1, 5)}, // before the set was there
		{"a", at(0, 10), at(1, 10)},
		{"a", at(0, 199), at(1, 199)},
		{"a", at(0, 200), at(3, 200)},
		{"b", at(0, 59), at(1, 59)},
		{"b", at(0, 60), at(2, 60)},
		{"b", at(0, 500), at(2, 500)},
		{"a", at(2, 70), at(2, 70)},
		{"a", at(0, 0), at(0, 0)},
	}
	for _, tt := range tests {
		if got := history.Resolve(tt.cluster, tt.p); got != tt.want {
			t.Errorf("Resolve(%s, %s) = %s, want %s", tt.cluster, tt.p, got, tt.want)
		}
	}
}

func TestLineageContains(t *testing.T) {
	for p, want := range map[storage.Position]bool{
		at(1, 1): true, at(1, 50): true, at(1, 51): false,
		at(2, 60): true, at(2, 80): true, at(2, 81): false,
		at(3, 1<<40): true, at(4, 1): false, at(0, 1): false,
	} {
		if got := history.Contains(p); got != want {
			t.Errorf("Contains(%s) = %v, want %v", p, got, want)
		}
	}
	// a had heard of epoch 2, and had nothing of it when it was promoted by force.
	skipped := storage.Lineage{history[0], history[1], {Epoch: 3, ClusterID: "a", From: at(1, 50), Base: 200}}
	for p, want := range map[storage.Position]bool{at(1, 50): true, at(1, 51): false, at(2, 1): false, at(2, 50): false, at(3, 1): true} {
		if got := skipped.Contains(p); got != want {
			t.Errorf("Contains(%s) = %v, want %v", p, got, want)
		}
	}
	if got, ok := skipped.Common(history[:2]); !ok || got != at(1, 50) {
		t.Errorf("Common = %s, %v, want 1:50", got, ok)
	}
	if got := history.Epoch(); got != 3 {
		t.Errorf("Epoch = %d, want 3", got)
	}
	if got := (storage.Lineage)(nil).Epoch(); got != 0 {
		t.Errorf("Epoch of no history = %d, want 0", got)
	}
}

func TestLineageCommon(t *testing.T) {
	all := ^storage.Index(0)
	fork := func(epoch uint32, cluster string, from storage.Position) storage.Lineage {
		return append(history[:2:2], storage.Branch{Epoch: epoch, ClusterID: cluster, From: from, Base: 1})
	}
	tests := []struct {
		name string
		l, m storage.Lineage
		want storage.Position
		ok   bool
	}{
		{"the same", history, history, at(3, all), true},
		{"an older one", history, history[:2], at(2, 80), true},
		{"the first epoch only", history, history[:1], at(1, 50), true},
		{"another cluster took over earlier", history, fork(3, "c", at(2, 70)), at(2, 70), true},
		{"another cluster took over later", history, fork(3, "c", at(2, 90)), at(2, 80), true},
		{"with another number", history, fork(17, "a", at(2, 80)), at(2, 80), true},
		{"another set", history, storage.Lineage{{Epoch: 1, ClusterID: "x"}}, at(0, 0), false},
		{"none", history, nil, at(0, 0), false},
	}
	for _, tt := range tests {
		for _, pair := range [][2]storage.Lineage{{tt.l, tt.m}, {tt.m, tt.l}} {
			if got, ok := pair[0].Common(pair[1]); got != tt.want || ok != tt.ok {
				t.Errorf("%s: Common = %s, %v, want %s, %v", tt.name, got, ok, tt.want, tt.ok)
			}
		}
	}
}
