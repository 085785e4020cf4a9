package secretsync_test

import (
	"testing"

	vault "github.com/hashicorp/vault/api"
)

// TestClients writes and reads with the family's Go clients as they are, as infrastructure tools do: create, associate, look for the
// association at once, remove, delete.
func TestClients(t *testing.T) {
	t.Parallel()
	s := newSite(t, "client")
	accessor := s.mount("kv")
	s.secret("kv", "nested/a", "k", "v")
	type secret struct {
		data     object
		warnings []string
	}
	type client struct {
		write       func(path string, data object) (*secret, error)
		patch       func(path string, data object) (*secret, error)
		read        func(path string) (*secret, error)
		list        func(path string) (*secret, error)
		remove      func(path string) (*secret, error)
		description string
	}
	bao := s.n.Client(s.token).Logical()
	config := vault.DefaultConfig()
	config.Address, config.MaxRetries = s.n.URL, 0
	if err := config.ConfigureTLS(&vault.TLSConfig{CACert: s.c.CAFile}); err != nil {
		t.Fatal(err)
	}
	other, err := vault.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	other.SetToken(s.token)
	incumbent := other.Logical()
	of := func(data object, warnings []string) *secret { return &secret{data, warnings} }
	clients := []client{
		{
			description: "bao",
			write: func(path string, data object) (*secret, error) {
				out, err := bao.Write(path, data)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			patch: func(path string, data object) (*secret, error) {
				out, err := bao.JSONMergePatch(t.Context(), path, data)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			read: func(path string) (*secret, error) {
				out, err := bao.Read(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			list: func(path string) (*secret, error) {
				out, err := bao.List(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			remove: func(path string) (*secret, error) {
				out, err := bao.Delete(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
		},
		{
			description: "vault",
			write: func(path string, data object) (*secret, error) {
				out, err := incumbent.Write(path, data)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			patch: func(path string, data object) (*secret, error) {
				out, err := incumbent.JSONMergePatch(t.Context(), path, data)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			read: func(path string) (*secret, error) {
				out, err := incumbent.Read(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			list: func(path string) (*secret, error) {
				out, err := incumbent.List(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
			remove: func(path string) (*secret, error) {
				out, err := incumbent.Delete(path)
				if out == nil {
					return nil, err
				}
				return of(out.Data, out.Warnings), err
			},
		},
	}
	for _, c := range clients {
		t.Run(c.description, func(t *testing.T) {
			must := func(out *secret, err error) object {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if out == nil {
					return nil
				}
				return out.data
			}
			for _, kind := range kinds {
				d := destinations + kind + "/" + c.description
				equal(t, "missing", must(c.read(d)), nil)
				equal(t, "name", must(c.write(d, s.fields(kind)))["name"], c.description)
				equal(t, "type", must(c.patch(d, object{"granularity": "secret-path"}))["type"], kind)
				equal(t, "granularity", part(must(c.read(d)), "options")["granularity_level"], "secret-path")
				equal(t, "listed", must(c.list(destinations + kind))["keys"], []string{c.description})
				must(c.write(d+"/associations/set", object{"mount": "kv", "secret_name": "nested/a"}))
				e := part(part(must(c.read(d+"/associations")), "associated_secrets"), accessor+"/nested/a")
				equal(t, kind, []any{e["accessor"], e["secret_name"], e["sync_status"]}, []any{accessor, "nested/a", "SYNCED"})
				equal(t, "totals", must(c.list("sys/sync/associations"))["total_secrets"], 1)
				must(c.write(d+"/associations/remove", object{"mount": "kv", "secret_name": "nested/a"}))
				equal(t, "left", part(must(c.read(d+"/associations")), "associated_secrets"), object{})
				equal(t, "deleted", must(c.remove(d)), nil)
				equal(t, "gone", must(c.read(d)), nil)
			}
			equal(t, "config", must(c.patch("sys/sync/config", object{"queue_capacity": 7}))["queue_capacity"], 7)
			equal(t, "config", must(c.remove("sys/sync/config"))["queue_capacity"], 1000000)
		})
	}
}
