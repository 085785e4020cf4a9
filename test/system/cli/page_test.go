package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// writePage is the command page NAME: it writes a page of docs/ to the script's directory, and its blocks of commands to 1.sh,
// 2.sh, …, with that directory for /tmp.
func writePage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: page NAME")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
	for i, block := range strings.Split(string(text), "```sh\n")[1:] {
		commands, _, _ := strings.Cut(block, "```")
		commands = strings.ReplaceAll(commands, "/tmp/", ts.MkAbs(".")+"/")
		ts.Check(os.WriteFile(ts.MkAbs(fmt.Sprintf("%d.sh", i+1)), []byte(commands), 0o600))
	}
}
