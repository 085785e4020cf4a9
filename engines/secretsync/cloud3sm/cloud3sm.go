// Package cloud3sm is the type of destination cloud3-sm: GCP Secret Manager, global secrets of one project.
//
// A name is a secret, a value its latest version. Secret Manager can create a secret only where there is none, and changes
// and deletes one only under the etag that was read, so that nothing of another client is replaced; adding a version is the
// one call without a condition, and is made right after one that has one. Whose a secret is says an annotation. Another
// lists the versions that are ours, of which the newest two are kept and the older ones destroyed, since each is billed.
//
// Start reading at Type, then secret.go.
package cloud3sm

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Type is GCP Secret Manager.
var Type = destination.Type{
	Name:  "cloud3-sm",
	Alias: "gcp-sm",
	Help:  "GCP Secret Manager: a global secret of a project for each name. The two newest versions of ours are kept, older ones are destroyed.",
	Rules: rules,
	New:   func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) {
		return open(c.(*Config), env)
	},
}

// The vendor's limits. The texts are in the discovery document; package cloud3smtest quotes them.
const (
	maxName   = 255
	maxValue  = 64 << 10
	maxLabels = 64
)

// The vendor allows 600 writes, 600 reads and 90,000 accesses to values a minute and project. One Write makes up to four
// calls that write (the version, its note, the oldest version, the labels if they have changed) and a Read one that reads.
var rules = destination.Rules{
	Granularity:      destination.SecretPath,
	Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
	Normalise:        normalise,
	CheckName:        checkName,
	MinValue:         1,
	MaxValue:         maxValue,
	MaxTags:          maxLabels,
	CheckTag:         checkTag,
	HasOwnerTags:     true,
	Readable:         true,
	PropagationDelay: 0, // the vendor promises strong consistency
	Rate:             destination.Rate{Writes: 2, WriteBurst: 25, Reads: 4, ReadBurst: 60, Concurrency: 10},
}

func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

func normalise(name string) string {
	return destination.ReplaceIllegal(name, plain, '-')
}

func checkName(name string) string {
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > maxName:
		return fmt.Sprintf("the name is longer than %d characters", maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }):
		return `the name may have letters, digits, "-" and "_" only`
	}
	return ""
}

// Labels are what the vendor calls tags of this sort. Its own expression for keys lacks a bracket; this is the rule in words
// that stands beside it: a letter that is not upper-case first, then such letters, digits, "_" and "-". The length is counted
// apart: an expression that repeats such classes 62 times takes 8 MB, in every process.
var (
	labelKey   = engines.Pattern(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]*$`)
	labelValue = engines.Pattern(`^[\p{Ll}\p{Lo}\p{N}_-]*$`)
)

const maxLabel, maxLabelBytes = 63, 128

func badLabel(text string) bool {
	return !utf8.ValidString(text) || utf8.RuneCountInString(text) > maxLabel || len(text) > maxLabelBytes
}

func checkTag(key, value string) string {
	switch {
	case !labelKey().MatchString(key) || badLabel(key):
		return `a key must be 1 to 63 lower-case letters, digits, "_" and "-", and begin with a letter (labels of the vendor)`
	case !labelValue().MatchString(value) || badLabel(value):
		return `a value must be at most 63 lower-case letters, digits, "_" and "-" (labels of the vendor)`
	}
	return ""
}
