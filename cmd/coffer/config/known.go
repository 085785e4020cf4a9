package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config/known"
	"github.com/hashicorp/hcl/hcl/ast"
)

// Files of Vault and OpenBao start as they are. They have keys that Coffer does not need: those are checked, and one warning for
// each says what happens instead.

// ignore checks the value of a key without effect, and warns.
func (d *decoder) ignore(k known.Key, item *ast.ObjectItem, name string) {
	before := len(d.problems)
	switch v := k.Value; v.Kind {
	case known.Bool:
		got := v.Only != nil && *v.Only
		if boolean(&got)(d, item); v.Only != nil && got != *v.Only {
			d.problem(item.Pos(), "%q = %v: %s", keyOf(item), got, v.Otherwise)
		}
	case known.Number:
		number(new(int64))(d, item)
	case known.Duration:
		duration(new(time.Duration))(d, item)
	case known.Text:
		text1(new(string))(d, item)
	case known.Texts:
		texts(new([]string))(d, item)
	case known.Literal:
		d.literal(item)
	case known.Block:
		d.block(item)
	}
	if len(d.problems) == before {
		d.warnings = append(d.warnings, fmt.Sprintf("%s:%d: %q has no effect: %s", d.name, item.Pos().Line, name, k.Instead))
	}
}

// other handles a key that has no field.
func (d *decoder) other(where string, item *ast.ObjectItem) {
	key := keyOf(item)
	name := key
	if where != "" {
		name = where + "." + key
	}
	if k, ok := known.Ignored[where][key]; ok {
		d.ignore(k, item, name)
		return
	}
	for pattern, instead := range known.Rejected[where] {
		prefix, all := strings.CutSuffix(pattern, "*")
		if pattern == key || all && strings.HasPrefix(key, prefix) {
			d.problem(item.Pos(), "%q is not supported: %s", name, instead)
			return
		}
	}
	d.problem(item.Pos(), "unknown key %q", name)
}
