// Package kubernetes syncs secrets to the Secrets of one namespace of a Kubernetes cluster.
//
// A name is a Secret. A whole secret becomes one data key for each of its keys, as pods expect; any other value is under the data key
// "value". An annotation says which of the two it is, so that values can be read back, and another has the ownership tag. Each write
// and deletion names the uid and the resourceVersion that were read: the API server rejects it if another client was faster. Labels,
// annotations and the type of a Secret that is adopted stay; its data do not.
//
// Start reading at Type, then config.go, dest.go, secret.go and client.go.
package kubernetes

import (
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "kubernetes"

	maxData = 1 << 20 // bytes of all data keys of a Secret together
	maxName = 253
)

// Type is the Secrets of a namespace.
var Type = destination.Type{
	Name: typeName,
	Help: "Secrets of a namespace of a Kubernetes cluster.",
	Rules: destination.Rules{
		Granularity:  destination.SecretPath,
		Template:     "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:    normalise,
		CheckName:    checkName,
		MaxValue:     maxData,
		MaxTags:      50,
		CheckTag:     checkLabel,
		HasOwnerTags: true,
		Readable:     true,
		// API servers share their capacity fairly among clients, and say so with 429 where it ends.
		Rate: destination.Rate{Writes: 20, WriteBurst: 50, Reads: 50, ReadBurst: 100, Concurrency: 8},
	},
	New:  func() destination.Config { return new(Config) },
	Open: func(c destination.Config, env destination.Env) (destination.Destination, error) { return open(c, env) },
}

func alphanumeric(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// normalise returns a DNS subdomain: lower case, with "-" for what is not legal, and "x" before and behind what is not a letter or a digit.
func normalise(name string) string {
	var out []byte
	for _, r := range strings.ToLower(name) {
		if r == '.' || r < 0x80 && alphanumeric(byte(r)) {
			out = append(out, byte(r))
		} else {
			out = append(out, '-')
		}
	}
	for i, c := range out { // labels between dots begin and end with a letter or a digit
		if c == '.' && (i == 0 || i == len(out)-1 || !alphanumeric(out[i-1]) || !alphanumeric(out[i+1])) {
			out[i] = '-'
		}
	}
	text := string(out)
	if text != "" && !alphanumeric(text[0]) {
		text = "x" + text
	}
	if text != "" && !alphanumeric(text[len(text)-1]) {
		text += "x"
	}
	return text
}

var subdomain = engines.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func checkName(name string) string {
	problem := destination.NameLength(name, maxName)
	switch {
	case problem != "":
		return problem
	case !subdomain().MatchString(name):
		return "names of Secrets are lower-case letters, digits, \"-\" and \".\", and begin and end with a letter or a digit"
	}
	return ""
}

var (
	labelName  = engines.Pattern(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue = engines.Pattern(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

// checkLabel checks a tag, which becomes a label.
func checkLabel(key, value string) string {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "a", key
	}
	switch {
	case key == labelManagedBy:
		return key + " is set by secret sync"
	case len(prefix) > maxName || !subdomain().MatchString(prefix) || !labelName().MatchString(name):
		return fmt.Sprintf("%q is not the key of a label", key)
	case !labelValue().MatchString(value):
		return fmt.Sprintf("the value of %q is not that of a label: at most 63 letters, digits, \"-\", \"_\" and \".\"", key)
	}
	return ""
}
