package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func generateRootCommand() *cli.Command {
	return command(spec{
		name: "generate-root", args: "[KEY | -]", max: 1, usage: "make a root token, on the authority of those who hold keys",
		help: `Makes a new root token when there is none left. It needs a token with sudo, or the address of a listener with
enable_unauthenticated_ceremonies = true. The one who wants the token begins with -init and keeps the one-time password that is shown.
People then give enough shares of the unseal key or, with a server that unseals itself, of the recovery key, from wherever they
are. The last one gets the token, hidden by the password: -decode shows it to the one who began.

Without an argument the share is asked for and not shown: an argument stays in the shell's history.

Examples:

  $ coffer operator generate-root -init
  $ coffer operator generate-root
  $ coffer operator generate-root -decode=Aw4bDx… -otp=7kQz…
  $ coffer operator generate-root -cancel`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "init", Usage: "begin"},
			&cli.BoolFlag{Name: "cancel", Usage: "give up"},
			&cli.BoolFlag{Name: "status", Usage: "only show how far it is"},
			&cli.BoolFlag{Name: "generate-otp", Usage: "print a one-time password for -init -otp, and do nothing else"},
			&cli.StringFlag{Name: "decode", Usage: "show the token hidden in `TEXT`, with -otp; - reads the text from stdin"},
			&cli.StringFlag{Name: "otp", Usage: "one-time `PASSWORD` (default with -init: the server makes one)"},
			&cli.StringFlag{Name: "nonce", Usage: "`NONCE` of the attempt (default: the one in progress)"},
			&cli.StringFlag{Name: "pgp-key", Hidden: true},
		},
	}, ceremony(generateRoot))
}

const rootAttempt = "sys/generate-root/attempt"

func generateRoot(ctx context.Context, c *call) error {
	if c.IsSet("pgp-key") {
		return usagef("-pgp-key: encrypting the token with PGP is not supported; use a one-time password")
	}
	if err := c.oneOf("init", "cancel", "status", "generate-otp"); err != nil {
		return err
	}
	switch {
	case c.IsSet("decode"):
		return decodeRoot(ctx, c)
	case c.Bool("generate-otp"):
		return c.printOTP(ctx)
	case c.Bool("init"):
		return c.beginRoot(ctx)
	case c.Bool("cancel"):
		if _, err := c.send(ctx, request{method: http.MethodDelete, path: rootAttempt, query: nonceQuery(c)}); err != nil {
			return err
		}
		c.sayf("Success! Cancelled, if there was anything to cancel.")
		return nil
	}
	s, err := c.rootStatus(c.get(ctx, rootAttempt))
	if err != nil || c.Bool("status") {
		return c.printRoot(s, err)
	}
	if !s.Started {
		return usagef("no root token is being generated: begin with -init")
	}
	key, err := c.readShare(ctx, s.Nonce)
	if err != nil {
		return err
	}
	return c.printRoot(c.rootStatus(c.put(ctx, "sys/generate-root/update", map[string]string{"key": key, "nonce": c.nonce(s.Nonce)})))
}

func (c *call) rootStatus(a *answer, err error) (s api.GenerateRootStatusResponse, _ error) {
	if err != nil {
		return s, err
	}
	if err := decodeRaw(a.raw, &s); err != nil {
		return s, serverErrorf("the answer is not the status of a root token's generation: %v", err)
	}
	return s, nil
}

func (c *call) printRoot(s api.GenerateRootStatusResponse, err error) error {
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printValue(s)
	}
	rows := []row{
		{"Nonce", s.Nonce}, {"Started", s.Started}, {"Progress", fmt.Sprintf("%d/%d", s.Progress, s.Required)},
		{"Complete", s.Complete}, {"OTP Length", s.OTPLength},
	}
	if s.OTP != "" {
		rows = append(rows, row{"OTP", s.OTP})
	}
	if s.EncodedToken != "" {
		rows = append(rows, row{"Encoded Token", s.EncodedToken})
	}
	return c.printTable(rows)
}

func (c *call) beginRoot(ctx context.Context) error {
	s, err := c.rootStatus(c.put(ctx, rootAttempt, map[string]string{"otp": c.String("otp")}))
	if err == nil && s.OTP != "" {
		c.warnf("Keep the one-time password: without it the token cannot be read.")
	}
	return c.printRoot(s, err)
}

const otpAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func (c *call) printOTP(ctx context.Context) error {
	s, err := c.rootStatus(c.get(ctx, rootAttempt))
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
	_, err = fmt.Fprintln(c.out, string(otp))
	return err
}

// decodeRoot needs no server.
func decodeRoot(ctx context.Context, c *call) error {
	otp := c.String("otp")
	if otp == "" {
		return usagef("-decode needs -otp, the one-time password of the start")
	}
	text := c.String("decode")
	if text == "-" {
		var err error
		if text, err = c.readSecret(ctx, "-", "encoded token"); err != nil {
			return err
		}
	}
	hidden, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return usagef("-decode: this is not an encoded token")
	}
	if len(hidden) == 0 || len(hidden) > len(otp) {
		return usagef("the encoded token and the one-time password do not belong together: their lengths differ")
	}
	token := make([]byte, len(hidden))
	subtle.XORBytes(token, hidden, []byte(otp))
	if c.format() != formatTable {
		return c.printValue(map[string]string{"token": string(token)})
	}
	_, err = fmt.Fprintln(c.out, string(token))
	return err
}
