//go:build !unix

package ledger

import "os"

func lock(*os.File) error { return nil }
