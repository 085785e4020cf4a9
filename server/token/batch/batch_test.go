package batch_test

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token/batch"
)

func sealer(t *testing.T, key byte) *batch.Sealer {
	t.Helper()
	s, err := batch.NewSealer(bytes.Repeat([]byte{key}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealAndOpen(t *testing.T) {
	content := batch.Content{
		Policies: []string{"app", "default"}, Namespace: "root", Path: "auth/token/create", Meta: map[string]string{"a": "b"},
		BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, CreatedAt: 1, TTL: time.Hour,
	}
	token, err := sealer(t, 1).Seal(content)
	if err != nil || !strings.HasPrefix(token, batch.Prefix) || strings.Contains(token, "app") {
		t.Fatalf("Seal = %q, %v", token, err)
	}
	content.Format = 1
	if got, err := sealer(t, 1).Open(token); err != nil || !reflect.DeepEqual(*got, content) {
		t.Errorf("Open = %+v, %v, want %+v", got, err, content)
	}
	for name, text := range map[string]string{
		"another character": token[:len(token)-2] + string(token[len(token)-2]^1) + token[len(token)-1:],
		"cut":               token[:len(token)-4],
		"longer":            token + "AAAA",
		"a line break":      token[:20] + "\n" + token[20:],
		"nothing":           batch.Prefix,
	} {
		if _, err := sealer(t, 1).Open(text); !errors.Is(err, batch.ErrInvalid) {
			t.Errorf("%s: Open = %v, want ErrInvalid", name, err)
		}
	}
	if _, err := sealer(t, 2).Open(token); !errors.Is(err, batch.ErrInvalid) {
		t.Errorf("with another key: Open = %v, want ErrInvalid", err)
	}
}

func TestKeyHasALength(t *testing.T) {
	if _, err := batch.NewSealer(make([]byte, 16)); err == nil {
		t.Error("a key of 16 bytes is accepted")
	}
}
