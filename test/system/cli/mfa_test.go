package cli_test

import (
	"strings"
	"time"

	"github.com/pquerna/otp"
	"github.com/pquerna/otp/totp"
	"github.com/rogpeppe/go-internal/testscript"
)

// totpCode is the command totp NAME URL: it sets the variable NAME to the present code of the secret in an otpauth URL.
func totpCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: totp NAME URL")
	}
	key, err := otp.NewKeyFromURL(strings.TrimSpace(args[1]))
	ts.Check(err)
	code, err := totp.GenerateCode(key.Secret(), time.Now())
	ts.Check(err)
	ts.Setenv(args[0], code)
}
