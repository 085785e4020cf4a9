package storage_test

import (
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/storagetest"
)

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(testing.TB) storage.Store { return &storage.Memory{} })
}

func TestMemoryFeed(t *testing.T) {
	storagetest.RunFeed(t, func(testing.TB) storagetest.FeedStore { return &storage.Memory{} })
}
