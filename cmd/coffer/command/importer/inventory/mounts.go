package inventory

import (
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
)

// Kinds of a ledger and a report.
const (
	kindNamespace = "namespace"
	kindEngine    = "secrets engine"
	kindMethod    = "auth method"
)

// namespaces are those with so many others above them, besides the root.
func (v *Inventory) namespaces(ctx context.Context, level int) ([]*move.Object, error) {
	var out []*move.Object
	for _, ns := range v.Namespaces {
		if ns == "" || strings.Count(ns, "/") != level {
			continue
		}
		parent := path.Dir(ns)
		if parent == "." {
			parent = ""
		}
		fields, err := v.Source.Fields(ctx, parent, "sys/namespaces/"+path.Base(ns))
		if err != nil {
			return nil, err
		}
		want := map[string]any{"custom_metadata": fields["custom_metadata"]}
		if want["custom_metadata"] == nil {
			want["custom_metadata"] = map[string]any{}
		}
		out = append(out, &move.Object{
			Kind: kindNamespace, Name: ns, Want: want, Current: v.reader("", "sys/namespaces/"+ns),
			Write: func(ctx context.Context, o *move.Object) (*command.Response, error) {
				if o.Now == nil {
					return v.Destination.Send(ctx, http.MethodPost, "", "sys/namespaces/"+ns, o.Want)
				}
				theirs, _ := o.Want["custom_metadata"].(map[string]any)
				ours, _ := o.Now["custom_metadata"].(map[string]any)
				patch := map[string]any{}
				for name := range ours {
					patch[name] = nil // removes it
				}
				maps.Copy(patch, theirs)
				return v.Destination.Send(ctx, http.MethodPatch, "", "sys/namespaces/"+ns, map[string]any{"custom_metadata": patch})
			},
		})
	}
	return out, nil
}

// configFields are what a mount can be tuned with, as sys/mounts shows it.
var configFields = []string{
	"default_lease_ttl", "max_lease_ttl", "force_no_cache", "audit_non_hmac_request_keys", "audit_non_hmac_response_keys",
	"passthrough_request_headers", "allowed_response_headers", "listing_visibility", "token_type", "user_lockout_config",
}

// described is a mount with its configuration flat.
func described(about map[string]any) map[string]any {
	if about == nil {
		return nil
	}
	out := map[string]any{"type": about["type"], "description": about["description"], "options": about["options"], "local": about["local"]}
	if out["type"] == "generic" {
		out["type"] = "kv"
	}
	if options, ok := out["options"].(map[string]any); ok && out["type"] == "kv" && options["version"] == "1" {
		out["options"] = nil // as without options
	}
	config, _ := about["config"].(map[string]any)
	for _, name := range configFields {
		out["config."+name] = config[name]
	}
	// That of tokens that is the same as none.
	if out["config.token_type"] == "default-service" {
		out["config.token_type"] = nil
	}
	return out
}

// mount is the object of a mount below sys/mounts/ or sys/auth/.
func (v *Inventory) mount(kind, at string, m *Mount) *move.Object {
	return &move.Object{
		Kind: kind, Namespace: m.Namespace, Name: m.Path + "/", Want: described(m.Fields),
		Current: func(ctx context.Context) (map[string]any, error) {
			all, err := v.Destination.Fields(ctx, m.Namespace, at)
			if err != nil {
				return nil, err
			}
			about, _ := all[m.Path+"/"].(map[string]any)
			return described(about), nil
		},
		Write: func(ctx context.Context, o *move.Object) (*command.Response, error) {
			config, body := map[string]any{}, map[string]any{}
			for name, value := range o.Body() {
				if field, ok := strings.CutPrefix(name, "config."); ok {
					config[field] = value
				} else if slices.Contains([]string{"type", "description", "options", "local"}, name) {
					body[name] = value
				}
			}
			if o.Now == nil {
				if options, ok := m.Fields["options"].(map[string]any); ok {
					body["options"] = options // also a version of 1, which is compared as none
				}
				body["config"] = config
				return v.Destination.Send(ctx, http.MethodPost, m.Namespace, at+"/"+m.Path, body)
			}
			config["description"] = o.Want["description"]
			return v.Destination.Send(ctx, http.MethodPost, m.Namespace, at+"/"+m.Path+"/tune", config)
		},
	}
}

func (v *Inventory) engines(ctx context.Context) ([]*move.Object, error) {
	var out []*move.Object
	for _, m := range v.Engines {
		if m.KV() == 0 {
			v.skip(kindEngine, m.Namespace, m.Path+"/", "what an engine of type "+m.Type+" keeps cannot be read: enable and configure one at the destination")
			continue
		}
		out = append(out, v.mount(kindEngine, "sys/mounts", m))
		if m.KV() == 2 {
			config, err := v.kvConfig(ctx, m)
			if err != nil {
				return nil, err
			}
			out[len(out)-1] = both(out[len(out)-1], config)
		}
	}
	return out, nil
}

// kvConfig is the object of the settings of a key/value mount of version 2.
func (v *Inventory) kvConfig(ctx context.Context, m *Mount) (*move.Object, error) {
	fields, err := v.Source.Fields(ctx, m.Namespace, m.Path+"/config")
	if err != nil {
		return nil, err
	}
	want := map[string]any{"max_versions": fields["max_versions"], "cas_required": fields["cas_required"], "delete_version_after": fields["delete_version_after"]}
	for name, value := range want {
		if value == nil {
			delete(want, name)
		}
	}
	if after, _ := want["delete_version_after"].(string); strings.HasPrefix(after, "-") {
		want["delete_version_after"] = "0s"
	}
	return &move.Object{Want: want, Namespace: m.Namespace, Current: v.reader(m.Namespace, m.Path+"/config"), Write: v.Destination.Post(m.Path + "/config")}, nil
}

// both is one object of a mount and its settings.
func both(mount, settings *move.Object) *move.Object {
	const prefix = "settings."
	current, write := mount.Current, mount.Write
	for name, value := range settings.Want {
		mount.Want[prefix+name] = value
	}
	mount.Current = func(ctx context.Context) (map[string]any, error) {
		now, err := current(ctx)
		if now == nil || err != nil || now["type"] != "kv" || version(now) != "2" {
			return now, err
		}
		fields, err := settings.Current(ctx)
		for name, value := range fields {
			now[prefix+name] = value
		}
		return now, err
	}
	mount.Write = func(ctx context.Context, o *move.Object) (*command.Response, error) {
		if a, err := write(ctx, o); err != nil {
			return a, err
		}
		return settings.Write(ctx, settings)
	}
	return mount
}

func version(mount map[string]any) any {
	options, _ := mount["options"].(map[string]any)
	return options["version"]
}

// builtIn are the types of auth methods that every Coffer has.
var builtIn = []string{"approle", "cert", "userpass", "saml"}

func (v *Inventory) methods(ctx context.Context) ([]*move.Object, error) {
	plugins, err := v.plugins(ctx)
	if err != nil {
		return nil, err
	}
	var out []*move.Object
	for _, m := range v.Methods {
		switch {
		case m.Type == "token":
		case slices.Contains(builtIn, m.Type), slices.Contains(plugins, m.Type):
			out = append(out, v.mount(kindMethod, "sys/auth", m))
		default:
			v.skipped[m] = true
			v.skip(kindMethod, m.Namespace, m.Path+"/", "the destination has no auth method of type "+m.Type+": register a plugin that is one, then import again (docs/plugins.md)")
		}
	}
	v.mu.Lock()
	clear(v.theirs)
	v.mu.Unlock()
	return out, nil
}

// plugins returns the auth methods that the destination has as plugins.
func (v *Inventory) plugins(ctx context.Context) ([]string, error) {
	a, err := v.Destination.Send(ctx, "LIST", "", "sys/plugins/catalog/auth", nil)
	switch status := command.StatusOf(err); {
	case status == http.StatusNotFound, status == http.StatusForbidden, status == http.StatusBadRequest:
		return nil, nil // none, or they cannot be known: those methods are skipped
	case err != nil:
		return nil, err
	}
	return command.StringsOf(a.Data()["keys"]), nil
}

// accessor returns the accessor that an auth method of the source has at the destination, "" if it is not there.
func (v *Inventory) accessor(ctx context.Context, of string) (string, error) {
	m := v.accessors[of]
	if m == nil {
		return "", nil
	}
	v.mu.Lock()
	all := v.theirs[m.Namespace]
	v.mu.Unlock()
	if all == nil {
		var err error
		if all, err = v.Destination.Fields(ctx, m.Namespace, "sys/auth"); err != nil {
			return "", err
		}
		v.mu.Lock()
		v.theirs[m.Namespace] = all
		v.mu.Unlock()
	}
	about, _ := all[m.Path+"/"].(map[string]any)
	accessor, _ := about["accessor"].(string)
	return accessor, nil
}
