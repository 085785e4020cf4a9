package archive

import "io"

// Verify reads a whole snapshot file and verifies it as Extract does, without keeping anything.
func Verify(r io.Reader) (Meta, error) {
	var a Archive
	if err := a.read(r, io.Discard); err != nil {
		return Meta{}, err
	}
	return a.Meta, nil
}
