package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// release is set by the linker: -ldflags "-X main.release=1.2.3".
var release string

// version returns our own version, "dev" for a build that has none.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

func versionCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "version", Usage: "print the version of this binary", Local: true,
		Help: `Prints the version of this binary. The server's own is part of "coffer status".

Examples:

  $ coffer version
  $ coffer -version`,
	}, func(_ context.Context, c *command.Call) error {
		_, err := fmt.Fprintf(c.Out, "Coffer %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	})
}
