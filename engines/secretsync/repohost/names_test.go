package repohost_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/repohost"
)

func TestNormalise(t *testing.T) {
	for in, want := range map[string]string{
		"coffer/kv_1234/my-secret/key": "COFFER_KV_1234_MY_SECRET_KEY",
		"1a":                           "_1A",
		"_a":                           "_A",
		"ünï":                          "_N_",
		"":                             "",
		"github_token":                 "GITHUB_TOKEN", // stays illegal: another name would be a surprise
	} {
		if got := repohost.Type.Rules.Normalise(in); got != want {
			t.Errorf("Normalise(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"A": "", "_": "", "a_1": "", "GITHUB": "", "MY_GITHUB_X": "", strings.Repeat("A", 255): "",
		"": "empty", "1A": "digit", "A-B": "letters", "A B": "letters", "Ä": "letters", "A\n": "letters",
		"GITHUB_X": "GITHUB_", "github_x": "GITHUB_", strings.Repeat("A", 256): "at most 255",
	} {
		got := repohost.Type.Rules.CheckName(name)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("CheckName(%q) = %q, want %q in it", name, got, want)
		}
	}
}
