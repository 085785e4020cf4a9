package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func rekeyCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rekey", Args: "[KEY | -]", Max: 1, Usage: "replace the unseal keys or the recovery keys",
		Help: `Replaces the unseal keys by new ones, or with -target=recovery the recovery keys. People begin with -init, then give enough of the
present shares, from wherever they are; the last one gets the new shares. The unseal keys come with a new root key: the former
shares then open only data directories and snapshots from before. With -verify at -init the new shares take effect only once
enough of them were given back, with -verify instead of -init.

With -pgp-keys at -init each new share is encrypted to the OpenPGP key of its holder. With -backup the server keeps the encrypted
shares, so that a lost answer is no lost key: -backup-retrieve shows them, -backup-delete deletes them.

Without an argument the share is asked for and not shown: an argument stays in the shell's history. Compare the nonce that is
shown with the others: it tells your attempt from another.

Examples:

  $ coffer operator rekey -init -key-shares=5 -key-threshold=3 -verify
  $ coffer operator rekey -nonce=2dbd10f1-8528-4246-89e7-82b25b8aba63
  $ coffer operator rekey -verify
  $ coffer operator rekey -target=recovery -status
  $ coffer operator rekey -init -n=2 -t=2 -pgp-keys=ada.asc,eve.asc -backup`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "init", Usage: "begin"},
			&cli.BoolFlag{Name: "cancel", Usage: "give up; with -verify only start the verification again"},
			&cli.BoolFlag{Name: "status", Usage: "only show how far it is"},
			&cli.BoolFlag{Name: "verify", Usage: "with -init, ask for verification; else, give shares of the new key"},
			&cli.StringFlag{Name: "target", Value: "unseal", Usage: "`unseal|recovery`: which keys"},
			&cli.IntFlag{Name: "key-shares", Aliases: []string{"n"}, Value: 5, Usage: "split the new key into `N` shares"},
			&cli.IntFlag{Name: "key-threshold", Aliases: []string{"t"}, Value: 3, Usage: "`N` of the new shares are enough"},
			&cli.StringFlag{Name: "nonce", Usage: "`NONCE` of the attempt (default: the one in progress)"},
			&cli.StringFlag{Name: "pgp-keys", Usage: "with -init, encrypt the shares to the public keys in `FILE,…`, one for each share"},
			&cli.BoolFlag{Name: "backup", Usage: "with -init and -pgp-keys, keep the encrypted shares on the server"},
			&cli.BoolFlag{Name: "backup-retrieve", Usage: "show the encrypted shares that are kept"},
			&cli.BoolFlag{Name: "backup-delete", Usage: "delete the encrypted shares that are kept"},
		},
	}, ceremony(rekey))
}

const ceremonyHint = `Key ceremonies need a token with sudo on their paths, such as a root token. If no such token is left, add a listener on
127.0.0.1 with enable_unauthenticated_ceremonies = true to the configuration of the active node, restart it, and use its address.`

// ceremony gives a command's errors the hint that a rejected key ceremony needs.
func ceremony(do func(context.Context, *command.Call) error) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		err := do(ctx, c)
		var e *command.RequestError
		if errors.As(err, &e) {
			e.Denied = ceremonyHint
		}
		return err
	}
}

func rekey(ctx context.Context, c *command.Call) error {
	base, backup := "sys/rekey/", "sys/rekey/backup"
	switch c.String("target") {
	case "unseal", "barrier":
	case "recovery":
		base, backup = "sys/rekey-recovery-key/", "sys/rekey/recovery-key-backup"
	default:
		return command.Usagef("-target is %q, want unseal or recovery", c.String("target"))
	}
	if err := oneOf(c, "init", "cancel", "status", "backup-retrieve", "backup-delete"); err != nil {
		return err
	}
	path := base + "init"
	if c.Bool("verify") && !c.Bool("init") {
		path = base + "verify"
	}
	switch {
	case c.Bool("init"):
		return rekeyInit(ctx, c, path)
	case c.IsSet("pgp-keys") || c.Bool("backup"):
		return command.Usagef("-pgp-keys and -backup go with -init")
	case c.Bool("backup-retrieve"):
		return c.PrintOr(c.Get(ctx, backup))
	case c.Bool("backup-delete"):
		if _, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: backup}); err != nil {
			return err
		}
		c.Sayf("Success! No shares are kept.")
		return nil
	case c.Bool("cancel"):
		if _, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: path, Query: nonceQuery(c)}); err != nil {
			return err
		}
		c.Sayf("Success! Cancelled, if there was anything to cancel.")
		return nil
	case c.Bool("status"):
		s, err := rekeyStatus(ctx, c, path)
		if err != nil {
			return err
		}
		return printRekey(c, s)
	}
	return rekeyShare(ctx, c, base, path)
}

// oneOf reports, as an error, that more than one of the flags are set, or one and an argument.
func oneOf(c *command.Call, names ...string) error {
	set := ""
	for _, name := range names {
		switch {
		case !c.Bool(name):
		case set != "":
			return command.Usagef("-%s and -%s exclude each other", set, name)
		default:
			set = name
		}
	}
	if set != "" && c.Arg(0) != "" {
		return command.Usagef("-%s takes no key", set)
	}
	return nil
}

func nonceQuery(c *command.Call) url.Values {
	if v := c.String("nonce"); v != "" {
		return url.Values{"nonce": {v}}
	}
	return nil
}

func rekeyInit(ctx context.Context, c *command.Call, path string) error {
	body := map[string]any{
		"secret_shares": c.Int("key-shares"), "secret_threshold": c.Int("key-threshold"), "require_verification": c.Bool("verify"),
	}
	if c.Bool("backup") {
		body["backup"] = true
	}
	if err := addPGPKeys(c, body); err != nil {
		return err
	}
	a, err := c.Put(ctx, path, body)
	if err != nil {
		return err
	}
	var s api.RotateStatusResponse
	if err := command.DecodeRaw(a.Raw, &s); err != nil {
		return command.ServerErrorf("the answer is not the status of a rekey: %v", err)
	}
	return printRekey(c, s)
}

func rekeyStatus(ctx context.Context, c *command.Call, path string) (s api.RotateStatusResponse, err error) {
	a, err := c.Get(ctx, path)
	if err != nil {
		return s, err
	}
	if err := command.DecodeRaw(a.Raw, &s); err != nil {
		return s, command.ServerErrorf("the answer is not the status of a rekey: %v", err)
	}
	return s, nil
}

// printRekey shows a status, of a rekey or of its verification.
func printRekey(c *command.Call, s api.RotateStatusResponse) error {
	if c.Format() != command.FormatTable {
		return c.PrintValue(s)
	}
	required := s.Required
	if c.Bool("verify") && !c.Bool("init") {
		required = s.T
	}
	rows := []response.Row{{Key: "Nonce", Value: s.Nonce}, {Key: "Started", Value: s.Started}}
	if s.Started {
		rows = append(rows, response.Row{Key: "Progress", Value: fmt.Sprintf("%d/%d", s.Progress, required)},
			response.Row{Key: "New Shares", Value: s.N}, response.Row{Key: "New Threshold", Value: s.T})
		if len(s.PGPFingerprints) > 0 {
			rows = append(rows, response.Row{Key: "PGP Fingerprints", Value: s.PGPFingerprints})
		}
	}
	if s.VerificationRequired {
		rows = append(rows, response.Row{Key: "Verification Required", Value: true}, response.Row{Key: "Verification Nonce", Value: s.VerificationNonce})
	}
	return c.PrintTable(rows)
}

// rekeyShare gives one share, of the present key or of the new one.
func rekeyShare(ctx context.Context, c *command.Call, base, path string) error {
	s, err := rekeyStatus(ctx, c, path)
	if err != nil {
		return err
	}
	if !s.Started {
		return command.Usagef("no rekey is in progress: begin one with -init")
	}
	key, err := readShare(ctx, c, s.Nonce)
	if err != nil {
		return err
	}
	to := base + "update"
	if c.Bool("verify") {
		to = path
	}
	a, err := c.Put(ctx, to, map[string]string{"key": key, "nonce": nonce(c, s.Nonce)})
	if err != nil {
		return err
	}
	var r api.RotateStatusResponse
	if err := command.DecodeRaw(a.Raw, &r); err != nil {
		return command.ServerErrorf("the answer is not the status of a rekey: %v", err)
	}
	for _, w := range a.Secret.Warnings {
		c.Warnf("WARNING: %s", w)
	}
	switch {
	case !r.Complete:
		return printRekey(c, r)
	case c.Format() != command.FormatTable:
		return c.PrintValue(r)
	case c.Bool("verify"):
		c.Sayf("Success! The new keys are verified and in effect.")
		return nil
	}
	return printNewKeys(c, r)
}

func printNewKeys(c *command.Call, r api.RotateStatusResponse) error {
	for i, k := range r.KeysB64 {
		fmt.Fprintf(c.Out, "Key %d: %s\n", i+1, k)
	}
	if len(r.PGPFingerprints) > 0 {
		fmt.Fprint(c.Out, "\n"+readWithPGP)
	}
	if r.VerificationRequired {
		_, err := fmt.Fprintf(c.Out, `
Verification nonce: %s

The new keys are not in effect yet: hand the shares out, then let %d of their holders give them back with
"coffer operator rekey -verify". Until then the present keys stay.
`, r.VerificationNonce, r.T)
		return err
	}
	_, err := fmt.Fprintf(c.Out, `
The key is now split into %d shares, of which any %d are enough. Hand them to different people now: they are stored
nowhere. The former shares are of use for snapshots from before only.
`, r.N, r.T)
	return err
}

// readShare is Call.ReadSecret for a share of an attempt, which it names to the user who types.
func readShare(ctx context.Context, c *command.Call, nonce string) (string, error) {
	if c.Arg(0) == "" && command.IsTerminal(c.In) {
		c.Warnf("Nonce of the attempt: %s", nonce)
	}
	return c.ReadSecret(ctx, c.Arg(0), "key share")
}

// nonce is -nonce, or that of the attempt in progress.
func nonce(c *command.Call, inProgress string) string {
	if v := c.String("nonce"); v != "" {
		return v
	}
	return inProgress
}
