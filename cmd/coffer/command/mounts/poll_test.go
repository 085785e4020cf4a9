package mounts

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/openbao/openbao/api/v2"
)

// TestPoll shows that waiting outlives the failures of a cluster which elects a leader, and not those that stay.
func TestPoll(t *testing.T) {
	broken := &command.RequestError{Err: &api.ResponseError{StatusCode: 503}}
	refused := &command.RequestError{Err: &api.ResponseError{StatusCode: 403}}
	tests := []struct {
		name  string
		fails int // how often it fails before it is done
		err   error
		asked int
		want  error
	}{
		{"at once", 0, nil, 1, nil},
		{"passing", 3, broken, 4, nil},
		{"unreachable", 3, &command.RequestError{Err: io.ErrUnexpectedEOF}, 4, nil},
		{"lasting", 100, broken, pollPatience + 1, broken},
		{"refused", 100, refused, 1, refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				err := poll(t.Context(), new(command.Call), func() (bool, error) {
					if asked++; asked <= tt.fails {
						return false, tt.err
					}
					return true, nil
				})
				if asked != tt.asked || err != tt.want {
					t.Errorf("asked %d times, %v; want %d, %v", asked, err, tt.asked, tt.want)
				}
			})
		})
	}
}
