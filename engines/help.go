package engines

import (
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/engines/input"
)

// operations in the order that people read about them.
var operations = []Operation{Read, List, Update, Patch, Delete}

// Help returns a text for people about the routes that a path fits: what each operation does and which fields
// it takes. For the empty path it lists all patterns. It reports false when no route fits.
func (r *Router) Help(path string) (string, bool) {
	if path == "" {
		return r.overview(), true
	}
	if CheckPath(path) != nil {
		return "", false
	}
	var b strings.Builder
	for _, op := range operations {
		route, _, err := r.Match(op, path)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "%s %s\n\n    %s\n", strings.ToUpper(string(op)), route.Pattern, route.Help)
		if note := route.Flags.note(); note != "" {
			fmt.Fprintf(&b, "    %s\n", note)
		}
		for _, f := range route.Fields {
			fmt.Fprintf(&b, "\n    %s (%s)\n        %s\n", f.Name, traits(&f), f.Help)
		}
		b.WriteString("\n")
	}
	return b.String(), b.Len() > 0
}

func (r *Router) overview() string {
	var b strings.Builder
	b.WriteString("The paths below this mount. Ask for help on one of them to see its fields.\n\n")
	for _, route := range r.Routes() {
		pattern := route.Pattern
		if pattern == "" {
			pattern = "(the mount itself)"
		}
		fmt.Fprintf(&b, "    %-7s %s\n            %s\n", strings.ToUpper(string(route.Op)), pattern, route.Help)
	}
	return b.String()
}

// note says what a caller needs besides a policy.
func (f Flags) note() string {
	switch {
	case f.Has(Unauthenticated):
		return "Needs no token."
	case f.Has(Sudo):
		return "Needs the sudo capability."
	}
	return ""
}

// traits describes a field in a few words: type, place, and what limits it.
func traits(f *input.Field) string {
	traits := f.Type + ", in the " + f.In
	if f.Required {
		traits += ", required"
	}
	if f.Sensitive {
		traits += ", sensitive"
	}
	if f.Enum != nil {
		traits += ", one of " + input.QuoteAll(f.Enum)
	}
	if f.Default != "" {
		traits += ", default " + f.Default
	}
	return traits
}
