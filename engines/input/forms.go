package input

import (
	"encoding/json"
	"strings"
)

// forms are what the tag "form" of a text or a list of texts can say: which texts the handler makes the same of. Input
// has such texts in one form; the handler gets them as they came. A text that has no such form stays as it is.
var forms = map[string]func(string) string{
	"trim":  strings.TrimSpace,                                                            // blanks at the ends do not count
	"lower": strings.ToLower,                                                              // case does not count
	"name":  func(text string) string { return strings.ToLower(strings.TrimSpace(text)) }, // neither does, as in names of policies
	"json":  formedJSON,                                                                   // blanks and the order of names do not count
	"path":  func(text string) string { return strings.Trim(text, "/") },                  // slashes at the ends do not count
	// An address, or a network.
	"network": func(text string) string {
		if network, err := ParseNetwork(text); err == nil {
			return network.String()
		}
		return text
	},
	// A path that may begin with slashes.
	"relative": func(text string) string { return strings.TrimLeft(text, "/") },
	// A duration in a text; "system" is 0.
	"duration": func(text string) string {
		if text == "system" {
			return "0"
		}
		if d, err := ParseDuration(text); err == nil {
			return seconds(d)
		}
		return strings.TrimSpace(text)
	},
	// The type of a mount. See kinds, too.
	"engine": func(text string) string {
		if text == "aws" {
			return "cloud"
		}
		return text
	},
}

// kinds has texts of the form "engine" that stand for one another in part: "kv" is any version of kv by an option, the others
// are kv with that option. They are elements of the value, so that a rule that denies any of them denies the text, and the text
// is allowed if it is itself, or all of them are.
var kinds = map[string][]Value{
	"kv":    {{Text: "kv"}, {Text: "kv-v1"}, {Text: "kv-v2"}},
	"kv-v1": {{Text: "kv"}, {Text: "kv-v1"}},
	"kv-v2": {{Text: "kv"}, {Text: "kv-v2"}},
}

func formedJSON(text string) string {
	trimmed := strings.TrimSpace(text)
	if !strings.HasPrefix(trimmed, "{") || !json.Valid([]byte(trimmed)) {
		return text
	}
	return rawValue(json.RawMessage(trimmed)).Text
}
