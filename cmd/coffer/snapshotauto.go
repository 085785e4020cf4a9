package main

import (
	"context"
	"net/http"

	"github.com/urfave/cli/v3"
)

const snapshotAutoPath = "sys/storage/raft/snapshot-auto/"

func snapshotAutoCommand() *cli.Command {
	return group("snapshot-auto", "snapshots that the cluster takes by itself", `Schedules of snapshots: how often, where to, and how many are kept. Each is verified before it replaces older ones.

Examples:

  $ coffer operator raft snapshot-auto write nightly interval=24h retain=14 storage_type=local path_prefix=nightly
  $ coffer operator raft snapshot-auto status nightly`,
		command(spec{
			name: "write", args: "NAME KEY=VALUE …", min: 2, max: -1, usage: "create a schedule, or change it",
			help: `Creates the schedule NAME, or changes the settings given and leaves the others. A value that begins with @ is read from a file.

storage_type=local needs a local_root in the servers' configuration; path_prefix is relative to it. storage_type=aws-s3 takes
aws_s3_bucket, aws_s3_region, aws_s3_endpoint (of a compatible service), aws_access_key_id, aws_secret_access_key and more:
see docs/operations.md. Without keys the identity of the node is used.

Examples:

  $ coffer operator raft snapshot-auto write nightly interval=24h retain=14 storage_type=local path_prefix=nightly
  $ coffer operator raft snapshot-auto write s3 interval=1h retain=48 storage_type=aws-s3 path_prefix=coffer \
      aws_s3_bucket=backups aws_s3_region=eu-central-1 aws_access_key_id=AKIA… aws_secret_access_key=@secret.txt`,
		}, snapshotAutoWrite),
		command(spec{
			name: "list", usage: "list the schedules",
			help: `Lists the names of all schedules.

Examples:

  $ coffer operator raft snapshot-auto list
  $ coffer operator raft snapshot-auto list -format=json`,
		}, func(ctx context.Context, c *call) error { return listPath(ctx, c, snapshotAutoPath+"config") }),
		command(spec{
			name: "read", args: "NAME", min: 1, max: 1, usage: "show the settings of a schedule",
			help: `Shows the settings of a schedule. Secrets are masked.

Examples:

  $ coffer operator raft snapshot-auto read nightly
  $ coffer operator raft snapshot-auto read -field=retain nightly`,
			flags: []cli.Flag{fieldFlag()},
		}, snapshotAutoShow("config/")),
		command(spec{
			name: "status", args: "NAME", min: 1, max: 1, usage: "show how a schedule is doing",
			help: `Shows when a schedule last succeeded, what went wrong since, and when it runs next.

Examples:

  $ coffer operator raft snapshot-auto status nightly
  $ coffer operator raft snapshot-auto status -field=consecutive_errors nightly`,
			flags: []cli.Flag{fieldFlag()},
		}, snapshotAutoShow("status/")),
		command(spec{
			name: "delete", args: "NAME", min: 1, max: 1, usage: "delete a schedule; its snapshots stay",
			help: `Deletes a schedule. The snapshots it has taken stay where they are.

Examples:

  $ coffer operator raft snapshot-auto delete nightly
  $ coffer operator raft snapshot-auto list`,
		}, func(ctx context.Context, c *call) error {
			if _, err := c.send(ctx, request{method: http.MethodDelete, path: snapshotAutoPath + "config/" + c.path(0)}); err != nil {
				return err
			}
			c.sayf("Success! The schedule %s is gone.", c.path(0))
			return nil
		}))
}

func snapshotAutoWrite(ctx context.Context, c *call) error {
	body, err := c.parseData(ctx, c.Args().Slice()[1:])
	if err != nil {
		return err
	}
	a, err := c.send(ctx, request{method: http.MethodPost, path: snapshotAutoPath + "config/" + c.path(0), body: body})
	if err != nil {
		return err
	}
	c.printWarnings(a)
	c.sayf("Success! The schedule %s is written; coffer operator raft snapshot-auto status %s shows how it does.", c.path(0), c.path(0))
	return nil
}

func snapshotAutoShow(what string) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		a, err := c.get(ctx, snapshotAutoPath+what+c.path(0))
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	}
}
