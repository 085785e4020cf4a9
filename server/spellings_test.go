package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/approle"
	"github.com/coffer-project/coffer/engines/cert"
	"github.com/coffer-project/coffer/engines/cloud"
	"github.com/coffer-project/coffer/engines/cubbyhole"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/secretsync"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/webhook"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/userpass"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/storage"
)

// allRoutes returns the routes of all engines and of sys, by the name of their engine.
func allRoutes(t *testing.T) map[string][]*engines.Route {
	in := start(t)
	out := map[string][]*engines.Route{}
	for name, path := range map[string]string{"sys": "sys/", "token": "auth/token/", "identity": "identity/"} {
		m, err := in.Mount(path)
		if err != nil || m == nil {
			t.Fatalf("%s: %v, %v", path, m, err)
		}
		out[name] = m.Engine.Router().Routes()
	}
	for name, factory := range map[string]engines.Factory{
		"kv": kv.New, "cubbyhole": cubbyhole.New, "userpass": userpass.New, "approle": approle.New, "cert": cert.New,
		"saml": saml.New(saml.Options{}), "cloud": cloud.New(cloud.Options{}),
	} {
		for _, version := range []string{"1", "2"} {
			e, err := factory(engines.Mount{Type: name, Options: map[string]string{"version": version}})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			out[name+version] = e.Router().Routes()
		}
	}
	syncs := secretsync.New(secretsync.Options{Types: []destination.Type{cloud1sm.Type, cloud1ssm.Type, cloud2kv.Type, cloud3sm.Type, gitlab.Type, kubernetes.Type, repohost.Type, webhook.Type, webhost.Type}})
	r := engines.NewRouter()
	syncs.Routes(r)
	out["sync"] = r.Routes()
	return out
}

// spelled is a value as JSON in all the ways that are accepted for it. The first is the plainest.
type spelled []string

// spellings returns the ways of two different values of a field.
func spellings(f input.Field) (one, other spelled) {
	two := func(format string, forms ...func(string) string) (spelled, spelled) {
		a, b := "abc", "xyz"
		switch {
		case len(f.Enum) > 0:
			values := slices.DeleteFunc(slices.Clone(f.Enum), func(v string) bool { return v == "" })
			a, b = values[0], values[len(values)-1]
		case format == "network":
			a, b = "10.0.0.0/8", "192.168.0.1/32"
		case format == "duration":
			a, b = "9h", "8h"
		case format == "engine":
			a, b = "cloud", "kv"
		}
		in := func(v string) spelled {
			out := spelled{strconv.Quote(v), escaped(v)}
			switch {
			case len(f.Enum) > 0:
			case format == "name":
				out = append(out, strconv.Quote(" "+v), strconv.Quote(strings.ToUpper(v)+"\t"))
			case format == "trim":
				out = append(out, strconv.Quote(" "+v+"\n"))
			case format == "lower":
				out = append(out, strconv.Quote(strings.ToUpper(v)))
			case format == "path":
				out = append(out, strconv.Quote("/"+v+"/"), strconv.Quote(v+"/"))
			case format == "relative":
				out = append(out, strconv.Quote("/"+v))
			case format == "json":
				out = spelled{strconv.Quote(`{"a":1,"b":["` + v + `"]}`), strconv.Quote(` {"a" : 1 ,"b":[ "` + v + `"]}`), strconv.Quote(`{"b":["` + v + `"],"a":1.0}`)}
			case v == "10.0.0.0/8":
				out = append(out, `"10.1.2.3/8"`, `"10.255.255.255/8"`)
			case v == "192.168.0.1/32":
				out = append(out, `"192.168.0.1"`)
			case v == "9h":
				out = append(out, `"540m"`, `"32400"`, `"9h0m0s"`)
			case v == "8h":
				out = append(out, `"480m"`)
			case v == "cloud":
				out = append(out, `"aws"`)
			}
			return out
		}
		if a == b { // the only one
			return in(a), nil
		}
		return in(a), in(b)
	}
	switch f.Type {
	case "string":
		return two(f.Form)
	case "boolean":
		return spelled{"true", `"true"`, `"1"`, "1", `"t"`, `"T"`, `"TRUE"`, `"True"`, `"\u0074rue"`}, spelled{"false", `"false"`, "0", `"F"`, `""`}
	case "integer":
		return spelled{"7", `"7"`, `"07"`, `"+7"`, "7.0", `"7.0"`, `" 7 "`, "7e0", `"70e-1"`, "0.7e1"}, spelled{"8", `"8"`, "8.0"}
	case "number":
		return spelled{"2.5", `"2.5"`, "25e-1", `"02.50"`, `" 2.5"`}, spelled{"3", `"3"`, "3.0"}
	case "duration":
		return spelled{`"9h"`, "32400", `"32400"`, `"32400s"`, `"540m"`, `"0.375d"`, "3.24e4", `" 9h "`, "32400.0", `"9h0m0s"`}, spelled{`"8h"`, "28800"}
	case "list":
		a, b := two(f.Form)
		return inList(a), inList(b)
	case "map":
		return spelled{`{"k":"v"}`, `["k=v"]`, `"k=v"`, `[" k = v "]`, `{ "\u006b":"v"}`}, spelled{`{"k":"w"}`, `["k=w"]`}
	case "object":
		return spelled{`{"a":1,"b":["x"]}`, ` { "b" : ["\u0078"], "a" : 1.0 } `, `{"a":10e-1,"b":[ "x" ]}`}, spelled{`{"a":1,"b":["y"]}`, `{"a":1,"b":[ "y" ]}`}
	case "any":
		switch f.Name {
		case "metadata":
			return spelled{`{"k":"v"}`, `"k=v"`, `" k = v "`, `"{\"k\":\"v\"}"`}, spelled{`{"k":"w"}`, `"k=w"`}
		case "bound_attributes":
			return spelled{`{"k":["v","w"]}`, `{"k":"w , v"}`, `["k=v","k=w"]`, `"k=v,w"`}, spelled{`{"k":"x"}`, `"k=x"`}
		}
		return spelled{`{"a":[1]}`, ` {"a" : [1.0]} `, `{"\u0061":[1e0]}`}, spelled{`{"a":[2]}`, `{"a":[ 2.0 ]}`}
	}
	panic("a type of field without spellings: " + f.Type)
}

// inList returns the ways of lists that hold the value, alone or with others.
func inList(elements spelled) spelled {
	var out spelled
	for _, e := range elements {
		text := strings.TrimPrefix(strings.TrimSuffix(e, `"`), `"`)
		out = append(out, "["+e+"]", e, `" `+text+` ,"`, "["+e+","+elements[0]+"]")
	}
	return out
}

// escaped is a text as JSON with one character written as an escape.
func escaped(text string) string { return fmt.Sprintf(`"\u%04x%s"`, text[0], text[1:]) }

// body is a request for a route that gives one field, and the plainest values for all that are required.
func body(r *engines.Route, name, value string) string {
	members := []string{strconv.Quote(name) + ":" + value}
	for _, f := range r.Fields {
		if f.Required && f.In != "path" && f.Name != name {
			one, _ := spellings(f)
			members = append(members, strconv.Quote(f.Name)+":"+one[0])
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// ruled returns an ACL with one rule about parameters.
func ruled(t *testing.T, rule string) *policy.ACL {
	t.Helper()
	s := policy.NewStore(new(storage.Memory))
	if err := s.Set(t.Context(), "root", "p", `{"path":{"x":{"capabilities":["read","update","patch"],`+rule+`}}}`); err != nil {
		t.Fatalf("%s: %v", rule, err)
	}
	acl, err := s.ACL(t.Context(), nil, policy.Scope{Namespace: "root", Names: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	return acl
}

// judge returns what a rule decides about a request that gives a field this value, or why it cannot be taken.
func judge(acl *policy.ACL, r *engines.Route, f input.Field, name, value string) (bool, error) {
	params := map[string]string{}
	for _, f := range r.Fields {
		if f.In == "path" {
			params[f.Name] = "abc"
		}
	}
	req := &engines.Request{Op: r.Op, Body: json.RawMessage(body(r, name, value))}
	if f.In == "query" {
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal(req.Body, &members); err != nil {
			return false, err
		}
		req.Body, req.Query = nil, url.Values{}
		for name, value := range members {
			text := string(value)
			_ = json.Unmarshal(value, &text) // a number stays as it is
			req.Query.Set(name, text)
		}
	}
	d := acl.Check(r.Op, "x", func() (*input.Input, error) { return r.Input(req, params) })
	return d.Allowed, d.Err
}

// TestSpellingsOfEveryField goes over every field of every route, every name of it and every way to write a value that the
// decoder takes, on both sides, the rule's and the request's: none changes the decision.
func TestSpellingsOfEveryField(t *testing.T) {
	judged, seen := 0, map[string]bool{}
	acls := map[string]*policy.ACL{} // by rule: many fields have the same name
	acl := func(rule string) *policy.ACL {
		if acls[rule] == nil {
			acls[rule] = ruled(t, rule)
		}
		return acls[rule]
	}
	for engine, routes := range allRoutes(t) {
		for _, r := range routes {
			if r.Op == engines.Delete || r.Op.Lists() || r.Flags.Has(engines.RawBody) {
				continue
			}
			for _, f := range r.Fields {
				if f.In == "path" || f.Whole {
					continue
				}
				judged++
				what := fmt.Sprintf("%s: %s %s, field %s", engine, r.Op, r.Pattern, f.Name)
				names := namesOf(r, f)
				one, other := spellings(f)
				if f.In == "query" {
					one, other = slices.DeleteFunc(one, noQuery), slices.DeleteFunc(other, noQuery)
				}
				lists := one
				if like := fmt.Sprintf("%s %s %q %d", f.Type, f.Form, f.Enum, len(names)); seen[like] {
					lists = one[:1] // one field of a kind suffices for the spellings on the rule's side
				} else {
					seen[like] = true
				}
				for _, listed := range lists {
					for _, ruledName := range names {
						denied := fmt.Sprintf(`"denied_parameters":{%q:[%s]}`, ruledName, listed)
						allowed := fmt.Sprintf(`"allowed_parameters":{%q:[%s]%s}`, ruledName, listed, othersOf(r, names))
						denies, allows := acl(denied), acl(allowed)
						for _, name := range names {
							for i, value := range append(slices.Clone(one), other...) {
								same := i < len(one)
								ok, err := judge(denies, r, f, name, value)
								if err != nil {
									t.Fatalf("%s: %s = %s: %v", what, name, value, err)
								}
								if ok == same {
									t.Errorf("%s: %s, with %s = %s: allowed %v", what, denied, name, value, ok)
								}
								if ok, err = judge(allows, r, f, name, value); ok != same || err != nil {
									t.Errorf("%s: %s, with %s = %s: allowed %v, %v", what, allowed, name, value, ok, err)
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d fields", judged)
	if judged < 400 {
		t.Errorf("%d fields: that compares too little", judged)
	}
}

// noQuery reports whether a value can only come in a body.
func noQuery(value string) bool { return strings.ContainsAny(value[:1], "[{") }

// namesOf returns the names of the route's fields that are the same field.
func namesOf(r *engines.Route, f input.Field) []string {
	names := map[string]bool{f.Name: true}
	for _, g := range r.Fields {
		if slices.Equal(g.Alias, []string{f.Name}) && g.In == f.In {
			names[g.Name] = true
		}
	}
	if len(f.Alias) == 1 {
		names[f.Alias[0]] = slices.ContainsFunc(r.Fields, func(g input.Field) bool { return g.Name == f.Alias[0] })
		if !names[f.Alias[0]] {
			delete(names, f.Alias[0])
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// othersOf allows all required fields but those names.
func othersOf(r *engines.Route, names []string) string {
	var out strings.Builder
	for _, f := range r.Fields {
		if f.Required && f.In != "path" && !slices.Contains(names, f.Name) {
			fmt.Fprintf(&out, ",%q:[]", f.Name)
		}
	}
	return out.String()
}

// TestNamesAndFormsAreDeclared: a field that is described as another name is declared as one, and fields whose texts have
// several spellings everywhere have their form.
func TestNamesAndFormsAreDeclared(t *testing.T) {
	for engine, routes := range allRoutes(t) {
		for _, r := range routes {
			for _, f := range r.Fields {
				what := fmt.Sprintf("%s: %s %s, field %s", engine, r.Op, r.Pattern, f.Name)
				for _, says := range []string{"Older name of ", "Old name of ", "Another name of ", "Another word for ", "The same as "} {
					if rest, ok := strings.CutPrefix(f.Help, says); ok && !slices.Equal(f.Alias, []string{strings.Trim(rest, ".")}) {
						t.Errorf("%s: it is %q, but the alias is %q", what, f.Help, f.Alias)
					}
				}
				for _, name := range f.Alias {
					i := slices.IndexFunc(r.Fields, func(g input.Field) bool { return g.Name == name })
					if i >= 0 && len(f.Alias) == 1 && (r.Fields[i].Type != f.Type || r.Fields[i].Form != f.Form) {
						t.Errorf("%s: it is read in another way than %s", what, name)
					}
				}
				if f.In == "path" || r.Op == engines.Delete || r.Op == engines.List {
					continue
				}
				for suffix, forms := range map[string]string{"policies": "name lower", "policies_glob": "lower", "cidrs": "network", "cidr_list": "network"} {
					if (f.Name == suffix || strings.HasSuffix(f.Name, "_"+suffix)) && f.Type == "list" && !slices.Contains(strings.Fields(forms), f.Form) {
						t.Errorf("%s: the form is %q, not %s", what, f.Form, forms)
					}
				}
			}
		}
	}
}
