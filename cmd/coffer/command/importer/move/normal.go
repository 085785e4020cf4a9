package move

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// normal returns a text that is the same for the ways in which servers write one value: nothing, false, zero and empty are the same, so are
// numbers and their texts, and lists in any order. A text in a map or
// a list is as it is: metadata may be "0".
func normal(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case bool:
		if !v {
			return ""
		}
		return "true"
	case json.Number:
		return normal(v.String())
	case float64:
		return normal(strconv.FormatFloat(v, 'f', -1, 64))
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil && n == 0 || v == "0s" {
			return ""
		}
		return v
	case []string:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return normal(list)
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = member(v[i])
		}
		if len(texts) == 0 {
			return ""
		}
		slices.Sort(texts)
		return "[" + strings.Join(slices.Compact(texts), "\x00") + "]"
	case map[string]string:
		m := map[string]any{}
		for k := range v {
			m[k] = v[k]
		}
		return normal(m)
	case map[string]any:
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if text := member(v[name]); text != "" {
				fmt.Fprintf(&b, "%q:%q,", name, text)
			}
		}
		return b.String()
	}
	return fmt.Sprint(v)
}

// member is normal of what is in a map or a list.
func member(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	return normal(v)
}

// noMount reports whether a status 400 says that nothing is mounted there.
func noMount(err error) bool {
	text := command.Shortly(err)
	return strings.HasPrefix(text, "No secret engine mount at") || strings.HasPrefix(text, "No auth engine at")
}

// Post returns the Write of objects that are written as they are wanted, to one path.
func (d *Destination) Post(path string) func(context.Context, *Object) (*command.Response, error) {
	return func(ctx context.Context, o *Object) (*command.Response, error) {
		return d.Send(ctx, http.MethodPost, o.Namespace, path, o.Body())
	}
}
