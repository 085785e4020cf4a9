package main

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/urfave/cli/v3"
)

// identityKind is entities or groups: the same commands over two parts of the API.
type identityKind struct {
	name, plural string
	columns      []row // what a list shows beside name and id: what the server tells of each, and its heading
	example      string
}

func identityCommand() *cli.Command {
	return group("identity", "see people, programs and groups", `Commands to see entities, which are the people and programs that log in, and groups of them. They are changed with "coffer write":
coffer path-help identity lists the paths.

Examples:

  $ coffer identity entity list
  $ coffer write identity/group name=payments policies=app member_entity_ids=4f0c…`,
		identityKind{"entity", "entities", []row{{"aliases", "Aliases"}}, "ada"}.commands(),
		identityKind{"group", "groups", []row{{"type", "Type"}, {"num_member_entities", "Members"}}, "payments"}.commands())
}

func (k identityKind) commands() *cli.Command {
	cmd := "coffer identity " + k.name
	return group(k.name, "list and read "+k.plural, "Commands to see "+k.plural+".\n\nExamples:\n\n  $ "+cmd+" list\n  $ "+cmd+" read "+k.example,
		command(spec{
			name: "list", usage: "list the " + k.plural,
			help: "Lists the " + k.plural + " of the namespace in use.\n\nExamples:\n\n  $ " + cmd + " list\n  $ " + cmd + " list -format=json",
		}, k.list),
		command(spec{
			name: "read", args: "NAME|ID", min: 1, max: 1, usage: "show one",
			help:  "Shows all that is known of a " + k.name + ", by its name or id.\n\nExamples:\n\n  $ " + cmd + " read " + k.example + "\n  $ " + cmd + " read -field=id " + k.example,
			flags: []cli.Flag{fieldFlag()},
		}, k.read))
}

func (k identityKind) list(ctx context.Context, c *call) error {
	a, err := c.send(ctx, request{method: "LIST", path: "identity/" + k.name + "/id"})
	if nothingThere(err) {
		return serverErrorf("there are no %s", k.plural)
	}
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printValue(a.data())
	}
	info, _ := a.data()["key_info"].(map[string]any)
	var rows [][]string
	for _, id := range stringsOf(a.data()["keys"]) {
		about, _ := info[id].(map[string]any)
		cells := []string{text(about["name"]), printable(id)}
		for _, column := range k.columns {
			cells = append(cells, identityCell(about[column.key]))
		}
		rows = append(rows, cells)
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	heading := []string{"Name", "ID"}
	for _, column := range k.columns {
		heading = append(heading, text(column.value))
	}
	return c.printColumns(heading, rows)
}

// identityCell shows aliases as "name at mount", and anything else as it is.
func identityCell(v any) string {
	list, ok := v.([]any)
	if !ok {
		return text(v)
	}
	var aliases []string
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			aliases = append(aliases, text(m["name"])+" at "+text(m["mount_path"]))
		}
	}
	return text(strings.Join(aliases, ", "))
}

func (k identityKind) read(ctx context.Context, c *call) error {
	path := "identity/" + k.name + "/name/" + c.path(0)
	a, err := c.get(ctx, path)
	if nothingThere(err) && uuid.Validate(c.path(0)) == nil {
		a, err = c.get(ctx, "identity/"+k.name+"/id/"+c.path(0))
	}
	if nothingThere(err) {
		return serverErrorf("there is no %s %q; coffer identity %s list shows those there are", k.name, c.path(0), k.name)
	}
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}
