package certs

import (
	"strings"
	"testing"
)

func TestCertificateNames(t *testing.T) {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []NodeID{"a", "node-1.example", "Ünïcode/..*", NodeID(strings.Repeat("x", MaxIDBytes))} {
		cert, err := ca.Issue(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := NodeOf(cert.Leaf); got != id {
			t.Errorf("the certificate of %q names %q", id, got)
		}
	}
}
