// Package gitlab syncs secrets to the CI/CD variables of a project or a group of GitLab, in one environment scope.
//
// A name is a variable. The description, where ours has its ownership tag, identifies what belongs to another client; GitLab has them since 16.2.
// GitLab neither counts versions nor takes conditions, so that each write and deletion reads the variable once more, and what
// another client does in between is not noticed. The version of a variable is a keyed hash of all that it has.
//
// Start reading at Type, then config.go, dest.go and client.go.
package gitlab

import (
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "gitlab"

	maxName  = 255
	maxValue = 10000 // characters; bytes are never fewer
	minMask  = 8
)

// Type is the CI/CD variables of GitLab.
var Type = destination.Type{
	Name: typeName,
	Help: "CI/CD variables of a project or a group of GitLab.",
	Rules: destination.Rules{
		Granularity:  destination.SecretKey,
		Template:     "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:    normalise,
		CheckName:    checkName,
		MaxValue:     maxValue,
		HasOwnerTags: true,
		Readable:     true,
		// GitLab.com allows 2,000 requests a minute to all clients of a user together.
		Rate: destination.Rate{Writes: 2, WriteBurst: 20, Reads: 8, ReadBurst: 60, Concurrency: 4},
	},
	New:  func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) { return open(c, env) },
}

func normalise(name string) string {
	out := make([]byte, 0, len(name))
	for _, r := range name {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			out = append(out, byte(r))
		} else {
			out = append(out, '_')
		}
	}
	return string(out)
}

var legalName = engines.Pattern(`^[A-Za-z0-9_]+$`)

func checkName(name string) string {
	problem := destination.NameLength(name, maxName)
	switch {
	case problem != "":
		return problem
	case !legalName().MatchString(name):
		return "names of variables are letters, digits and underscores"
	}
	return ""
}
