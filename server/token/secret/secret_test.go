package secret_test

import (
	"regexp"
	"testing"

	"github.com/coffer-project/coffer/server/token/secret"
)

func TestTextsAreOfTheirForm(t *testing.T) {
	for range 100 {
		if text := secret.NewToken("root"); !regexp.MustCompile(`^hvs\.[\w-]{96}$`).MatchString(text) {
			t.Fatalf("a token is %q", text)
		}
		if text := secret.NewAccessor("root"); !regexp.MustCompile(`^[A-Za-z0-9]{24}$`).MatchString(text) {
			t.Fatalf("an accessor is %q", text)
		}
	}
	if secret.NewToken("root") == secret.NewToken("root") || secret.NewAccessor("root") == secret.NewAccessor("root") {
		t.Error("two are equal")
	}
}

func TestHashesDiffer(t *testing.T) {
	h, other := secret.NewHasher([]byte("one key")), secret.NewHasher([]byte("another key"))
	seen := map[string]bool{}
	for _, hash := range []string{
		h.Hash(secret.TokenDomain, "x"), h.Hash(secret.AccessorDomain, "x"), h.Hash(secret.BatchDomain, "x"),
		h.Hash(secret.TokenDomain, "y"), other.Hash(secret.TokenDomain, "x"),
	} {
		if seen[hash] || len(hash) != 43 {
			t.Errorf("hash %q", hash)
		}
		seen[hash] = true
	}
	if h.Hash(secret.TokenDomain, "x") != h.Hash(secret.TokenDomain, "x") {
		t.Error("a text has two hashes")
	}
}
