package snapshot

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

const autoPath = "sys/storage/raft/snapshot-auto/"

func AutoCommand() *cli.Command {
	return command.Group("snapshot-auto", "snapshots that the cluster takes by itself", `Schedules of snapshots: how often, where to, and how many are kept. Each is verified before it replaces older ones.

Examples:

  $ coffer operator raft snapshot-auto write nightly interval=24h retain=14 storage_type=local path_prefix=nightly
  $ coffer operator raft snapshot-auto status nightly`,
		command.New(command.Spec{
			Name: "write", Args: "NAME KEY=VALUE …", Min: 2, Max: -1, Usage: "create a schedule, or change it",
			Help: `Creates the schedule NAME, or changes the settings given and leaves the others. A value that begins with @ is read from a file.

storage_type=local needs a local_root in the servers' configuration; path_prefix is relative to it. storage_type=aws-s3 takes
aws_s3_bucket, aws_s3_region, aws_s3_endpoint (of a compatible service), aws_access_key_id, aws_secret_access_key and more:
see docs/backup.md. Without keys the identity of the node is used.

Examples:

  $ coffer operator raft snapshot-auto write nightly interval=24h retain=14 storage_type=local path_prefix=nightly
  $ coffer operator raft snapshot-auto write s3 interval=1h retain=48 storage_type=aws-s3 path_prefix=coffer \
      aws_s3_bucket=backups aws_s3_region=eu-central-1 aws_access_key_id=AKIA… aws_secret_access_key=@secret.txt`,
		}, autoWrite),
		command.New(command.Spec{
			Name: "list", Usage: "list the schedules",
			Help: `Lists the names of all schedules.

Examples:

  $ coffer operator raft snapshot-auto list
  $ coffer operator raft snapshot-auto list -format=json`,
		}, func(ctx context.Context, c *command.Call) error {
			return command.ListPath(ctx, c, autoPath+"config")
		}),
		command.New(command.Spec{
			Name: "read", Args: "NAME", Min: 1, Max: 1, Usage: "show the settings of a schedule",
			Help: `Shows the settings of a schedule. Secrets are masked.

Examples:

  $ coffer operator raft snapshot-auto read nightly
  $ coffer operator raft snapshot-auto read -field=retain nightly`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, autoShow("config/")),
		command.New(command.Spec{
			Name: "status", Args: "NAME", Min: 1, Max: 1, Usage: "show how a schedule is doing",
			Help: `Shows when a schedule last succeeded, what went wrong since, and when it runs next.

Examples:

  $ coffer operator raft snapshot-auto status nightly
  $ coffer operator raft snapshot-auto status -field=consecutive_errors nightly`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, autoShow("status/")),
		command.New(command.Spec{
			Name: "delete", Args: "NAME", Min: 1, Max: 1, Usage: "delete a schedule; its snapshots stay",
			Help: `Deletes a schedule. The snapshots it has taken stay where they are.

Examples:

  $ coffer operator raft snapshot-auto delete nightly
  $ coffer operator raft snapshot-auto list`,
		}, func(ctx context.Context, c *command.Call) error {
			if _, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: autoPath + "config/" + c.Path(0)}); err != nil {
				return err
			}
			c.Sayf("Success! The schedule %s is gone.", c.Path(0))
			return nil
		}))
}

func autoWrite(ctx context.Context, c *command.Call) error {
	body, err := c.ParseData(ctx, c.Args().Slice()[1:])
	if err != nil {
		return err
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: autoPath + "config/" + c.Path(0), Body: body})
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	c.Sayf("Success! The schedule %s is written; coffer operator raft snapshot-auto status %s shows how it does.", c.Path(0), c.Path(0))
	return nil
}

func autoShow(what string) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, autoPath+what+c.Path(0))
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	}
}
