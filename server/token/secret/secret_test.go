package secret_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token/secret"
)

func TestTextsAreOfTheirForm(t *testing.T) {
	now := time.UnixMilli(1_795_000_000_123)
	for range 100 {
		for at, begins := range map[time.Time]string{{}: "", now: "0VbK14TD"} {
			if text := secret.NewToken("root", at); !regexp.MustCompile(`^hvs\.` + begins + `[\w-]{96}$`).MatchString(text) {
				t.Fatalf("a token is %q", text)
			}
			if text := secret.NewAccessor("ns1", at); !regexp.MustCompile(`^` + begins + `[A-Za-z0-9]{24}\.ns1$`).MatchString(text) {
				t.Fatalf("an accessor is %q", text)
			}
		}
	}
	if secret.NewToken("root", now) == secret.NewToken("root", now) || secret.NewAccessor("root", now) == secret.NewAccessor("root", now) {
		t.Error("two are equal")
	}
}

// TestNamesInOrder: what is made later is stored behind; of what has no time, the name is the hash alone.
func TestNamesInOrder(t *testing.T) {
	h := secret.NewHasher([]byte("key"))
	makers := map[string]func(string, time.Time) string{secret.TokenDomain: secret.NewToken, secret.AccessorDomain: secret.NewAccessor}
	for domain, make := range makers {
		last := ""
		for _, at := range []int64{1, 61, 62, 63, 1_795_000_000_123, 1_795_000_000_124, 4_000_000_000_000} {
			text := make("ns1", time.UnixMilli(at))
			name := h.Name(domain, text)
			if name <= last || len(name) != 8+43 || name != h.Name(domain, text) {
				t.Errorf("%s at %d is stored at %q, behind %q", text, at, name, last)
			}
			last = name
		}
		for _, text := range []string{make("root", time.Time{}), make("ns1", time.Time{}), "", "hvs.", strings.Repeat("x", 103), "hvs." + strings.Repeat("/", 104), strings.Repeat("é", 16)} {
			if len(h.Name(domain, text)) != 43 {
				t.Errorf("%q is stored under %q", text, h.Name(domain, text))
			}
		}
	}
	for _, own := range []string{strings.Repeat("a", 32), strings.Repeat("a", 104), "hvs-" + strings.Repeat("a", 104)} {
		if len(h.Name(secret.TokenDomain, own)) != 43 {
			t.Errorf("a token of one's own choice, %q, is stored under %q", own, h.Name(secret.TokenDomain, own))
		}
	}
}

func TestHashesDiffer(t *testing.T) {
	h, other := secret.NewHasher([]byte("one key")), secret.NewHasher([]byte("another key"))
	seen := map[string]bool{}
	for _, hash := range []string{
		h.Name(secret.TokenDomain, "x"), h.Name(secret.AccessorDomain, "x"), h.Name(secret.BatchDomain, "x"),
		h.Name(secret.TokenDomain, "y"), other.Name(secret.TokenDomain, "x"),
	} {
		if seen[hash] || len(hash) != 43 {
			t.Errorf("hash %q", hash)
		}
		seen[hash] = true
	}
	if h.Name(secret.TokenDomain, "x") != h.Name(secret.TokenDomain, "x") {
		t.Error("a text has two hashes")
	}
}
