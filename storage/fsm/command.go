package fsm

import "github.com/coffer-project/coffer/storage"

// EncodeCommand returns the log entry that applies batches one after the other, each all or nothing. timeMS
// is the leader's clock, in Unix milliseconds. Callers validate each batch first (storage.Batch.Validate):
// one that no replica could apply fails the whole command.
func EncodeCommand(timeMS int64, batches []storage.Batch) ([]byte, error) { return nil, errTODO }
