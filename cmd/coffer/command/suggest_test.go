package command

import (
	"testing"

	"github.com/urfave/cli/v3"
)

func TestSuggestions(t *testing.T) {
	commands := []*cli.Command{{Name: "status"}, {Name: "delete"}, {Name: "identity"}, {Name: "print"}, {Name: "get"}, {Name: "seal"}, {Name: "secrets"}, {Name: "revoke-prefix"}}
	for typed, want := range map[string]string{
		"stauts": "status", "statu": "status", "gte": "get", "pki": "", "agent": "", "deltee": "", "sael": "", "events": "", "secrest": "secrets",
		"revoke-prefxi": "", "x": "", "prnit": "print",
	} {
		if got := suggestCommand(commands, typed); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}
