package command

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/openbao/openbao/api/v2"
)

// printCurl prints a request as a command of curl in place of sending it, and ends the program well. The token is not
// printed but looked up when that runs, unless it is another than the one in use.
func (c *Call) printCurl(req *api.Request) error {
	words := []string{"curl"}
	if req.Method != http.MethodGet {
		words = append(words, "-X", req.Method)
	}
	if c.Bool("tls-skip-verify") || local.Env("SKIP_VERIFY") == "true" {
		words = append(words, "--insecure")
	}
	for _, s := range []struct{ option, flag, variable string }{
		{"--cacert", "ca-cert", "CACERT"}, {"--capath", "ca-path", "CAPATH"}, {"--cert", "client-cert", "CLIENT_CERT"}, {"--key", "client-key", "CLIENT_KEY"},
	} {
		if v := c.setting(s.flag, s.variable); v != "" {
			words = append(words, s.option, ShellWord(v))
		}
	}
	current, err := c.token()
	if err != nil {
		return err
	}
	switch req.ClientToken {
	case "":
	case current:
		words = append(words, "-H", `"X-Vault-Token: $(coffer print token)"`)
	default:
		words = append(words, "-H", ShellWord("X-Vault-Token: "+req.ClientToken))
	}
	for _, name := range slices.Sorted(maps.Keys(req.Headers)) {
		for _, value := range req.Headers[name] {
			words = append(words, "-H", ShellWord(name+": "+value))
		}
	}
	for _, code := range req.MFAHeaderVals {
		words = append(words, "-H", ShellWord("X-Vault-MFA: "+code))
	}
	if req.WrapTTL != "" {
		words = append(words, "-H", ShellWord("X-Vault-Wrap-TTL: "+req.WrapTTL))
	}
	if len(req.BodyBytes) > 0 {
		words = append(words, "-d", ShellWord(string(req.BodyBytes)))
	}
	url := *req.URL
	url.RawQuery = req.Params.Encode()
	fmt.Fprintln(c.Out, strings.Join(append(words, ShellWord(url.String())), " "))
	return &ExitError{Code: 0}
}

// printPolicy prints the rule that lets a token send a request, in place of sending it, and ends the program well. Paths that need sudo
// are not known here: the server says so when it denies one.
func (c *Call) printPolicy(r Request) error {
	capabilities := map[string]string{
		http.MethodGet: `"read"`, "LIST": `"list"`, http.MethodDelete: `"delete"`, http.MethodPatch: `"patch"`,
		http.MethodPost: `"create", "update"`, http.MethodPut: `"create", "update"`,
	}
	path := r.Path
	if r.Method == "LIST" {
		path = strings.TrimRight(path, "/") + "/"
	}
	fmt.Fprintf(c.Out, "path %q {\n  capabilities = [%s]\n}\n", path, capabilities[r.Method])
	return &ExitError{Code: 0}
}

// ShellWord quotes text so that a shell takes it for one word, as it is.
func ShellWord(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
