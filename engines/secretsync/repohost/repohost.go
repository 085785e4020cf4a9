// Package repohost syncs secrets to the Actions secrets of GitHub: those of a repository, of one of its environments, or of
// an organization.
//
// Values are sealed to a public key of the destination before they leave, and cannot be read back; there is no room for a
// ownership tag either. All that is known of a secret is when it was created and when it was updated, to the second, so these are its
// ID and its Version. GitHub has no call that only creates, and none that only replaces what one has seen: Write looks at the
// name again right before it writes, and a create that turns out to have replaced something is reported as what it is.
//
// Start reading at Type, then config.go, dest.go and client.go.
package repohost

import (
	"regexp"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "repohost"

	// maxValue is the 48 KB of the vendor's documentation.
	maxValue = 48 << 10
	// maxName is ours: the vendor says nothing, and nothing that runs has longer names of variables.
	maxName = 255
	// maxNames is that of a repository, and of an environment. An organization has room for 1,000.
	maxNames = 100
)

// Type is the Actions secrets of GitHub.
var Type = destination.Type{
	Name:  typeName,
	Alias: "gh",
	Help:  "Actions secrets of a repository, of one of its environments, or of an organization.",
	Rules: destination.Rules{
		Granularity:      destination.SecretKey,
		Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:        normalise,
		CheckName:        checkName,
		Fold:             strings.ToUpper,
		MaxValue:         maxValue,
		MaxNames:         maxNames,
		PropagationDelay: 5 * time.Second, // nothing is promised
		// 500 content-creating calls an hour, 80 a minute; 5,000 calls an hour in all. A write is three or four calls.
		// Rate is shared by all names of the place: one that changes all the time leaves most of it to the others.
		WritesPerDay: 100,
		Rate:         destination.Rate{Writes: 500.0 / 3600, WriteBurst: 40, Reads: 0.75, ReadBurst: 100, Concurrency: 4},
	},
	New:  func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) { return open(c, env) },
}

// normalise returns a name as GitHub stores it: capitals, digits and underscores, not beginning with a digit.
func normalise(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
	if name != "" && name[0] <= '9' {
		name = "_" + name
	}
	return name
}

var legalName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func checkName(name string) string {
	problem := destination.NameLength(name, maxName)
	switch {
	case problem != "":
		return problem
	case !legalName.MatchString(name):
		return "names of Actions secrets are letters, digits and underscores, and do not begin with a digit"
	case strings.HasPrefix(strings.ToUpper(name), "GITHUB_"):
		return "names of Actions secrets must not begin with GITHUB_"
	}
	return ""
}
