package operator

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func generateRootCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "generate-root", Args: "[KEY | -]", Max: 1, Usage: "make a root token, on the authority of those who hold keys",
		Help: `Makes a new root token when there is none left. It needs a token with sudo, or the address of a listener with
enable_unauthenticated_ceremonies = true. The one who wants the token begins with -init and keeps the one-time password that is shown.
People then give enough shares of the unseal key or, with a server that unseals itself, of the recovery key, from wherever they
are. The last one gets the token, hidden by the password: -decode shows it to the one who began. With -pgp-key there is no
password: the token is encrypted to that OpenPGP key, and read with: base64 -d | gpg -d

Without an argument the share is asked for and not shown: an argument stays in the shell's history.

Examples:

  $ coffer operator generate-root -init
  $ coffer operator generate-root
  $ coffer operator generate-root -decode=Aw4bDx… -otp=7kQz…
  $ coffer operator generate-root -cancel`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "init", Usage: "begin"},
			&cli.BoolFlag{Name: "cancel", Usage: "give up"},
			&cli.BoolFlag{Name: "status", Usage: "only show how far it is"},
			&cli.BoolFlag{Name: "generate-otp", Usage: "print a one-time password for -init -otp, and do nothing else"},
			&cli.StringFlag{Name: "decode", Usage: "show the token hidden in `TEXT`, with -otp; - reads the text from stdin"},
			&cli.StringFlag{Name: "otp", Usage: "one-time `PASSWORD` (default with -init: the server makes one)"},
			&cli.StringFlag{Name: "nonce", Usage: "`NONCE` of the attempt (default: the one in progress)"},
			&cli.StringFlag{Name: "pgp-key", Usage: "with -init, encrypt the token to the public key in `FILE` instead"},
		},
	}, ceremony(generateRoot))
}

const rootAttempt = "sys/generate-root/attempt"

func generateRoot(ctx context.Context, c *command.Call) error {
	if c.IsSet("pgp-key") && !c.Bool("init") {
		return command.Usagef("-pgp-key goes with -init")
	}
	if err := oneOf(c, "init", "cancel", "status", "generate-otp"); err != nil {
		return err
	}
	switch {
	case c.IsSet("decode"):
		return decodeRoot(ctx, c)
	case c.Bool("generate-otp"):
		return printOTP(ctx, c)
	case c.Bool("init"):
		return beginRoot(ctx, c)
	case c.Bool("cancel"):
		if _, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: rootAttempt, Query: nonceQuery(c)}); err != nil {
			return err
		}
		c.Sayf("Success! Cancelled, if there was anything to cancel.")
		return nil
	}
	s, err := rootStatus(c.Get(ctx, rootAttempt))
	if err != nil || c.Bool("status") {
		return printRoot(c, s, err)
	}
	if !s.Started {
		return command.Usagef("no root token is being generated: begin with -init")
	}
	key, err := readShare(ctx, c, s.Nonce)
	if err != nil {
		return err
	}
	s, err = rootStatus(c.Put(ctx, "sys/generate-root/update", map[string]string{"key": key, "nonce": nonce(c, s.Nonce)}))
	return printRoot(c, s, err)
}

func rootStatus(a *command.Response, err error) (s api.GenerateRootStatusResponse, _ error) {
	if err != nil {
		return s, err
	}
	if err := command.DecodeRaw(a.Raw, &s); err != nil {
		return s, command.ServerErrorf("the answer is not the status of a root token's generation: %v", err)
	}
	return s, nil
}

func printRoot(c *command.Call, s api.GenerateRootStatusResponse, err error) error {
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(s)
	}
	rows := []response.Row{
		{Key: "Nonce", Value: s.Nonce}, {Key: "Started", Value: s.Started}, {Key: "Progress", Value: fmt.Sprintf("%d/%d", s.Progress, s.Required)},
		{Key: "Complete", Value: s.Complete}, {Key: "OTP Length", Value: s.OTPLength},
	}
	if s.PGPFingerprint != "" {
		rows = append(rows, response.Row{Key: "PGP Fingerprint", Value: s.PGPFingerprint})
	}
	if s.OTP != "" {
		rows = append(rows, response.Row{Key: "OTP", Value: s.OTP})
	}
	if s.EncodedToken != "" {
		rows = append(rows, response.Row{Key: "Encoded Token", Value: s.EncodedToken})
	}
	return c.PrintTable(rows)
}

func beginRoot(ctx context.Context, c *command.Call) error {
	body := map[string]string{"otp": c.String("otp")}
	if flag := "pgp-key"; c.IsSet(flag) {
		key, err := readPGPKey(flag, c.String(flag))
		if err != nil {
			return err
		}
		body["pgp_key"] = key
	}
	s, err := rootStatus(c.Put(ctx, rootAttempt, body))
	if err == nil && s.OTP != "" {
		c.Warnf("Keep the one-time password: without it the token cannot be read.")
	}
	return printRoot(c, s, err)
}

const otpAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func printOTP(ctx context.Context, c *command.Call) error {
	s, err := rootStatus(c.Get(ctx, rootAttempt))
	if err != nil {
		return err
	}
	otp := make([]byte, s.OTPLength)
	for i := range otp {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(otpAlphabet))))
		if err != nil {
			return err
		}
		otp[i] = otpAlphabet[n.Int64()]
	}
	_, err = fmt.Fprintln(c.Out, string(otp))
	return err
}

// decodeRoot needs no server.
func decodeRoot(ctx context.Context, c *command.Call) error {
	otp := c.String("otp")
	if otp == "" {
		return command.Usagef("-decode needs -otp, the one-time password of the start")
	}
	text := c.String("decode")
	if text == "-" {
		var err error
		if text, err = c.ReadSecret(ctx, "-", "encoded token"); err != nil {
			return err
		}
	}
	hidden, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return command.Usagef("-decode: this is not an encoded token")
	}
	if len(hidden) == 0 || len(hidden) > len(otp) {
		return command.Usagef("the encoded token and the one-time password do not belong together: their lengths differ")
	}
	token := make([]byte, len(hidden))
	subtle.XORBytes(token, hidden, []byte(otp))
	if c.Format() != command.FormatTable {
		return c.PrintValue(map[string]string{"token": string(token)})
	}
	_, err = fmt.Fprintln(c.Out, string(token))
	return err
}
