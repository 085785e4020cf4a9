//go:build !linux

package main

// protect keeps the memory of a server from core dumps.
func protect() error { return noCoreDumps() }
