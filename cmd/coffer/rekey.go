package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func rekeyCommand() *cli.Command {
	return command(spec{
		name: "rekey", args: "[KEY | -]", max: 1, usage: "replace the unseal keys or the recovery keys",
		help: `Replaces the unseal keys by new ones, or with -target=recovery the recovery keys. People begin with -init, then give enough of the
present shares, from wherever they are; the last one gets the new shares. The unseal keys come with a new root key: the former
shares then open only data directories and snapshots from before. With -verify at -init the new shares take effect only once
enough of them were given back, with -verify instead of -init.

Without an argument the share is asked for and not shown: an argument stays in the shell's history. Compare the nonce that is
shown with the others: it tells your attempt from another.

Examples:

  $ coffer operator rekey -init -key-shares=5 -key-threshold=3 -verify
  $ coffer operator rekey -nonce=2dbd10f1-8528-4246-89e7-82b25b8aba63
  $ coffer operator rekey -verify
  $ coffer operator rekey -target=recovery -status`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "init", Usage: "begin"},
			&cli.BoolFlag{Name: "cancel", Usage: "give up; with -verify only start the verification again"},
			&cli.BoolFlag{Name: "status", Usage: "only show how far it is"},
			&cli.BoolFlag{Name: "verify", Usage: "with -init, ask for verification; else, give shares of the new key"},
			&cli.StringFlag{Name: "target", Value: "unseal", Usage: "`unseal|recovery`: which keys"},
			&cli.IntFlag{Name: "key-shares", Aliases: []string{"n"}, Value: 5, Usage: "split the new key into `N` shares"},
			&cli.IntFlag{Name: "key-threshold", Aliases: []string{"t"}, Value: 3, Usage: "`N` of the new shares are enough"},
			&cli.StringFlag{Name: "nonce", Usage: "`NONCE` of the attempt (default: the one in progress)"},
			&cli.StringFlag{Name: "pgp-keys", Hidden: true}, &cli.BoolFlag{Name: "backup", Hidden: true},
		},
	}, ceremony(rekey))
}

const ceremonyHint = `Key ceremonies need a token with sudo on their paths, such as a root token. If no such token is left, add a listener on
127.0.0.1 with enable_unauthenticated_ceremonies = true to the configuration of the active node, restart it, and use its address.`

// ceremony gives a command's errors the hint that a rejected key ceremony needs.
func ceremony(do func(context.Context, *call) error) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		err := do(ctx, c)
		var e *requestError
		if errors.As(err, &e) {
			e.denied = ceremonyHint
		}
		return err
	}
}

func rekey(ctx context.Context, c *call) error {
	for _, name := range []string{"pgp-keys", "backup"} {
		if c.IsSet(name) {
			return usagef("-%s: encrypting keys with PGP is not supported", name)
		}
	}
	base := "sys/rekey/"
	switch c.String("target") {
	case "unseal", "barrier":
	case "recovery":
		base = "sys/rekey-recovery-key/"
	default:
		return usagef("-target is %q, want unseal or recovery", c.String("target"))
	}
	if err := c.oneOf("init", "cancel", "status"); err != nil {
		return err
	}
	path := base + "init"
	if c.Bool("verify") && !c.Bool("init") {
		path = base + "verify"
	}
	switch {
	case c.Bool("init"):
		return c.rekeyInit(ctx, path)
	case c.Bool("cancel"):
		if _, err := c.send(ctx, request{method: http.MethodDelete, path: path, query: nonceQuery(c)}); err != nil {
			return err
		}
		c.sayf("Success! Cancelled, if there was anything to cancel.")
		return nil
	case c.Bool("status"):
		s, err := c.rekeyStatus(ctx, path)
		if err != nil {
			return err
		}
		return c.printRekey(s)
	}
	return c.rekeyShare(ctx, base, path)
}

// oneOf reports, as an error, that more than one of the flags are set, or one and an argument.
func (c *call) oneOf(names ...string) error {
	set := ""
	for _, name := range names {
		switch {
		case !c.Bool(name):
		case set != "":
			return usagef("-%s and -%s exclude each other", set, name)
		default:
			set = name
		}
	}
	if set != "" && c.arg(0) != "" {
		return usagef("-%s takes no key", set)
	}
	return nil
}

func nonceQuery(c *call) url.Values {
	if v := c.String("nonce"); v != "" {
		return url.Values{"nonce": {v}}
	}
	return nil
}

func (c *call) rekeyInit(ctx context.Context, path string) error {
	a, err := c.put(ctx, path, map[string]any{
		"secret_shares": c.Int("key-shares"), "secret_threshold": c.Int("key-threshold"), "require_verification": c.Bool("verify"),
	})
	if err != nil {
		return err
	}
	var s api.RotateStatusResponse
	if err := decodeRaw(a.raw, &s); err != nil {
		return serverErrorf("the answer is not the status of a rekey: %v", err)
	}
	return c.printRekey(s)
}

func (c *call) rekeyStatus(ctx context.Context, path string) (s api.RotateStatusResponse, err error) {
	a, err := c.get(ctx, path)
	if err != nil {
		return s, err
	}
	if err := decodeRaw(a.raw, &s); err != nil {
		return s, serverErrorf("the answer is not the status of a rekey: %v", err)
	}
	return s, nil
}

// printRekey shows a status, of a rekey or of its verification.
func (c *call) printRekey(s api.RotateStatusResponse) error {
	if c.format() != formatTable {
		return c.printValue(s)
	}
	required := s.Required
	if c.Bool("verify") && !c.Bool("init") {
		required = s.T
	}
	rows := []row{{"Nonce", s.Nonce}, {"Started", s.Started}}
	if s.Started {
		rows = append(rows, row{"Progress", fmt.Sprintf("%d/%d", s.Progress, required)}, row{"New Shares", s.N}, row{"New Threshold", s.T})
	}
	if s.VerificationRequired {
		rows = append(rows, row{"Verification Required", true}, row{"Verification Nonce", s.VerificationNonce})
	}
	return c.printTable(rows)
}

// rekeyShare gives one share, of the present key or of the new one.
func (c *call) rekeyShare(ctx context.Context, base, path string) error {
	s, err := c.rekeyStatus(ctx, path)
	if err != nil {
		return err
	}
	if !s.Started {
		return usagef("no rekey is in progress: begin one with -init")
	}
	key, err := c.readShare(ctx, s.Nonce)
	if err != nil {
		return err
	}
	to := base + "update"
	if c.Bool("verify") {
		to = path
	}
	a, err := c.put(ctx, to, map[string]string{"key": key, "nonce": c.nonce(s.Nonce)})
	if err != nil {
		return err
	}
	var r api.RotateStatusResponse
	if err := decodeRaw(a.raw, &r); err != nil {
		return serverErrorf("the answer is not the status of a rekey: %v", err)
	}
	for _, w := range a.secret.Warnings {
		c.warnf("WARNING: %s", w)
	}
	switch {
	case !r.Complete:
		return c.printRekey(r)
	case c.format() != formatTable:
		return c.printValue(r)
	case c.Bool("verify"):
		c.sayf("Success! The new keys are verified and in effect.")
		return nil
	}
	return c.printNewKeys(r)
}

func (c *call) printNewKeys(r api.RotateStatusResponse) error {
	for i, k := range r.KeysB64 {
		fmt.Fprintf(c.out, "Key %d: %s\n", i+1, k)
	}
	if r.VerificationRequired {
		_, err := fmt.Fprintf(c.out, `
Verification nonce: %s

The new keys are not in effect yet: hand the shares out, then let %d of their holders give them back with
"coffer operator rekey -verify". Until then the present keys stay.
`, r.VerificationNonce, r.T)
		return err
	}
	_, err := fmt.Fprintf(c.out, `
The key is now split into %d shares, of which any %d are enough. Hand them to different people now: they are stored
nowhere. The former shares are of use for snapshots from before only.
`, r.N, r.T)
	return err
}

// readShare is readSecret for a share of an attempt, which it names to the user who types.
func (c *call) readShare(ctx context.Context, nonce string) (string, error) {
	if c.arg(0) == "" && isTerminal(c.in) {
		c.warnf("Nonce of the attempt: %s", nonce)
	}
	return c.readSecret(ctx, c.arg(0), "key share")
}

// nonce is -nonce, or that of the attempt in progress.
func (c *call) nonce(inProgress string) string {
	if v := c.String("nonce"); v != "" {
		return v
	}
	return inProgress
}
