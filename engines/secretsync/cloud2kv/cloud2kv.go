// Package cloud2kv is the destination type "cloud2-kv": the secrets of an Azure Key Vault.
//
// A write is a new version of a secret; its tags belong to the version, and one of them has the ownership tag. The vault has no call
// that creates only, and none that replaces only a certain version. So every write looks first, and one that has created a
// name looks afterwards, too: if another client was faster by a moment, their value is put back on top.
//
// Deleted secrets stay for days and hold their name. Deleting and recovering go on after the vault has answered; meanwhile
// a secret is neither here nor there, and the vault rejects to write it. A write waits for that, for a while.
//
// Start reading at Type, then vault.go (Read, Delete, List), write.go, errors.go.
package cloud2kv

import (
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The limits of the destination, as its documentation says them.
const (
	maxName       = 127
	maxValueBytes = 25 << 10
	maxTags       = 15
	maxTagLength  = 256 // of a name and of a value
)

// markTag is the tag that says whose a secret is. Its value is the ownership tag, a full stop, and a text that is another one with
// every write: versions are not in the vault's list, tags are.
const markTag = "coffer-sync"

// Type is the type of destination.
var Type = destination.Type{
	Name:  "cloud2-kv",
	Alias: "azure-kv",
	Help:  "Azure Key Vault: each name is a secret of the vault.",
	Rules: destination.Rules{
		Granularity:      destination.SecretPath,
		Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:        normalise,
		CheckName:        checkName,
		Fold:             fold,
		MaxValue:         maxValueBytes,
		MaxTags:          maxTags - 1,
		CheckTag:         checkTag,
		HasOwnerTags:     true,
		Readable:         true,
		PropagationDelay: 5 * time.Second, // nothing is promised
		// In any ten seconds a vault takes 300 new versions and 4,000 other calls, from all its users together.
		Rate: destination.Rate{Writes: 20, WriteBurst: 100, Reads: 100, ReadBurst: 500, Concurrency: 8},
	},
	New:  func() destination.Config { return &Config{} },
	Open: open,
}

// legal reports whether a name may have the letter.
func legal(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-'
}

func normalise(name string) string {
	return destination.ReplaceIllegal(name, legal, '-')
}

func checkName(name string) string {
	switch {
	case name == "":
		return "the name is empty; a Key Vault secret has 1 to 127 letters, digits and \"-\""
	case len(name) > maxName:
		return fmt.Sprintf("the name has %d bytes; a Key Vault secret has at most %d letters, digits and \"-\"", len(name), maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return !legal(r) }):
		return "the name may have only letters A-Z and a-z, digits and \"-\" in Key Vault"
	}
	return ""
}

// fold returns the name as the vault compares it: without regard to case.
func fold(name string) string { return strings.ToLower(name) }

func checkTag(key, value string) string {
	switch {
	case key == "":
		return "the name of a tag is empty"
	case strings.EqualFold(key, markTag):
		return fmt.Sprintf("the tag %q is the mark that says whose a secret is; choose another name", markTag)
	case len(key) > maxTagLength || len(value) > maxTagLength:
		return fmt.Sprintf("the name and the value of a tag have at most %d bytes each in Key Vault", maxTagLength)
	case strings.ContainsFunc(key+value, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
		return "a tag may not have control characters"
	}
	return ""
}
