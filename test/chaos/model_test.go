package chaos_test

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModel makes sure that the check can fail.
func TestModel(t *testing.T) {
	op := func(call, ret int64, in input, out output) porcupine.Operation {
		in.key = "k"
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: ret}
	}
	write := func(call, ret int64, value string, version int) porcupine.Operation {
		return op(call, ret, input{kind: 'w', value: value}, output{known: true, ok: true, version: version})
	}
	read := func(call, ret int64, value string, version int) porcupine.Operation {
		return op(call, ret, input{kind: 'r'}, output{known: true, version: version, value: value})
	}
	const never = 1 << 62
	lost := op(5, never, input{kind: 'w', value: "b"}, output{})
	for _, test := range []struct {
		name    string
		history []porcupine.Operation
		want    bool
	}{
		{"in order", []porcupine.Operation{write(1, 2, "a", 1), read(3, 4, "a", 1)}, true},
		{"a stale read", []porcupine.Operation{write(1, 2, "a", 1), write(3, 4, "b", 2), read(5, 6, "a", 1)}, false},
		{"a read of either, meanwhile", []porcupine.Operation{write(1, 2, "a", 1), write(3, 9, "b", 2), read(4, 5, "a", 1), read(6, 7, "b", 2)}, true},
		{"there and back", []porcupine.Operation{write(1, 2, "a", 1), write(3, 9, "b", 2), read(4, 5, "b", 2), read(6, 7, "a", 1)}, false},
		{"an unknown write, seen", []porcupine.Operation{write(1, 2, "a", 1), lost, read(7, 8, "a", 1), read(9, 10, "b", 2)}, true},
		{"an unknown write, never seen", []porcupine.Operation{write(1, 2, "a", 1), lost, read(7, 8, "a", 1)}, true},
		{"an unknown write, seen and gone", []porcupine.Operation{write(1, 2, "a", 1), lost, read(7, 8, "b", 2), read(9, 10, "a", 1)}, false},
		{"an acknowledged write, gone", []porcupine.Operation{write(1, 2, "a", 1), read(3, 4, "", 0)}, false},
		{"a version twice", []porcupine.Operation{write(1, 2, "a", 1), write(3, 4, "b", 1)}, false},
		{"set against the version", []porcupine.Operation{
			write(1, 2, "a", 1), op(3, 4, input{kind: 'c', value: "b", expect: 0}, output{known: true, ok: true, version: 1}),
		}, false},
		{"refused for nothing", []porcupine.Operation{
			write(1, 2, "a", 1), op(3, 4, input{kind: 'c', value: "b", expect: 1}, output{known: true}),
		}, false},
	} {
		if got := porcupine.CheckOperations(model, test.history); got != test.want {
			t.Errorf("%s: linearizable = %v, want %v", test.name, got, test.want)
		}
	}
}
