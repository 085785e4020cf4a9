package mount

import "github.com/coffer-project/coffer/storage"

// PutOf returns what is stored of an entry.
func PutOf(e *Entry) storage.Put { return e.put() }
