package plugin

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelease has the script that builds the plugins of a release list programs that are there already: what the server reads of it
// are the plugins that it knows of, in the same versions. The documentation has them, too.
func TestRelease(t *testing.T) {
	docs, err := os.ReadFile("../../docs/plugins.md")
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for line := range strings.Lines(releaseText) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		if len(f) != 4 {
			t.Fatalf("release.txt has the line %q", line)
		}
		program := path.Base(f[2]) + "-" + f[3]
		if err := os.WriteFile(filepath.Join(directory, program), []byte(program), 0o700); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(docs), "| `"+f[0]+"` | `"+f[1]+"` |") {
			t.Errorf("docs/plugins.md does not list %s/%s", f[0], f[1])
		}
	}
	if out, err := exec.CommandContext(t.Context(), "../../.ci/tools/plugins.sh", directory).CombinedOutput(); err != nil {
		t.Fatalf("plugins.sh: %v: %s", err, out)
	}
	built, err := ReadManifest(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range built {
		if want := release[Ref{Auth: p.Type == typeAuth, Name: p.Name}]; p.Version != want || want == "" {
			t.Errorf("%s/%s is built in version %s, want %q", p.Type, p.Name, p.Version, want)
		}
	}
	if len(built) != len(release) || len(release) == 0 {
		t.Errorf("%d plugins are built, %d come with the server", len(built), len(release))
	}
}
