package role

import (
	"net/netip"
	"slices"
	"testing"
)

func TestMatches(t *testing.T) {
	tests := []struct {
		glob, text string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "a*b", true},
		{"a*", "a", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"*a", "ab", false}, {"a*a", "a", false}, {"a*a", "aa", true},
		{"*a*", "bab", true}, {"*a*", "b", false}, {"a*b*c", "a-b-c", true}, {"a*b*c", "a-c-b", false}, {"a*b*b", "ab", false},
		{"a**b", "ab", true}, {"*b*b", "b", false}, {"*bc*bcd", "bcbcd", true},
	}
	for _, tt := range tests {
		if got := matches(tt.glob, tt.text); got != tt.want {
			t.Errorf("matches(%q, %q) = %v", tt.glob, tt.text, got)
		}
	}
}

func TestNarrow(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	tests := []struct {
		name       string
		a, b, want []netip.Prefix // want nil: nothing in common, unless a and b are
	}{
		{"everywhere", nil, nil, nil},
		{"one", prefixes("10.0.0.0/8"), nil, prefixes("10.0.0.0/8")},
		{"other", nil, prefixes("10.0.0.0/8"), prefixes("10.0.0.0/8")},
		{"smaller second", prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16", "10.2.0.0/16"), prefixes("10.1.0.0/16", "10.2.0.0/16")},
		{"smaller first", prefixes("10.1.0.0/16", "11.0.0.0/8"), prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16")},
		{"each once", prefixes("10.0.0.0/8", "10.0.0.0/9"), prefixes("10.1.0.0/16"), prefixes("10.1.0.0/16")},
		{"nothing", prefixes("10.0.0.0/8", "::/0"), prefixes("11.0.0.0/8"), nil},
		{"several wide, several narrow", prefixes("0.0.0.0/0", "2001:db8::/32"), prefixes("2001:db8::1/128", "1.2.3.4/32"), prefixes("1.2.3.4/32", "2001:db8::1/128")},
	}
	for _, tt := range tests {
		got, ok := Narrow(tt.a, tt.b)
		if !slices.Equal(got, tt.want) || ok != (tt.want != nil || tt.name == "everywhere") {
			t.Errorf("%s: narrow = %v, %v", tt.name, got, ok)
		}
	}
}
