package cloud2kvtest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// list is one page of the names in use, or of the deleted ones. As the vendor's does, a full page has a link to a next one
// even if that is empty, and the deleted ones have an empty page after the first.
func (v *Vault) list(r *http.Request, kind string) (any, *problem) {
	var names []string
	for key, o := range v.secrets {
		if kind == "secrets" && o.deleted.IsZero() && (o.busy != "recovering" || o.left == 0) || kind == "deletedsecrets" && !o.deleted.IsZero() && o.left == 0 {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	size, at, p := v.page(r)
	if p != nil {
		return nil, p
	}
	emptyFirst := strings.HasSuffix(at, "+")
	at = strings.TrimSuffix(at, "+")
	names = slices.DeleteFunc(names, func(n string) bool { return n <= at })
	items := []any{}
	for _, key := range names[:min(size, len(names))] {
		if emptyFirst {
			break
		}
		o := v.secrets[key]
		item := bundle(r, o.name, o.newest())
		if kind == "deletedsecrets" {
			item = deletedBundle(r, o)
		}
		item["id"] = base(r) + "/secrets/" + o.name
		items = append(items, item)
		at = key
	}
	switch {
	case emptyFirst:
		return map[string]any{"value": items, "nextLink": next(r, at, size)}, nil
	case len(items) < size:
		return map[string]any{"value": items, "nextLink": nil}, nil
	case kind == "deletedsecrets" && r.URL.Query().Get("$skiptoken") == "":
		at += "+"
	}
	return map[string]any{"value": items, "nextLink": next(r, at, size)}, nil
}

// versions is one page of a secret's versions, in the order of their random ids.
func (v *Vault) versions(r *http.Request, o *object, name string) (any, *problem) {
	if !o.live() {
		return nil, notFound(name)
	}
	size, at, p := v.page(r)
	if p != nil {
		return nil, p
	}
	all := slices.SortedFunc(slices.Values(o.versions), func(a, b *version) int { return strings.Compare(a.id, b.id) })
	all = slices.DeleteFunc(all, func(n *version) bool { return n.id <= at })
	items := []any{}
	for _, n := range all[:min(size, len(all))] {
		items = append(items, bundle(r, o.name, n))
		at = n.id
	}
	var link any
	if len(all) > size {
		link = next(r, at, size)
	}
	return map[string]any{"value": items, "nextLink": link}, nil
}

// page returns how long a page is, and after what it begins.
func (v *Vault) page(r *http.Request) (size int, at string, p *problem) {
	q := r.URL.Query()
	size = v.pageSize
	if text := q.Get("maxresults"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxResults {
			return 0, "", bad("maxresults must be from 1 to %d", maxResults)
		}
		size = n
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Get("$skiptoken"))
	if err != nil {
		return 0, "", bad("The $skiptoken is not valid.")
	}
	return size, string(after), nil
}

// next is the link to the page after at, with the port as the vendor's has it.
func next(r *http.Request, at string, size int) string {
	host := r.Host
	if !strings.Contains(host, ":") {
		host += ":443"
	}
	return fmt.Sprintf("https://%s%s?api-version=%s&$skiptoken=%s&maxresults=%d", host, r.URL.Path, r.URL.Query().Get("api-version"), base64.RawURLEncoding.EncodeToString([]byte(at)), size)
}
