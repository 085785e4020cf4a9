package process

import (
	"fmt"
	"os"

	"github.com/coffer-project/coffer/cmd/coffer/local"
)

// WritePID writes the process id. remove takes the file away again.
func WritePID(path string) (remove func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	err = local.WritePrivate(path, func(f *os.File) error {
		_, err := fmt.Fprintln(f, os.Getpid())
		return err
	})
	return func() { os.Remove(path) }, err
}
