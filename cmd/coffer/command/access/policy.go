package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/hashicorp/hcl/hcl/printer"
	"github.com/urfave/cli/v3"
)

const policyPath = "sys/policies/acl/"

func PolicyCommand() *cli.Command {
	return command.Group("policy", "write and read policies, which say what tokens may do", `Commands for policies. A policy lists paths and what may be done there.

Examples:

  $ coffer policy write app app.hcl
  $ coffer policy read app`,
		command.New(command.Spec{
			Name: "read", Args: "NAME", Min: 1, Max: 1, Usage: "print a policy",
			Help: `Prints a policy as it was written.

Examples:

  $ coffer policy read app
  $ coffer policy read app >app.hcl`,
		}, policyRead),
		command.New(command.Spec{
			Name: "write", Args: "NAME FILE|-", Min: 2, Max: 2, Usage: "create or replace a policy",
			Help: `Creates or replaces a policy with the content of a file or of stdin. Tokens which have it are bound by it at once.

Examples:

  $ coffer policy write app app.hcl
  $ echo 'path "secret/data/app" { capabilities = ["read"] }' | coffer policy write app -`,
		}, policyWrite),
		command.New(command.Spec{
			Name: "list", Usage: "list the policies",
			Help: `Lists the names of all policies.

Examples:

  $ coffer policy list
  $ coffer policy list -format=json`,
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Send(ctx, command.Request{Method: "LIST", Path: "sys/policies/acl"})
			if err != nil {
				return err
			}
			return c.PrintList("", command.StringsOf(a.Data()["keys"]))
		}),
		command.New(command.Spec{
			Name: "delete", Args: "NAME", Min: 1, Max: 1, Usage: "delete a policy",
			Help: `Deletes a policy. Tokens which have it lose what it allowed at once.

Examples:

  $ coffer policy delete app
  $ coffer policy delete team-a`,
		}, func(ctx context.Context, c *command.Call) error {
			if _, err := c.Remove(ctx, policyPath+c.Path(0)); err != nil {
				return err
			}
			c.Sayf("Success! Deleted the policy (if it existed): %s", c.Path(0))
			return nil
		}),
		command.New(command.Spec{
			Name: "test", Args: "PATH", Min: 1, Max: 1, Usage: "show what a token with policies may do on a path",
			Help: `Shows what a token with the given policies could do on a path: stored ones by name, and one in a file that need not be stored.
"deny" means nothing. Templates match nothing.

Examples:

  $ coffer policy test -policy=default -policy=app secret/data/app
  $ coffer policy test -file=app.hcl secret/data/app`,
			Flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "policy", Usage: "name of a stored policy; may be given several times"},
				&cli.StringFlag{Name: "file", Usage: "a policy that is not stored, as a file or - for stdin"},
			},
		}, policyTest),
		command.New(command.Spec{
			Name: "fmt", Args: "FILE|-", Min: 1, Max: 1, Usage: "lay a policy file out in the usual way", Local: true,
			Help: `Rewrites a policy file in the usual layout, keeping its comments. With - it does so from stdin to stdout.

Examples:

  $ coffer policy fmt app.hcl
  $ coffer policy fmt - <app.hcl`,
		}, policyFormat),
		passwordCommand())
}

func policyRead(ctx context.Context, c *command.Call) error {
	return readPolicy(ctx, c, policyPath, "coffer policy list")
}

// readPolicy prints a policy of either kind. list is the command that shows those there are.
func readPolicy(ctx context.Context, c *command.Call, prefix, list string) error {
	a, err := c.Get(ctx, prefix+c.Path(0))
	if command.NothingThere(err) {
		return command.ServerErrorf("there is no policy %q; %s shows those there are", c.Path(0), list)
	}
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	policy, ok := a.Data()["policy"].(string)
	if !ok {
		return command.ServerErrorf("the answer holds no policy")
	}
	_, err = fmt.Fprintln(c.Out, strings.TrimRight(policy, "\n"))
	return err
}

func policyTest(ctx context.Context, c *command.Call) error {
	// A slash at the end stays: "secret/metadata/" is listed, "secret/metadata" is not.
	target := strings.TrimLeft(c.Arg(0), "/")
	body := map[string]any{"paths": []string{target}}
	if names := c.StringSlice("policy"); len(names) > 0 {
		body["policies"] = names
	}
	if file := c.String("file"); file != "" {
		text, err := readFile(ctx, c, file)
		if err != nil {
			return command.Usagef("reading the policy: %w", err)
		}
		body["policy"] = text
	}
	if len(body) == 1 {
		return command.Usagef("give -policy, -file or both")
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/capabilities", Body: body})
	if err != nil {
		return err
	}
	list := command.StringsOf(a.Data()["capabilities"])
	if c.Format() != command.FormatTable {
		return c.PrintValue(list)
	}
	return c.PrintList("", []string{strings.Join(list, ", ")})
}

func policyWrite(ctx context.Context, c *command.Call) error { return writePolicy(ctx, c, policyPath) }

// writePolicy writes a policy of either kind, from a file or stdin.
func writePolicy(ctx context.Context, c *command.Call, prefix string) error {
	policy, err := readFile(ctx, c, c.Arg(1))
	if err != nil {
		return command.Usagef("reading the policy: %w", err)
	}
	if strings.TrimSpace(policy) == "" {
		return command.Usagef("reading the policy: %s is empty", command.Source(c.Arg(1)))
	}
	a, err := c.Put(ctx, prefix+c.Path(0), map[string]string{"policy": policy})
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	c.Sayf("Success! Uploaded policy: %s", c.Path(0))
	return nil
}

// readFile reads the file of this name, or stdin for "-".
func readFile(ctx context.Context, c *command.Call, name string) (string, error) {
	if name == "-" {
		return c.ReadStdin(ctx)
	}
	b, err := os.ReadFile(name)
	return string(b), err
}

// Bounds of what is given to the HCL parser, which recurses without a limit of its own.
const (
	maxPolicyBytes = 256 << 10
	maxPolicyDepth = 16
)

func formatPolicy(text string) ([]byte, error) {
	if len(text) > maxPolicyBytes {
		return nil, fmt.Errorf("it is larger than %s", table.Size(maxPolicyBytes))
	}
	depth := 0
	for _, r := range text {
		switch r {
		case '{', '[':
			if depth++; depth > maxPolicyDepth {
				return nil, fmt.Errorf("its brackets are nested more than %d deep", maxPolicyDepth)
			}
		case '}', ']':
			depth = max(depth-1, 0)
		}
	}
	return printer.Format([]byte(text))
}

func policyFormat(ctx context.Context, c *command.Call) error {
	name := c.Arg(0)
	text, err := readFile(ctx, c, name)
	if err != nil {
		return command.Usagef("reading the policy: %w", err)
	}
	formatted, err := formatPolicy(text)
	if err != nil {
		return command.Usagef("%s is not a policy: %w", command.Source(name), err)
	}
	if name == "-" {
		_, err := c.Out.Write(formatted)
		return err
	}
	return replaceFile(name, formatted)
}

// replaceFile changes the content of an existing file and keeps its mode.
func replaceFile(name string, content []byte) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return command.Usagef("%w", err)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(name, content, info.Mode().Perm())
}
