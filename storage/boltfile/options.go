// Package boltfile has what it takes to use a bbolt file safely: options with which a file of ours is opened, a lock that is taken before
// bbolt takes it, a check of a closed file that reads it without bbolt (Walk), reading ahead, and names that change durably.
//
// bbolt protects only its meta pages, goes back to the older of them when the newer one is damaged, and panics on damaged pages: so a file
// is read completely before bbolt may open it. What the keys and values say is its owner's business. Start reading at Walk.
package boltfile

import (
	"strconv"
	"time"

	"go.etcd.io/bbolt"
)

// Options maps far more than a file of so many bytes holds. Where read transactions stay open the file must not outgrow the map: growing
// the map would wait for read transactions, and there is always one open. Address space is not memory.
func Options(fileBytes int64) *bbolt.Options {
	mapBytes := int64(1) << 30
	if strconv.IntSize == 64 {
		mapBytes = 64 << 30
	}
	for mapBytes < 2*fileBytes {
		mapBytes *= 2
	}
	return &bbolt.Options{
		Timeout:         time.Second,
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		NoStatistics:    true,
		InitialMmapSize: int(mapBytes),
	}
}
