// Package limits says what the paths, the data and the custom metadata of secrets may be.
package limits

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Path rejects paths that name no secret.
func Path(path string) error {
	switch {
	case path == "":
		return engines.Invalid("the path is empty: name the secret")
	case strings.HasSuffix(path, "/"):
		return engines.Invalid("the path ends in \"/\", which names a folder, not a secret")
	}
	return nil
}

// HeaderBytes is the size of what is stored before the data of a secret.
const HeaderBytes = 1 + 8

// maxSecretBytes leaves room for the header in one stored value.
const maxSecretBytes = storage.MaxValueBytes - HeaderBytes

// Size rejects data that does not fit into one stored value.
func Size(n int) error {
	if n > maxSecretBytes {
		return &engines.Error{Kind: engines.KindTooLarge,
			Detail: fmt.Sprintf("the secret is %d bytes, the limit is %d", n, maxSecretBytes)}
	}
	return nil
}

// Limits of custom metadata.
const (
	maxCustomNames      = 64
	maxCustomNameBytes  = 128
	maxCustomValueBytes = 512
)

// Custom rejects names and texts that cannot be custom metadata.
func Custom(custom map[string]string) error {
	if len(custom) > maxCustomNames {
		return engines.Invalid("field \"custom_metadata\": has more than %d names", maxCustomNames)
	}
	for name, text := range custom {
		switch {
		case name == "":
			return engines.Invalid("field \"custom_metadata\": a name is empty")
		case len(name) > maxCustomNameBytes:
			return engines.Invalid("field \"custom_metadata\": a name is longer than %d bytes", maxCustomNameBytes)
		case len(text) > maxCustomValueBytes:
			return engines.Invalid("field \"custom_metadata\": a value is longer than %d bytes", maxCustomValueBytes)
		case !printable(name) || !printable(text):
			return engines.Invalid("field \"custom_metadata\": names and values must be printable")
		}
	}
	return nil
}

func printable(text string) bool {
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}
