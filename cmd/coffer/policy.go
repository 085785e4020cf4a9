package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/hashicorp/hcl/hcl/printer"
	"github.com/urfave/cli/v3"
)

const policyPath = "sys/policies/acl/"

func policyCommand() *cli.Command {
	return group("policy", "write and read policies, which say what tokens may do", `Commands for policies. A policy lists paths and what may be done there.

Examples:

  $ coffer policy write app app.hcl
  $ coffer policy read app`,
		command(spec{
			name: "read", args: "NAME", min: 1, max: 1, usage: "print a policy",
			help: `Prints a policy as it was written.

Examples:

  $ coffer policy read app
  $ coffer policy read app >app.hcl`,
		}, policyRead),
		command(spec{
			name: "write", args: "NAME FILE|-", min: 2, max: 2, usage: "create or replace a policy",
			help: `Creates or replaces a policy with the content of a file or of stdin. Tokens which have it are bound by it at once.

Examples:

  $ coffer policy write app app.hcl
  $ echo 'path "secret/data/app" { capabilities = ["read"] }' | coffer policy write app -`,
		}, policyWrite),
		command(spec{
			name: "list", usage: "list the policies",
			help: `Lists the names of all policies.

Examples:

  $ coffer policy list
  $ coffer policy list -format=json`,
		}, func(ctx context.Context, c *call) error {
			a, err := c.send(ctx, request{method: "LIST", path: "sys/policies/acl"})
			if err != nil {
				return err
			}
			return c.printList("", stringsOf(a.data()["keys"]))
		}),
		command(spec{
			name: "delete", args: "NAME", min: 1, max: 1, usage: "delete a policy",
			help: `Deletes a policy. Tokens which have it lose what it allowed at once.

Examples:

  $ coffer policy delete app
  $ coffer policy delete team-a`,
		}, func(ctx context.Context, c *call) error {
			if _, err := c.remove(ctx, policyPath+c.path(0)); err != nil {
				return err
			}
			c.sayf("Success! Deleted the policy (if it existed): %s", c.path(0))
			return nil
		}),
		command(spec{
			name: "fmt", args: "FILE|-", min: 1, max: 1, usage: "lay a policy file out in the usual way", local: true,
			help: `Rewrites a policy file in the usual layout, keeping its comments. With - it does so from stdin to stdout.

Examples:

  $ coffer policy fmt app.hcl
  $ coffer policy fmt - <app.hcl`,
		}, policyFormat),
		passwordCommand())
}

func policyRead(ctx context.Context, c *call) error {
	return c.readPolicy(ctx, policyPath, "coffer policy list")
}

// readPolicy prints a policy of either kind. list is the command that shows those there are.
func (c *call) readPolicy(ctx context.Context, prefix, list string) error {
	a, err := c.get(ctx, prefix+c.path(0))
	if nothingThere(err) {
		return serverErrorf("there is no policy %q; %s shows those there are", c.path(0), list)
	}
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	policy, ok := a.data()["policy"].(string)
	if !ok {
		return serverErrorf("the answer holds no policy")
	}
	_, err = fmt.Fprintln(c.out, strings.TrimRight(policy, "\n"))
	return err
}

func policyWrite(ctx context.Context, c *call) error { return c.writePolicy(ctx, policyPath) }

// writePolicy writes a policy of either kind, from a file or stdin.
func (c *call) writePolicy(ctx context.Context, prefix string) error {
	policy, err := c.readFile(ctx, c.arg(1))
	if err != nil {
		return usagef("reading the policy: %w", err)
	}
	if strings.TrimSpace(policy) == "" {
		return usagef("reading the policy: %s is empty", source(c.arg(1)))
	}
	a, err := c.put(ctx, prefix+c.path(0), map[string]string{"policy": policy})
	if err != nil {
		return err
	}
	c.printWarnings(a)
	c.sayf("Success! Uploaded policy: %s", c.path(0))
	return nil
}

// readFile reads the file of this name, or stdin for "-".
func (c *call) readFile(ctx context.Context, name string) (string, error) {
	if name == "-" {
		return c.readStdin(ctx)
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
		return nil, fmt.Errorf("it is larger than %s", sizeText(maxPolicyBytes))
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

func policyFormat(ctx context.Context, c *call) error {
	name := c.arg(0)
	text, err := c.readFile(ctx, name)
	if err != nil {
		return usagef("reading the policy: %w", err)
	}
	formatted, err := formatPolicy(text)
	if err != nil {
		return usagef("%s is not a policy: %w", source(name), err)
	}
	if name == "-" {
		_, err := c.out.Write(formatted)
		return err
	}
	return replaceFile(name, formatted)
}

// replaceFile changes the content of an existing file and keeps its mode.
func replaceFile(name string, content []byte) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%w", err)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(name, content, info.Mode().Perm())
}
