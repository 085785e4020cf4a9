package connection

import (
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

func TestBudget(t *testing.T) {
	of := func(writes float64, writeBurst int, reads float64, readBurst int) destination.Rate {
		return destination.Rate{Writes: writes, WriteBurst: writeBurst, Reads: reads, ReadBurst: readBurst, Concurrency: 4}
	}
	usual := of(25, 30, 100, 120)
	tests := []struct {
		name     string
		operator Endpoint
		want     destination.Rate
	}{
		{"that of the type", Endpoint{URL: "http://elsewhere"}, usual},
		{"more", Endpoint{WritesPerSecond: 1000, ReadsPerSecond: 4000}, of(1000, 1000, 4000, 4000)},
		{"less", Endpoint{WritesPerSecond: 0.5, ReadsPerSecond: 2}, of(0.5, 30, 2, 120)},
		{"other writes", Endpoint{WritesPerSecond: 50}, of(50, 50, 100, 120)},
		{"other reads", Endpoint{ReadsPerSecond: 50}, of(25, 30, 50, 120)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			kind := destination.Type{Name: "place", Rules: destination.Rules{Rate: usual}}
			s := NewPool(Options{Types: map[string]destination.Type{"place": kind}, Operator: Operator{Endpoints: map[string]Endpoint{"place": test.operator, "other": {WritesPerSecond: 1}}}})
			if got := s.RateOf(&state.Destination{Type: "place"}); got != test.want {
				t.Errorf("budget = %+v, want %+v", got, test.want)
			}
		})
	}
}
