// Package githubapps has "coffer sync github-apps": the GitHub Apps that destinations of type repohost sign in as.
package githubapps

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const appsPath = "sys/sync/github-apps"

// Command is "coffer sync github-apps".
func Command() *cli.Command {
	return command.Group("github-apps", "manage the GitHub Apps that destinations sign in as", `Commands for GitHub Apps. A destination of type repohost signs in as one with app_name and installation_id, instead of access_token.

Examples:

  $ coffer sync github-apps write deployer app_id=12345 private_key=@deployer.pem
  $ coffer sync destinations write repohost/web app_name=deployer installation_id=67890 repository_owner=acme repository_name=web`,
		listCommand(), readCommand(), writeCommand(), deleteCommand())
}

func noApp(name string) error {
	return command.ServerErrorf("there is no GitHub App %s; coffer sync github-apps list shows them", table.Printable(name))
}

func listCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Usage: "list GitHub Apps",
		Help: `Lists the GitHub Apps of the namespace.

Examples:

  $ coffer sync github-apps list
  $ coffer sync github-apps list -format=json`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: "LIST", Path: appsPath})
		if command.NothingThere(err) {
			return command.ServerErrorf("there are no GitHub Apps; coffer sync github-apps write -h shows how to store one")
		}
		if err != nil {
			return err
		}
		return c.PrintList("Name", command.StringsOf(a.Data()["keys"]))
	})
}

func readCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "read", Args: "NAME", Min: 1, Max: 1, Usage: "show a GitHub App",
		Help: `Shows a GitHub App. The fingerprint is that of its key in the app's settings at GitHub; the key itself is masked.

Examples:

  $ coffer sync github-apps read deployer
  $ coffer sync github-apps read -field=fingerprint deployer`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, appsPath+"/"+c.Path(0))
		if command.NothingThere(err) {
			return noApp(c.Path(0))
		}
		return c.PrintOr(a, err)
	})
}

func writeCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "write", Args: "NAME [DATA …]", Min: 1, Max: -1, Usage: "store or change a GitHub App",
		Help: `Stores a GitHub App, or changes the fields that are given: app_id, private_key and, for an installation of GitHub other than
github.com, enterprise_url. Destinations that sign in as the app use a new key at once.

` + command.DataHelp + `

Examples:

  $ coffer sync github-apps write deployer app_id=12345 private_key=@deployer.pem
  $ coffer sync github-apps write deployer private_key=@new.pem`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		data, err := c.ParseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		a, err := c.Put(ctx, appsPath+"/"+c.Path(0), data)
		return c.PrintOr(a, err)
	})
}

func deleteCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "delete", Args: "NAME", Min: 1, Max: 1, Usage: "delete a GitHub App",
		Help: `Deletes a GitHub App that no destination signs in as.

Examples:

  $ coffer sync github-apps delete deployer
  $ coffer sync github-apps list`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: appsPath + "/" + c.Path(0)})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! The GitHub App %s is deleted (if it existed).", c.Path(0))
		return nil
	})
}
