//go:build e2e

package migration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// server is one end of a move, as its API shows it. Nothing here is of the importer: it reads both ends in its own way.
type server struct {
	t          *testing.T
	url, token string
	http       *http.Client
	namespaces bool // it has them
}

// at is a path of sys/, auth/ or identity/ for a namespace and a name in it. Without namespaces their names begin those of mounts.
func (s *server) at(namespace, path, name string) string {
	switch {
	case namespace == "":
		return path + name
	case s.namespaces:
		return namespace + "/" + path + name
	}
	return path + namespace + "/" + name
}

// send sends a request, and returns the status and the text of the response.
func (s *server) send(method, path string, body any) (int, []byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	if body == nil {
		text = nil
	}
	r, err := http.NewRequestWithContext(context.Background(), method, s.url+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-Vault-Token", s.token)
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := s.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// do is send of a request that has to succeed; it returns the data, or what a login gives.
func (s *server) do(method, path string, body any) fields {
	s.t.Helper()
	status, text, err := s.send(method, path, body)
	if err != nil || status >= 300 {
		s.t.Errorf("%s %s: status %d, %v: %.300s", method, path, status, err, text)
	}
	out := decode(text)
	if auth, _ := out["auth"].(fields); auth != nil {
		return auth
	}
	data, _ := out["data"].(fields)
	return data
}

func (s *server) write(path string, body any) fields { s.t.Helper(); return s.do("POST", path, body) }

// decode keeps numbers as they are written.
func decode(text []byte) fields {
	var out fields
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&out) != nil {
		return nil
	}
	return out
}

// show returns the data of a path, nil if nothing is there.
func (s *server) show(path string) fields { return s.named(path, nil) }

// named is show with ids replaced by names.
func (s *server) named(path string, names *strings.Replacer) fields {
	var text []byte
	harness.Await(s.t, "GET "+path, patience, func() error { // on a busy machine a cluster may be without a leader for a moment
		status, answer, err := s.send("GET", path, nil)
		if err == nil && status != 200 && status != 404 && status != 405 {
			err = fmt.Errorf("status %d: %.300s", status, answer)
		}
		text = answer
		return err
	})
	if names != nil {
		text = []byte(names.Replace(string(text)))
	}
	data, _ := decode(text)["data"].(fields)
	return data
}

func (s *server) list(path string) []string {
	var out []string
	keys, _ := s.show(strings.TrimSuffix(path, "/") + "?list=true")["keys"].([]any)
	for _, key := range keys {
		out = append(out, key.(string))
	}
	return out
}

// thing is something that a server has, by the kinds and names of the plan.
type thing struct{ kind, namespace, name string }

// shown is all that a server shows.
type shown struct {
	server   *server
	versions bool // read their data
	mu       sync.Mutex
	things   map[thing]any
	slots    chan struct{} // requests at once
	going    sync.WaitGroup
	names    *strings.Replacer
}

// read reads everything that a server shows, the data of secrets' versions only if asked for.
func read(s *server, versions bool) map[thing]any {
	v := &shown{server: s, versions: versions, things: map[thing]any{}, slots: make(chan struct{}, 24)}
	spaces := v.namespaces("")
	v.replacer(spaces)
	for _, ns := range spaces {
		v.namespace(ns)
	}
	for _, kind := range []string{"rate-limit", "lease-count"} {
		v.each("quota", "", "sys/quotas/"+kind, kind+"/")
	}
	v.keep(thing{"quota", "", "config"}, s.show("sys/quotas/config"))
	for path, about := range s.show("sys/audit") {
		v.keep(thing{"audit device", "", path}, fields{"is": about})
	}
	v.going.Wait()
	return v.things
}

func (v *shown) keep(at thing, value fields) {
	if value == nil {
		return
	}
	implied(at.kind, value)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.things[at] = solid(value)
}

// implied removes what means the same as nothing, and is shown by some servers of the family only.
func implied(kind string, value fields) {
	is := func(m fields, name, what string) {
		if fmt.Sprint(m[name]) == what {
			delete(m, name)
		}
	}
	switch kind {
	case "auth method":
		config, _ := value["config"].(fields)
		is(config, "token_type", "default-service")
	case "token role":
		is(value, "period", fmt.Sprint(value["token_period"])) // its former name
	case "quota":
		is(value, "group_by", "ip")
		is(value, "inheritable", "true")
	}
}

// solid is a value without members that say nothing: servers of the family differ in whether they send null, an empty text or none.
func solid(value any) any {
	switch value := value.(type) {
	case fields:
		out := fields{}
		for name, member := range value {
			if member = solid(member); member != nil {
				out[name] = member
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i := range value {
			out[i] = solid(value[i])
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case string:
		if value == "" {
			return nil
		}
	case bool:
		if !value {
			return nil
		}
	case json.Number:
		if value == "0" {
			return nil
		}
	}
	return value
}

// later reads something when there is a slot for it.
func (v *shown) later(do func()) {
	v.going.Go(func() {
		v.slots <- struct{}{}
		defer func() { <-v.slots }()
		do()
	})
}

func in(ns, path string) string { return strings.TrimPrefix(ns+"/"+path, "/") }

// namespaces returns those below one, with itself.
func (v *shown) namespaces(ns string) []string {
	all := []string{ns}
	if !v.server.namespaces {
		return all
	}
	for _, name := range v.server.list(in(ns, "sys/namespaces")) {
		child := in(ns, strings.Trim(name, "/"))
		v.keep(thing{"namespace", "", child}, fields{"is": "there", "custom_metadata": v.server.show(in(ns, "sys/namespaces/"+strings.Trim(name, "/")))["custom_metadata"]})
		all = append(all, v.namespaces(child)...)
	}
	return all
}

// replacer replaces accessors and ids by what they stand for.
func (v *shown) replacer(spaces []string) {
	var pairs []string
	for _, ns := range spaces {
		for path, about := range v.server.show(in(ns, "sys/auth")) {
			if m, ok := about.(fields); ok {
				pairs = append(pairs, fmt.Sprint(m["accessor"]), "accessor of "+in(ns, path))
			}
		}
		for _, kind := range []string{"entity", "group"} {
			for _, id := range v.server.list(in(ns, "identity/"+kind+"/id")) {
				name := v.server.show(in(ns, "identity/"+kind+"/id/"+id))["name"]
				pairs = append(pairs, id, fmt.Sprintf("id of %s %s", kind, in(ns, fmt.Sprint(name))))
			}
		}
	}
	v.names = strings.NewReplacer(pairs...)
}

// each reads all of a list.
func (v *shown) each(kind, ns, folder, prefix string) {
	for _, name := range v.server.list(in(ns, folder)) {
		v.later(func() {
			v.keep(thing{kind, ns, prefix + name}, v.server.named(in(ns, folder+"/"+name), v.names))
		})
	}
}

// mounted is a mount without what is of one server.
func mounted(about any) (fields, string) {
	m, _ := about.(fields)
	if m == nil {
		return nil, ""
	}
	m = maps.Clone(m)
	for _, name := range []string{"accessor", "uuid", "external_entropy_access", "plugin_version", "running_plugin_version", "running_sha256", "deprecation_status", "seal_wrap"} {
		delete(m, name)
	}
	kind, _ := m["type"].(string)
	return m, strings.TrimPrefix(kind, "ns_")
}

func (v *shown) namespace(ns string) {
	for path, about := range v.server.show(in(ns, "sys/mounts")) {
		m, kind := mounted(about)
		options, _ := m["options"].(fields)
		switch {
		case m == nil, kind == "system", kind == "identity", kind == "cubbyhole":
			continue
		case kind == "kv" && fmt.Sprint(options["version"]) == "2":
			m["settings"] = v.server.show(in(ns, path+"config"))
			v.later(func() { v.folder(ns, path+"metadata/", path, v.secret) })
		case kind == "kv", kind == "generic":
			v.later(func() { v.folder(ns, path, path, v.plain) })
		}
		v.keep(thing{"secrets engine", ns, path}, m)
	}
	for path, about := range v.server.show(in(ns, "sys/auth")) {
		m, kind := mounted(about)
		if m == nil {
			continue
		}
		if kind != "token" {
			v.keep(thing{"auth method", ns, path}, m)
		}
		mount := "auth/" + path
		switch kind {
		case "token":
			v.each("token role", ns, mount+"roles", path)
		case "userpass":
			v.each("user", ns, mount+"users", path)
		case "jwt":
			v.keep(thing{"auth method config", ns, path}, v.server.show(in(ns, mount+"config")))
			v.each("role", ns, mount+"role", path)
		case "approle":
			for _, name := range v.server.list(in(ns, mount+"role")) {
				v.later(func() {
					role := v.server.show(in(ns, mount+"role/"+name))
					role["role_id"] = v.server.show(in(ns, mount+"role/"+name+"/role-id"))["role_id"]
					v.keep(thing{"approle role", ns, path + name}, role)
				})
			}
		}
	}
	v.each("policy", ns, "sys/policies/acl", "")
	v.each("password policy", ns, "sys/policies/password", "")
	for _, kind := range []string{"entity", "group"} {
		for _, id := range v.server.list(in(ns, "identity/"+kind+"/id")) {
			v.later(func() { v.identity(kind, ns, id) })
		}
	}
}

// identity keeps an entity or a group, with its aliases.
func (v *shown) identity(kind, ns, id string) {
	found := v.server.named(in(ns, "identity/"+kind+"/id/"+id), v.names)
	if found == nil {
		return
	}
	aliases, _ := found["aliases"].([]any)
	if one, _ := found["alias"].(fields); len(one) > 0 {
		aliases = append(aliases, one)
	}
	var kept []string
	for _, alias := range aliases {
		a, _ := alias.(fields)
		kept = append(kept, fmt.Sprint(a["name"], " at ", a["mount_accessor"], " ", solid(a["custom_metadata"])))
	}
	slices.Sort(kept)
	out := fields{"aliases": strings.Join(kept, "\n")}
	for _, name := range []string{"name", "type", "policies", "metadata", "disabled", "member_entity_ids", "member_group_ids", "parent_group_ids"} {
		out[name] = found[name]
		if list, ok := found[name].([]any); ok {
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	v.keep(thing{kind, ns, fmt.Sprint(found["name"])}, out)
}

// folder calls do for each secret below a folder. base is where the secrets' names begin.
func (v *shown) folder(ns, path, mount string, do func(ns, mount, name string)) {
	base, _ := strings.CutPrefix(path, mount)
	base = strings.TrimPrefix(base, "metadata/")
	for _, name := range v.server.list(in(ns, path)) {
		if strings.HasSuffix(name, "/") {
			v.later(func() { v.folder(ns, path+name, mount, do) })
			continue
		}
		v.later(func() { do(ns, mount, base+name) })
	}
}

// plain keeps a secret of version 1.
func (v *shown) plain(ns, mount, name string) {
	data := v.server.show(in(ns, mount+name))
	v.keep(thing{"secret", ns, mount + name}, fields{"data": fmt.Sprint(data)})
}

// secret keeps a secret of version 2: all that is known of it, and the data of each version that can be read.
func (v *shown) secret(ns, mount, name string) {
	about := v.server.show(in(ns, mount+"metadata/"+name))
	if about == nil {
		return
	}
	if oldest := fmt.Sprint(about["oldest_version"]); oldest == "1" {
		delete(about, "oldest_version") // at Vault already when there are max_versions of them, here when one is dropped
	}
	versions, _ := about["versions"].(fields)
	data := fields{}
	for version := range versions {
		if !v.versions {
			continue
		}
		data[version] = v.server.show(in(ns, mount+"data/"+name+"?version="+version))
	}
	v.keep(thing{"secret", ns, mount + name}, fields{"about": about, "data": data})
}

// lacking compares all that two servers show, but for what a plan said cannot come, and what is in mounts of the destination's own.
func lacking(t *testing.T, from, to map[thing]any, plan report, own ...string) {
	t.Helper()
	said := map[thing]string{}
	for _, a := range plan.Actions {
		if a.Action == "skip" {
			said[thing{a.Kind, a.Namespace, a.Name}] = a.Reason
		}
	}
	problems, excused := 0, 0
	complain := func(format string, args ...any) {
		if problems++; problems <= 20 {
			t.Errorf(format, args...)
		}
	}
	for at, value := range from {
		other, there := to[at]
		_, planned := said[at]
		switch {
		case planned:
			excused++
		case !there:
			complain("missing, and the plan did not say so: %+v", at)
		case !reflect.DeepEqual(value, other):
			complain("%+v differs:\n  source      %v\n  destination %v", at, value, other)
		}
	}
	for at := range to {
		if _, there := from[at]; !there && !slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(at.kind+" "+in(at.namespace, at.name), prefix) }) {
			complain("the destination has what the source has not: %+v", at)
		}
	}
	if problems > 20 {
		t.Errorf("and %d more", problems-20)
	}
	t.Logf("compared %d things; %d did not come, as the plan said", len(from), excused)
}
