// Package arch holds no code, only the test that keeps the floor plan true: which package may import which,
// and the few habits that can be checked by reading the source.
package arch
