package engines

import (
	"regexp"
	"sync"
)

// Pattern returns a regular expression that is compiled when it is first used. Every command of Coffer has every engine linked into it
// and uses hardly any of their patterns: together they took longer to compile than all else that a process does when it starts.
func Pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
