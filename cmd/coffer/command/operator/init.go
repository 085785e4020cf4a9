package operator

import (
	"context"
	"fmt"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func initCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "init", Usage: "initialise a new cluster and print its unseal keys",
		Help: `Initialises a server that has never held data: creates its keys, splits the one that unseals it into shares, and prints the shares and
the first root token. They are printed once and stored nowhere: hand each share to another person.

Initialise one node of a cluster, whichever it is: the nodes that name it in retry_join join it once it is unsealed.

With a server that unseals itself, the shares are recovery keys, and -recovery-shares and -recovery-threshold say how many. They
unseal nothing: they are what makes a root token when none is left, and what moves the server to another seal. With
-recovery-shares=0 there are none.

With -pgp-keys, or -recovery-pgp-keys with a server that unseals itself, each share is encrypted to the OpenPGP key of its holder, who alone
can read it; -root-token-pgp-key does the same for the root token. The operator who runs the command then sees no key.

With -status nothing is created: the exit status is 0 if the server is initialised, 2 if not, 1 if it could not be asked.

Examples:

  $ coffer operator init -key-shares=5 -key-threshold=3
  $ coffer operator init -n=1 -t=1 -format=json >keys.json
  $ coffer operator init -n=2 -t=2 -pgp-keys=ada.asc,eve.asc -root-token-pgp-key=ada.asc`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "key-shares", Aliases: []string{"n"}, Value: 5, Usage: "split the unseal key into `N` shares"},
			&cli.IntFlag{Name: "key-threshold", Aliases: []string{"t"}, Value: 3, Usage: "`N` shares are enough to unseal"},
			&cli.IntFlag{Name: "recovery-shares", Value: 5, Usage: "split the recovery key into `N` shares"},
			&cli.IntFlag{Name: "recovery-threshold", Value: 3, Usage: "`N` recovery shares are enough"},
			&cli.BoolFlag{Name: "status", Usage: "only say whether the server is initialised"},
			&cli.StringFlag{Name: "pgp-keys", Usage: "encrypt the shares to the public keys in `FILE,…`, one for each share"},
			&cli.StringFlag{Name: "recovery-pgp-keys", Usage: "encrypt the recovery shares to the public keys in `FILE,…`"},
			&cli.StringFlag{Name: "root-token-pgp-key", Usage: "encrypt the root token to the public key in `FILE`"},
		},
	}, initialise)
}

func initialise(ctx context.Context, c *command.Call) error {
	if c.Bool("status") {
		return initStatus(ctx, c)
	}
	seal, _, err := sealStatusOf(ctx, c, http.MethodGet, nil)
	if err != nil {
		return err
	}
	auto := seal.RecoverySeal || seal.Type != "" && seal.Type != "shamir"
	body := map[string]any{"secret_shares": c.Int("key-shares"), "secret_threshold": c.Int("key-threshold")}
	if auto {
		body = map[string]any{"recovery_shares": c.Int("recovery-shares"), "recovery_threshold": c.Int("recovery-threshold")}
	}
	if err := addPGPKeys(c, body); err != nil {
		return err
	}
	a, err := c.Put(ctx, "sys/init", body)
	if err != nil {
		return err
	}
	var keys api.InitResponse
	if err := command.DecodeRaw(a.Raw, &keys); err != nil {
		return command.ServerErrorf("the answer holds no keys: %v", err)
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(initResult(keys, body))
	}
	return printKeys(c, keys, body, auto)
}

func initStatus(ctx context.Context, c *command.Call) error {
	a, err := c.Get(ctx, "sys/init")
	if err != nil {
		return statusFailed(err)
	}
	var s struct{ Initialized bool }
	if err := command.DecodeRaw(a.Raw, &s); err != nil {
		return command.Usagef("the answer is not an init status: %v", err)
	}
	if c.Format() != command.FormatTable {
		err = c.PrintRaw(a.Raw)
	}
	if s.Initialized {
		c.Sayf("The server is initialised.")
		return err
	}
	c.Sayf("The server is not initialised.")
	if err != nil {
		return err
	}
	return &command.ExitError{Code: command.ExitServer}
}

// initResult is the JSON of the family's command line, which scripts read; it differs from that of the API.
func initResult(keys api.InitResponse, asked map[string]any) any {
	list := func(s []string) []string {
		if s == nil {
			return []string{}
		}
		return s
	}
	return struct {
		UnsealKeysB64     []string `json:"unseal_keys_b64"`
		UnsealKeysHex     []string `json:"unseal_keys_hex"`
		UnsealShares      int      `json:"unseal_shares"`
		UnsealThreshold   int      `json:"unseal_threshold"`
		RecoveryKeysB64   []string `json:"recovery_keys_b64"`
		RecoveryKeysHex   []string `json:"recovery_keys_hex"`
		RecoveryShares    int      `json:"recovery_keys_shares"`
		RecoveryThreshold int      `json:"recovery_keys_threshold"`
		RootToken         string   `json:"root_token"`
	}{
		list(keys.KeysB64), list(keys.Keys), number(asked, "secret_shares"), number(asked, "secret_threshold"),
		list(keys.RecoveryKeysB64), list(keys.RecoveryKeys), number(asked, "recovery_shares"), number(asked, "recovery_threshold"),
		keys.RootToken,
	}
}

// number is a count that was asked for; 0: it was not.
func number(asked map[string]any, name string) int {
	n, _ := asked[name].(int)
	return n
}

func printKeys(c *command.Call, keys api.InitResponse, asked map[string]any, auto bool) error {
	for i, k := range keys.KeysB64 {
		fmt.Fprintf(c.Out, "Unseal Key %d: %s\n", i+1, k)
	}
	for i, k := range keys.RecoveryKeysB64 {
		fmt.Fprintf(c.Out, "Recovery Key %d: %s\n", i+1, k)
	}
	fmt.Fprintf(c.Out, "\nInitial Root Token: %s\n\n", keys.RootToken)
	for _, name := range []string{"pgp-keys", "recovery-pgp-keys", "root-token-pgp-key"} {
		if c.IsSet(name) {
			fmt.Fprint(c.Out, readWithPGP)
			break
		}
	}
	if auto {
		text := "The server is initialised and unseals itself. It has no recovery keys."
		if n := len(keys.RecoveryKeysB64); n > 0 {
			text = fmt.Sprintf("The server is initialised and unseals itself. Hand its %d recovery keys to different people now: they are stored nowhere,\n"+
				"and any %d of them make a root token when none is left.", n, asked["recovery_threshold"])
		}
		_, err := fmt.Fprintln(c.Out, text)
		return err
	}
	shares, threshold := asked["secret_shares"], asked["secret_threshold"]
	_, err := fmt.Fprintf(c.Out, `The server is initialised with %d key shares, of which any %d unseal it.

Hand the shares to different people now: they are stored nowhere, and without %d of them the data cannot be
read again, by anyone. Each time a server starts, unseal it with: coffer operator unseal
`, shares, threshold, threshold)
	return err
}
