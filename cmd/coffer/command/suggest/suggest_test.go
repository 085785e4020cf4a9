package suggest

import "testing"

func TestSuggestions(t *testing.T) {
	commands := []string{"status", "delete", "identity", "print", "get", "seal", "secrets", "revoke-prefix"}
	for typed, want := range map[string]string{
		"stauts": "status", "statu": "status", "gte": "get", "pki": "", "agent": "", "deltee": "", "sael": "", "events": "", "secrest": "secrets",
		"revoke-prefxi": "", "x": "", "prnit": "print",
	} {
		if got := Command(commands, typed); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}
