// Package webhost syncs secrets to the environment variables of a project of Vercel.
//
// A name is a variable in those of the environments production, preview and development that the destination has. Production
// and preview get it as "sensitive", which no client can read back; development can only have "encrypted" variables, so that one
// name may be two records. What is another client's is told by the comment, where ours has its ownership tag. Variables of another
// environment, of a branch or of a custom environment are other variables: they are left alone, even where a record that is
// adopted has them too.
//
// Start reading at Type, then config.go, dest.go, record.go and client.go.
package webhost

import (
	"regexp"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "webhost-project"

	// maxTotal is that of a deployment: all its variables together.
	maxTotal = 64 << 10
	maxName  = 255 // ours
	maxNames = 1000
)

// Type is the environment variables of Vercel.
var Type = destination.Type{
	Name:  typeName,
	Alias: "vercel-project",
	Help:  "Environment variables of a project.",
	Rules: destination.Rules{
		Granularity:      destination.SecretKey,
		Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:        normalise,
		CheckName:        checkName,
		MaxValue:         maxTotal,
		MaxTotal:         maxTotal,
		MaxNames:         maxNames,
		HasOwnerTags:     true,
		PropagationDelay: 5 * time.Second, // nothing is promised
		// The vendor publishes no numbers, and says in its answers what is left. Every call lists the project or writes.
		Rate: destination.Rate{Writes: 1, WriteBurst: 20, Reads: 2, ReadBurst: 60, Concurrency: 4},
	},
	New:  func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) { return open(c, env) },
}

// normalise returns letters, digits and underscores, beginning with a letter.
func normalise(name string) string {
	out := make([]byte, 0, len(name)+1)
	for _, r := range name {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			out = append(out, byte(r))
		} else {
			out = append(out, '_')
		}
	}
	if len(out) > 0 && (out[0] == '_' || out[0] <= '9') {
		out = slices.Insert(out, 0, 'x')
	}
	return string(out)
}

var legalName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// reserved are the names that the runtime of functions takes for itself.
var reserved = []string{
	"AWS_SECRET_KEY", "AWS_EXECUTION_ENV", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME", "AWS_LAMBDA_FUNCTION_NAME",
	"AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_VERSION", "NOW_REGION", "TZ", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR",
}

func checkName(name string) string {
	problem := destination.NameLength(name, maxName)
	switch {
	case problem != "":
		return problem
	case !legalName.MatchString(name):
		return "names of environment variables are letters, digits and underscores, and begin with a letter"
	case slices.Contains(reserved, name):
		return name + " is reserved by the runtime of functions"
	}
	return ""
}
