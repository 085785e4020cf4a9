package operator

import (
	"bytes"
	"encoding/base64"
	"os"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// readWithPGP says what to do with what was encrypted.
const readWithPGP = `What was encrypted to a PGP key, its holder reads with: base64 -d | gpg -d

`

// addPGPKeys puts the keys of the flags that are set into fields of the same names.
func addPGPKeys(c *command.Call, body map[string]any) error {
	for flag, field := range map[string]string{"pgp-keys": "pgp_keys", "recovery-pgp-keys": "recovery_pgp_keys"} {
		if !c.IsSet(flag) {
			continue
		}
		var keys []string
		for name := range strings.SplitSeq(c.String(flag), ",") {
			key, err := readPGPKey(flag, name)
			if err != nil {
				return err
			}
			keys = append(keys, key)
		}
		body[field] = keys
	}
	if flag := "root-token-pgp-key"; c.IsSet(flag) {
		key, err := readPGPKey(flag, c.String(flag))
		if err != nil {
			return err
		}
		body["root_token_pgp_key"] = key
	}
	return nil
}

// readPGPKey reads a public key from a file that is armored, binary, or base64 of that, as text for the API.
func readPGPKey(flag, name string) (string, error) {
	name = strings.TrimPrefix(strings.TrimSpace(name), "@")
	if strings.HasPrefix(name, "keybase:") {
		return "", command.Usagef("-%s: keys are read from files only: save the key of %q to one", flag, name)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return "", command.Usagef("-%s: %v", flag, err)
	}
	text := bytes.TrimSpace(raw)
	if _, err := base64.StdEncoding.DecodeString(string(text)); err == nil || bytes.HasPrefix(text, []byte("-----BEGIN")) {
		return string(text), nil
	}
	return base64.StdEncoding.EncodeToString(raw), nil
}
