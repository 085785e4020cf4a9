package engines

import "strings"

// maxFoldedBytes is the length of the longest name of a user or role.
const maxFoldedBytes = 128

// FoldName returns the form of a user's or role's name that is stored and compared: in lower case. It may hold letters,
// digits and the given signs, with a letter, a digit or _ at both ends. field is what the Error of KindInvalid names.
func FoldName(field, name, signs string) (string, error) {
	name = strings.ToLower(name)
	switch {
	case len(name) > maxFoldedBytes:
		return "", Invalid("field %q: is longer than %d bytes", field, maxFoldedBytes)
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789"+signs) != "" || !isWord(name[0]) || !isWord(name[len(name)-1]):
		return "", Invalid("field %q: may hold letters, digits and %s only, with a letter, a digit or _ at both ends", field, signs)
	}
	return name, nil
}

func isWord(c byte) bool { return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' }

// FoldPath returns a path below one of the given directories with the name that follows it in lower case, as FoldName
// has it. Other paths are returned as they are.
func FoldPath(path string, dirs ...string) string {
	for _, dir := range dirs {
		rest, ok := strings.CutPrefix(path, dir+"/")
		if !ok {
			continue
		}
		name, rest, more := strings.Cut(rest, "/")
		if name = dir + "/" + strings.ToLower(name); more {
			name += "/" + rest
		}
		return name
	}
	return path
}
