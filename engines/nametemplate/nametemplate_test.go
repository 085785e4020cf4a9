package nametemplate

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRandomTextUsesEveryCharacter(t *testing.T) {
	seen := map[rune]bool{}
	for range 40 {
		text, err := randomText(maxRandomChars)
		if err != nil || len(text) != maxRandomChars {
			t.Fatalf("randomText = %d characters, %v", len(text), err)
		}
		for _, c := range text {
			seen[c] = true
		}
	}
	if len(seen) != 62 {
		t.Errorf("%d different characters in 10,240, want 62", len(seen))
	}
}

func TestStable(t *testing.T) {
	for text, want := range map[string]string{
		`{{ .A }}/{{ .B | lowercase }}`: "one/two", `{{ random 3 }}`: "", `{{ unix_time }}`: "", `{{ .C }}`: "", `{{ range 3 }}{{ end }}`: "",
		strings.Repeat("x", maxTemplateBytes+1): "",
	} {
		tmpl, err := Parse(text, []string{"A", "B"}, nil)
		if want == "" {
			if err == nil {
				t.Errorf("%.20q is taken", text)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Execute(struct{ A, B string }{"one", "TWO"}); err != nil || got != want {
			t.Errorf("%q makes %q, %v", text, got, err)
		}
	}
	if _, err := Parse(`{{ random 3 }}{{ unix_time }}{{ uuid }}`, nil, Fresh(time.Unix(0, 0))); err != nil {
		t.Error(err)
	}
}

// These are documented.
func TestFunctions(t *testing.T) {
	want := []string{
		"base64", "lowercase", "print", "printf", "random", "replace", "sha256", "timestamp", "truncate", "truncate_sha256",
		"unix_time", "unix_time_millis", "uppercase", "uuid",
	}
	got := slices.Sorted(maps.Keys(stable))
	got = append(got, slices.Collect(maps.Keys(Fresh(time.Time{})))...)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("functions %v, want %v", got, want)
	}
}
