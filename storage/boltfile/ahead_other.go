//go:build !linux || !(amd64 || arm64)

package boltfile

import "os"

func cacheBytes() int64 { return 0 }

func ask(*os.File, int64, int64) bool { return false }
