// Package webhook syncs secrets to a receiver of one's own: a URL that takes signed requests.
//
// Every write and deletion is one request with a JSON body. The receiver can neither be read nor listed, so that only the sync state has
// what it was sent. It keeps the owner of a name beside the value, and rejects with 409 what concerns a name of another owner.
// The body and the time are signed, so that a receiver accepts requests of this destination only, and each only once.
//
// Start reading at Type, then config.go and dest.go.
package webhook

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "webhook"

	maxValue = 1 << 20
	maxName  = 512
)

// Type is a receiver of webhooks.
var Type = destination.Type{
	Name: typeName,
	Help: "Signed requests to a URL.",
	Rules: destination.Rules{
		Granularity: destination.SecretPath,
		Template:    "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:   normalise,
		CheckName:   checkName,
		MaxValue:    maxValue,
		WriteOnly:   true,
		Rate:        destination.Rate{Writes: 10, WriteBurst: 20, Reads: 1, ReadBurst: 5, Concurrency: 4},
	},
	New:  func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) { return open(c, env) },
}

// normalise replaces what is not printable.
func normalise(name string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '-'
		}
		return r
	}, name)
}

func checkName(name string) string {
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > maxName:
		return fmt.Sprintf("the name has %d bytes, at most %d are allowed", len(name), maxName)
	case normalise(name) != name:
		return "names are printable text in UTF-8"
	}
	return ""
}
