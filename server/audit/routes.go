package audit

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/device"
)

// Routes declares the paths that manage devices, on the router of the sys paths.
func (t *Table) Routes(r *engines.Router) {
	const flags = engines.Sudo | engines.RootNamespace
	engines.On(r, engines.Read, "audit", "List the enabled audit devices.", flags, t.serveList).
		Returns("top; *: {description, local: boolean, options: {*: string}, path, type}")
	engines.On(r, engines.Update, "audit/{path...}", "Enable an audit device, once a test record could be written to it.", flags, t.serveEnable)
	engines.On(r, engines.Delete, "audit/{path...}", "Disable an audit device. Its file stays.", flags, t.serveDisable)
	engines.On(r, engines.Update, "audit-hash/{path...}", "Hash a text as an audit device does, to search its log for it.", engines.RootNamespace, t.serveHash).
		Returns("hash")
	engines.On(r, engines.Update, "audit-search/{path...}", "Search the file of an audit device on the active node, within bounds; no values are answered.", flags|engines.ClusterLocal|engines.Active, t.serveSearch).
		Returns(`buckets: [integer], bytes: integer, complete: boolean, ended, from, matches: integer, oldest, records: [{accessor,
			display_name, entity_id, error, id, mount_type, namespace, operation, outcome, path, remote_address, status: integer, time,
			type}], to`)
	t.headerRoutes(r)
}

type noInput struct{}

// deviceInfo is how clients see a device.
type deviceInfo struct {
	Path        string            `json:"path"`
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Options     map[string]string `json:"options"`
	Local       bool              `json:"local"`
}

func (t *Table) serveList(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	list, err := t.List(ctx)
	if err != nil {
		return nil, err
	}
	// Clients read the map at the top level, or below "data", depending on their age.
	data := make(map[string]any, len(list))
	for _, c := range list {
		data[c.Path+"/"] = deviceInfo{
			Path: c.Path + "/", Type: c.Type, Description: c.Description, Options: c.Options, Local: c.Local,
		}
	}
	return &engines.Response{Data: data, Top: data}, nil
}

type enableInput struct {
	Path        string            `json:"path" help:"Name of the device."`
	Type        string            `json:"type" help:"Type of the device: \"file\", \"syslog\" or \"socket\"." max:"64"`
	Description string            `json:"description" help:"Free text." max:"512"`
	Options     engines.StringMap `json:"options" help:"Of all devices: prefix (letters, digits and @:._-), log_raw, hmac_accessor, elide_list_responses. Of a file: file_path (below the file_roots of the configuration; or stdout, stderr, discard), mode. Of syslog: facility, tag. Of a socket: address, socket_type (tcp, udp, unix or unixgram), write_timeout."`
	Local       bool              `json:"local" help:"Keep the device to this cluster: do not replicate it."`
}

func (t *Table) serveEnable(ctx context.Context, _ *engines.Request, in *enableInput) (*engines.Response, error) {
	return nil, t.Enable(ctx, device.Config{
		Path: in.Path, Type: in.Type, Description: in.Description, Options: in.Options, Local: in.Local,
	})
}

type pathInput struct {
	Path string `json:"path" help:"Name of the device."`
}

func (t *Table) serveDisable(ctx context.Context, _ *engines.Request, in *pathInput) (*engines.Response, error) {
	return nil, t.Disable(ctx, in.Path)
}

type hashInput struct {
	Path  string            `json:"path" help:"Name of the device."`
	Input engines.Sensitive `json:"input" help:"The text to hash." required:"true"`
}

func (t *Table) serveHash(ctx context.Context, _ *engines.Request, in *hashInput) (*engines.Response, error) {
	hash, err := t.Hash(ctx, in.Path, in.Input.Reveal())
	if errors.Is(err, ErrNoDevice) {
		return nil, engines.Invalid("unknown audit backend %s/", device.CleanPath(in.Path))
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]string{"hash": hash}}, nil
}
