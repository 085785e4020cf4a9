package secrets

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
)

// metadata is what a server says of a secret of version 2.
type metadata struct {
	Created     time.Time
	Updated     time.Time
	CASRequired bool
	MaxVersions uint32
	DeleteAfter string // as sent to the destination
	Custom      map[string]string
	Versions    []version // ascending
}

type version struct {
	Number    uint32
	Created   time.Time
	Deletion  time.Time // zero: none
	Destroyed bool
}

// readable reports whether the version has data to read.
func (v version) readable(now time.Time) bool {
	return !v.Destroyed && (v.Deletion.IsZero() || v.Deletion.After(now))
}

func parseMetadata(raw json.RawMessage) (*metadata, error) {
	var in struct {
		Created     string            `json:"created_time"`
		Updated     string            `json:"updated_time"`
		CASRequired bool              `json:"cas_required"`
		MaxVersions uint32            `json:"max_versions"`
		DeleteAfter string            `json:"delete_version_after"`
		Custom      map[string]string `json:"custom_metadata"`
		Versions    map[string]struct {
			Created   string `json:"created_time"`
			Deletion  string `json:"deletion_time"`
			Destroyed bool   `json:"destroyed"`
		} `json:"versions"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	var failed error
	at := func(text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		t, err := time.Parse(time.RFC3339Nano, text)
		failed = cmp.Or(failed, err)
		return t.UTC()
	}
	m := &metadata{Created: at(in.Created), Updated: at(in.Updated), CASRequired: in.CASRequired, MaxVersions: in.MaxVersions, DeleteAfter: in.DeleteAfter, Custom: in.Custom}
	if m.DeleteAfter == "" || strings.HasPrefix(m.DeleteAfter, "-") {
		m.DeleteAfter = "0s"
	}
	for number, v := range in.Versions {
		n, err := strconv.ParseUint(number, 10, 32)
		failed = cmp.Or(failed, err)
		m.Versions = append(m.Versions, version{uint32(n), at(v.Created), at(v.Deletion), v.Destroyed})
	}
	slices.SortFunc(m.Versions, func(a, b version) int { return cmp.Compare(a.Number, b.Number) })
	return m, failed
}

// newest returns the number of the newest version, 0 if there is none.
func (m *metadata) newest() uint32 {
	if len(m.Versions) == 0 {
		return 0
	}
	return m.Versions[len(m.Versions)-1].Number
}

// compare says what an import of a secret does, as the destination will decide: ours is what is there, nil for nothing.
func compare(theirs, ours *metadata) (action, reason string) {
	switch {
	case ours == nil:
		return move.Create, ""
	case !theirs.Created.Equal(ours.Created):
		return move.Conflict, "another secret of this name was created here"
	case ours.Updated.After(theirs.Updated):
		return move.Conflict, "it was changed here since it was imported"
	}
	left := leftOut(theirs, ours)
	equal := theirs.Updated.Equal(ours.Updated) && theirs.CASRequired == ours.CASRequired && theirs.MaxVersions == ours.MaxVersions &&
		theirs.DeleteAfter == ours.DeleteAfter && maps.Equal(theirs.Custom, ours.Custom) && len(theirs.Versions)-left == len(ours.Versions)
	byNumber := map[uint32]version{}
	for _, v := range theirs.Versions {
		byNumber[v.Number] = v
	}
	for _, v := range ours.Versions {
		t, there := byNumber[v.Number]
		switch {
		case !there && len(theirs.Versions) > 0 && v.Number < theirs.Versions[0].Number:
			equal = false
		case !there:
			return move.Conflict, "it has versions here that are not imported"
		case !t.Created.Equal(v.Created):
			return move.Conflict, "it has another version of the same number here"
		case v.Destroyed && !t.Destroyed:
			return move.Conflict, "a version was destroyed here"
		}
		equal = equal && t.Destroyed == v.Destroyed && t.Deletion.Equal(v.Deletion)
	}
	if equal {
		return move.Unchanged, ""
	}
	return move.Update, ""
}

// leftOut returns how many of the oldest versions the destination does not keep: max_versions counts there at once, at the source only with
// the next write.
func leftOut(theirs, ours *metadata) int {
	if len(ours.Versions) == 0 {
		return 0
	}
	n := 0
	for n < len(theirs.Versions) && theirs.Versions[n].Number < ours.Versions[0].Number {
		n++
	}
	return n
}
