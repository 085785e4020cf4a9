package access

import (
	"context"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/google/uuid"
	"github.com/urfave/cli/v3"
)

// identityKind is entities or groups: the same commands over two parts of the API.
type identityKind struct {
	name, plural string
	columns      []response.Row // what a list shows beside name and id: what the server tells of each, and its heading
	example      string
}

func IdentityCommand() *cli.Command {
	return command.Group("identity", "see people, programs and groups", `Commands to see entities, which are the people and programs that log in, and groups of them. They are changed with "coffer write":
coffer path-help identity lists the paths.

Examples:

  $ coffer identity entity list
  $ coffer write identity/group name=payments policies=app member_entity_ids=4f0c…`,
		identityKind{"entity", "entities", []response.Row{{Key: "aliases", Value: "Aliases"}}, "ada"}.commands(),
		identityKind{"group", "groups", []response.Row{{Key: "type", Value: "Type"}, {Key: "num_member_entities", Value: "Members"}}, "payments"}.commands())
}

func (k identityKind) commands() *cli.Command {
	cmd := "coffer identity " + k.name
	return command.Group(k.name, "list and read "+k.plural, "Commands to see "+k.plural+".\n\nExamples:\n\n  $ "+cmd+" list\n  $ "+cmd+" read "+k.example,
		command.New(command.Spec{
			Name: "list", Usage: "list the " + k.plural,
			Help: "Lists the " + k.plural + " of the namespace in use.\n\nExamples:\n\n  $ " + cmd + " list\n  $ " + cmd + " list -format=json",
		}, k.list),
		command.New(command.Spec{
			Name: "read", Args: "NAME|ID", Min: 1, Max: 1, Usage: "show one",
			Help:  "Shows all that is known of a " + k.name + ", by its name or id.\n\nExamples:\n\n  $ " + cmd + " read " + k.example + "\n  $ " + cmd + " read -field=id " + k.example,
			Flags: []cli.Flag{command.FieldFlag()},
		}, k.read))
}

func (k identityKind) list(ctx context.Context, c *command.Call) error {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: "identity/" + k.name + "/id"})
	if command.NothingThere(err) {
		return command.ServerErrorf("there are no %s", k.plural)
	}
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(a.Data())
	}
	info, _ := a.Data()["key_info"].(map[string]any)
	var rows [][]string
	for _, id := range command.StringsOf(a.Data()["keys"]) {
		about, _ := info[id].(map[string]any)
		cells := []string{table.Text(about["name"]), table.Printable(id)}
		for _, column := range k.columns {
			cells = append(cells, identityCell(about[column.Key]))
		}
		rows = append(rows, cells)
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	heading := []string{"Name", "ID"}
	for _, column := range k.columns {
		heading = append(heading, table.Text(column.Value))
	}
	return c.PrintColumns(heading, rows)
}

// identityCell shows aliases as "name at mount", and anything else as it is.
func identityCell(v any) string {
	list, ok := v.([]any)
	if !ok {
		return table.Text(v)
	}
	var aliases []string
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			aliases = append(aliases, table.Text(m["name"])+" at "+table.Text(m["mount_path"]))
		}
	}
	return table.Text(strings.Join(aliases, ", "))
}

func (k identityKind) read(ctx context.Context, c *command.Call) error {
	path := "identity/" + k.name + "/name/" + c.Path(0)
	a, err := c.Get(ctx, path)
	if command.NothingThere(err) && uuid.Validate(c.Path(0)) == nil {
		a, err = c.Get(ctx, "identity/"+k.name+"/id/"+c.Path(0))
	}
	if command.NothingThere(err) {
		return command.ServerErrorf("there is no %s %q; coffer identity %s list shows those there are", k.name, c.Path(0), k.name)
	}
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}
