// Command coffer is the server and its command line in one binary.
//
// The client commands speak HTTP to a running server and keep nothing but a token file. This package has the tree of commands; they are in
// the packages below command, one for each topic, and the server is in node. Start reading at root and command.Call. Exit statuses: 0 done, 1 the mistake is on this side, 2 the server refused or was not reached.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/access"
	"github.com/coffer-project/coffer/cmd/coffer/command/cloud"
	"github.com/coffer-project/coffer/cmd/coffer/command/clusters"
	"github.com/coffer-project/coffer/cmd/coffer/command/completion"
	"github.com/coffer-project/coffer/cmd/coffer/command/debug"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/files"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/login"
	"github.com/coffer-project/coffer/cmd/coffer/command/mounts"
	"github.com/coffer-project/coffer/cmd/coffer/command/operator"
	"github.com/coffer-project/coffer/cmd/coffer/command/paths"
	"github.com/coffer-project/coffer/cmd/coffer/command/plugin"
	"github.com/coffer-project/coffer/cmd/coffer/command/replication"
	runner "github.com/coffer-project/coffer/cmd/coffer/command/run"
	"github.com/coffer-project/coffer/cmd/coffer/command/saml"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync"
	"github.com/coffer-project/coffer/cmd/coffer/diagnose"
	"github.com/urfave/cli/v3"
)

func main() {
	execute = syscall.Exec
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run executes one command line, args[0] being the program's name, and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd := root()
	prune(cmd, args[1:])
	cmd.Reader, cmd.Writer, cmd.ErrWriter = stdin, stdout, stderr
	return command.Report(stderr, cmd.Run(ctx, args))
}

// prune takes flags and commands from every command that no word of the command line names. It cannot be the one to run, and the library
// prepares all that is there, which would be a third of what a command costs.
func prune(cmd *cli.Command, words []string) {
	for _, c := range cmd.Commands {
		if slices.ContainsFunc(c.Names(), func(name string) bool { return slices.Contains(words, name) }) {
			prune(c, words)
		} else {
			c.Commands, c.Flags, c.HideHelp = nil, nil, true
		}
	}
}

// root is the whole command tree. It is built for each run, because a cli.Command keeps what it parsed.
func root() *cli.Command {
	cmd := command.Group("coffer", "store, share and rotate secrets", rootHelp, slices.Concat(
		command.InGroup("Every day", login.Command(), kv.Command(files.ImportCommand(), files.ExportCommand()), runner.Command(),
			clusters.WhoamiCommand(), clusters.UICommand(), clusters.ContextCommand(), operator.StatusCommand()),
		command.InGroup("Any path of the API", paths.ReadCommand(), paths.WriteCommand(), paths.ListCommand(), paths.DeleteCommand(), paths.PatchCommand(),
			paths.PathHelpCommand(), paths.WrapCommand(), paths.UnwrapCommand()),
		command.InGroup("Access", access.TokenCommand(), access.PolicyCommand(), mounts.AuthCommand(), access.IdentityCommand(), saml.Command()),
		command.InGroup("Engines and delivery", mounts.SecretsCommand(), cloud.Command(), secretsync.Command(), mounts.LeaseCommand(), plugin.Command(),
			importer.Command(), files.ExportCommand()),
		command.InGroup("Cluster", operator.Command(diagnose.Command()), replication.Command(), mounts.NamespaceCommand(), mounts.QuotaCommand(), mounts.AuditCommand(),
			operator.MonitorCommand(), debug.Command(), operator.VersionHistoryCommand(), serverCommand()),
		command.InGroup("This program", login.PrintCommand(), command.FlagsCommand(), versionCommand(), completion.Command(root)))...)
	cmd.Version = version()
	cmd.EnableShellCompletion = true
	cmd.ConfigureShellCompletionCommand = func(c *cli.Command) {
		c.Hidden, c.Category = false, "This program"
		completion.Scripts(c)
		c.Usage = "print the completion script for bash, zsh, fish or pwsh"
	}
	// Errors are returned to run; the library must neither print them nor end the process.
	cmd.ExitErrHandler = func(context.Context, *cli.Command, error) {}
	return cmd
}

const rootHelp = `Coffer keeps secrets on a cluster of servers. One of them is started with "coffer server"; every other command is a client.

Examples:

  $ coffer server -dev
  $ coffer kv put -mount=secret app/db user=app password=-
  $ coffer run -secret=secret/app/db -- ./server

Environment (each COFFER_… variable falls back to BAO_… and then VAULT_…):

  COFFER_CONTEXT          name of the cluster to use, of those that "coffer context" keeps
  COFFER_KEYRING          "off": tokens of contexts are in ~/.coffer-contexts, not in the keyring of the system
  COFFER_ADDR             address of the server (https://127.0.0.1:8200)
  COFFER_TOKEN            token; else that of the context, else the file ~/.coffer-token, else ~/.vault-token
  COFFER_NAMESPACE        namespace of every request
  COFFER_WRAP_TTL         -wrap-ttl of commands that have it
  COFFER_FORMAT           table, json or yaml
  COFFER_CACERT           file with the CA certificates to trust
  COFFER_CAPATH           directory of such files
  COFFER_CLIENT_CERT      certificate to present, with COFFER_CLIENT_KEY
  COFFER_TLS_SERVER_NAME  name to expect in the server's certificate
  COFFER_SKIP_VERIFY      true turns certificate checks off
  COFFER_CLIENT_TIMEOUT   limit of one request (60s)
  COFFER_MAX_RETRIES      how often a request the server could not serve is repeated (0)`
