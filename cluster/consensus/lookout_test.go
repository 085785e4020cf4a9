package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
)

func TestPlace(t *testing.T) {
	servers := []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}} // voters
	for leader, want := range map[raft.ServerID][]int{"a": {0, 0, 1}, "b": {0, 1, 1}, "c": {0, 1, 2}} {
		for i, s := range servers {
			if got := place(servers, s.ID, leader); got != want[i] {
				t.Errorf("the place of %s with leader %s is %d, want %d", s.ID, leader, got, want[i])
			}
		}
	}
}
