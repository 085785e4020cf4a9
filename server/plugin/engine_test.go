package plugin

import (
	"testing"

	"github.com/coffer-project/coffer/engines"
)

// TestBorrower has a plugin tell tokens apart without learning of them.
func TestBorrower(t *testing.T) {
	one, other := &engine{mount: engines.Mount{UUID: "1"}}, &engine{mount: engines.Mount{UUID: "2"}}
	name := one.borrower("accessor")
	if name == "" || name == "accessor" || name != one.borrower("accessor") || name == one.borrower("another") || name == other.borrower("accessor") {
		t.Errorf("it is %q, at the other mount %q", name, other.borrower("accessor"))
	}
	if name := one.borrower(""); name != "" {
		t.Errorf("without a token it is %q", name)
	}
}

func TestSpecialPaths(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"login", "login", true},
		{"login", "login/x", false},
		{"login", "logi", false},
		{"/login", "login", true},
		{"public/*", "public/a/b", true},
		{"public/*", "publicity", false},
		{"pub*", "publicity", true},
		{"open/+/door", "open/any/door", true},
		{"open/+/door", "open/door", false},
		{"open/+/door", "open/a/b/door", false},
		{"open/+/d*", "open/any/door", true},
		{"open/+/d*", "open/any/door/handle", true},
		{"open/+/d*", "open/any/window", false},
		{"+/x", "a/x", true},
		{"*", "anything/at/all", true},
		{"", "x", false},
	} {
		if got := fits([]string{"never", tt.pattern}, tt.path); got != tt.want {
			t.Errorf("%q fits %q: %v", tt.path, tt.pattern, got)
		}
	}
}
