package plugin

import (
	_ "embed"
	"strings"
)

//go:embed release.txt
var releaseText string

// release are the plugins that come with Coffer, in a directory that may not be there, with their versions.
var release = readRelease(releaseText)

func readRelease(text string) map[Ref]string {
	all := map[Ref]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "#" {
			all[Ref{Auth: f[0] == typeAuth, Name: f[1]}] = f[3]
		}
	}
	return all
}
