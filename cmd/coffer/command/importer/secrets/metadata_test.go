package secrets

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
)

const theirs = `{"created_time":"2023-05-01T08:00:00.5Z","updated_time":"2023-05-02T08:00:00Z","current_version":2,"custom_metadata":null,"delete_version_after":"-1s","max_versions":0,
	"versions":{"10":{"created_time":"2023-05-02T08:00:00Z","deletion_time":"","destroyed":false},"9":{"created_time":"2023-05-01T08:00:00.5Z","deletion_time":"","destroyed":false}}}`

func parse(t *testing.T, changes ...string) *metadata {
	t.Helper()
	m, err := parseMetadata([]byte(strings.NewReplacer(changes...).Replace(theirs)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCompare(t *testing.T) {
	const (
		ten  = `"10":{"created_time":"2023-05-02T08:00:00Z","deletion_time":"","destroyed":false},`
		nine = `"9":{"created_time":"2023-05-01T08:00:00.5Z","deletion_time":"","destroyed":false}`
	)
	if m := parse(t); m.newest() != 10 || m.DeleteAfter != "0s" || m.Versions[0].Number != 9 {
		t.Errorf("parsed as %+v", m)
	}
	for name, c := range map[string]struct {
		ours   *metadata
		action string
	}{
		"nothing there":       {nil, move.Create},
		"the same":            {parse(t, "2023-05-02T08:00:00Z", "2023-05-02T10:00:00+02:00", `"-1s"`, `"0s"`), move.Unchanged},
		"one version less":    {parse(t, ten, ""), move.Update},
		"an older one pruned": {parse(t, ","+nine, ""), move.Unchanged},
		"other settings":      {parse(t, `"max_versions":0`, `"max_versions":3`), move.Update},
		"other metadata":      {parse(t, `null`, `{"a":"b"}`), move.Update},
		"changed here":        {parse(t, `"updated_time":"2023-05-02`, `"updated_time":"2023-05-03`), move.Conflict},
		"another secret":      {parse(t, `{"created_time":"2023-05-01T08:00:00.5Z","updated`, `{"created_time":"2023-05-01T08:00:00.6Z","updated`), move.Conflict},
		"another version":     {parse(t, `"10":{"created_time":"2023-05-02`, `"10":{"created_time":"2023-05-01`), move.Conflict},
		"one version more":    {parse(t, ten, ten+strings.Replace(ten, "10", "11", 1)), move.Conflict},
		"destroyed here":      {parse(t, `"deletion_time":"","destroyed":false},"9"`, `"deletion_time":"","destroyed":true},"9"`), move.Conflict},
		"deleted at one end":  {parse(t, `"deletion_time":"","destroyed":false},"9"`, `"deletion_time":"2023-06-01T00:00:00Z","destroyed":false},"9"`), move.Update},
		"no versions":         {parse(t, ten, "", nine, ""), move.Update},
	} {
		if action, reason := compare(parse(t), c.ours); action != c.action {
			t.Errorf("%s: %s (%s), want %s", name, action, reason, c.action)
		}
	}
	for _, text := range []string{`{`, `{"created_time":"yesterday"}`, `{"versions":{"x":{}}}`} {
		if _, err := parseMetadata([]byte(text)); err == nil {
			t.Errorf("%s is understood", text)
		}
	}
}
