package audit

import "io"

// NewTornDevice returns a file device over w, for writes that fail half way.
func NewTornDevice(w io.WriteCloser) Device { return &fileDevice{file: w} }
