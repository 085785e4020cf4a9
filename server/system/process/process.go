// Package process describes the running program and what it runs on: the machine, the configuration, the levels of its loggers, the
// requests under way, profiles, and the versions that have been active in the cluster. Each is a type with Routes, which declares its paths
// below sys/, and depends on none of the others. Nothing of this is replicated, and only the versions are stored.
package process

import (
	"time"

	"github.com/coffer-project/coffer/engines"
)

// none is the input of paths without fields.
type none struct{}

// both answers data, and the same again at the top level, where older clients read it.
func both(data map[string]any) *engines.Response {
	return &engines.Response{Data: data, Top: data}
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
