package table

import "strings"

// Colours of a terminal.
const (
	Green   = "32"
	Yellow  = "33"
	Red     = "31"
	Magenta = "35"
)

// stateColours are those of words in the columns that say how something is.
var stateColours = map[string]string{
	"SYNCED": Green, "ok": Green, "create": Green, "none": Green, "connected": Green, "streaming": Green, "active": Green, "leader": Green, "closed": Green,
	"PENDING": Yellow, "SYNCING": Yellow, "UNSYNCING": Yellow, "UNSYNCED": Yellow, "unknown": Yellow, "update": Yellow, "recover": Yellow, "forget": Yellow,
	"retain": Yellow, "wait": Yellow, "backfill": Yellow, "repairing": Yellow, "connecting": Yellow, "half-open": Yellow,
	"CONFLICT": Magenta, "conflict": Magenta, "adopt": Magenta, "changed": Magenta, "missing": Magenta,
	"CLIENT_SIDE_ERROR": Red, "EXTERNAL_SERVICE_ERROR": Red, "INTERNAL_VAULT_ERROR": Red, "failed": Red, "delete": Red, "refuse": Red, "disconnected": Red,
	"denied": Red, "open": Red, "overwrite": Red,
}

// stateColumns are the columns and keys whose words have a colour.
var stateColumns = map[string]bool{
	"Status": true, "Action": true, "Drift": true, "State": true, "Outcome": true, "Circuit": true, "Disk": true, "Mode": true, "HA Mode": true, "Phase": true,
}

// ColourOf is the colour of a cell below a title, or beside a key, or "".
func ColourOf(title, cell string) string {
	switch {
	case stateColumns[title]:
		return stateColours[cell]
	case cell == "✓":
		return Green
	case cell == "✗":
		return Red
	case title == "Sealed" && cell == "true", (title == "Healthy" || title == "Initialized") && cell == "false":
		return Red
	case title == "Sealed" && cell == "false", title == "Healthy" && cell == "true":
		return Green
	case title == "[ok]" && cell == title:
		return Green
	case title == "[warn]" && cell == title, strings.HasPrefix(title, "[skip") && cell == title:
		return Yellow
	case title == "[fail]" && cell == title:
		return Red
	}
	return ""
}

func (s Style) coloured(title, cell string) string {
	if code := ColourOf(title, cell); s.Colours && code != "" {
		return Colour(code, cell)
	}
	return cell
}

// Colour is a text in a colour of the terminal.
func Colour(code, text string) string { return "\x1b[" + code + "m" + text + "\x1b[0m" }
