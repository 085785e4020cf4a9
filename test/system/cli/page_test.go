package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// writePage is the command page NAME [OLD NEW] …: it writes a page of docs/ to the script's directory, and its blocks of commands to 1.sh,
// 2.sh, …, with that directory for /tmp, and each NEW for the OLD before it, which must be there.
func writePage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args)%2 == 0 {
		ts.Fatalf("usage: page NAME [OLD NEW] …")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(filepath.Base(args[0])), text, 0o600))
	page := strings.ReplaceAll(string(text), "/tmp/", ts.MkAbs(".")+"/")
	for i := 1; i < len(args); i += 2 {
		if !strings.Contains(page, args[i]) {
			ts.Fatalf("the page does not have %q", args[i])
		}
		page = strings.ReplaceAll(page, args[i], args[i+1])
	}
	for i, block := range strings.Split(page, "```sh\n")[1:] {
		commands, _, _ := strings.Cut(block, "```")
		ts.Check(os.WriteFile(ts.MkAbs(fmt.Sprintf("%d.sh", i+1)), []byte(commands), 0o600))
	}
}
