package webhost

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The types of records.
const (
	sensitive = "sensitive"
	encrypted = "encrypted"
	system    = "system"
)

// record is one environment variable as the API answers it, without its value.
type record struct {
	ID      string
	Key     string
	Type    string
	Targets []string
	Branch  string
	Custom  []string // ids of custom environments
	Mark    string   // ours, "" if it has none
	Updated string   // when, in milliseconds
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *record) UnmarshalJSON(data []byte) error {
	var in struct {
		ID      string      `json:"id"`
		Key     string      `json:"key"`
		Type    string      `json:"type"`
		Target  oneOrMore   `json:"target"`
		Branch  string      `json:"gitBranch"`
		Custom  []string    `json:"customEnvironmentIds"`
		Comment string      `json:"comment"`
		Updated json.Number `json:"updatedAt"`
		Created json.Number `json:"createdAt"`
		System  bool        `json:"system"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*r = record{
		ID: in.ID, Key: in.Key, Type: in.Type, Targets: in.Target, Branch: in.Branch, Custom: in.Custom,
		Mark: markOf(in.Comment), Updated: cmp.Or(in.Updated.String(), in.Created.String()),
	}
	if in.System {
		r.Type = system
	}
	return nil
}

// complete reports whether a response has all that tells records apart.
func (r *record) complete() bool {
	_, err := strconv.ParseFloat(r.Updated, 64)
	return r.Key != "" && err == nil && legalID.MatchString(r.ID) && !strings.Contains(r.ID, "..")
}

// changedAt returns when a record was last written, zero if it cannot be parsed.
func (r *record) changedAt() time.Time {
	ms, err := strconv.ParseFloat(r.Updated, 64)
	if err != nil || ms <= 0 || ms > 1e14 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

// oneOrMore is a text or a list of texts.
type oneOrMore []string

// UnmarshalJSON implements json.Unmarshaler.
func (o *oneOrMore) UnmarshalJSON(data []byte) error {
	var one string
	if bytes.HasPrefix(data, []byte(`"`)) {
		err := json.Unmarshal(data, &one)
		*o = oneOrMore{one}
		return err
	}
	return json.Unmarshal(data, (*[]string)(o))
}

// answer is what the list and the creation of variables give.
type answer struct {
	Envs    []record `json:"envs"`
	Created records  `json:"created"`
	Failed  []struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	} `json:"failed"`
	// Hidden is how many variables of production the token may not see.
	Hidden     int `json:"hiddenProductionEnvCount"`
	Pagination *struct {
		Next *json.Number `json:"next"`
	} `json:"pagination"`
}

// records is a record or a list of them.
type records []record

// UnmarshalJSON implements json.Unmarshaler.
func (rs *records) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("{")) {
		var one record
		if err := json.Unmarshal(data, &one); err != nil {
			return err
		}
		*rs = nil
		if one.ID != "" {
			*rs = records{one}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]record)(rs))
}

var errIncomplete = errors.New("a record is not complete")

// decodeAnswer returns a response all of whose records are complete.
func decodeAnswer(data []byte) (*answer, error) {
	a := new(answer)
	if err := json.Unmarshal(data, a); err != nil {
		return nil, err
	}
	for _, r := range slices.Concat(a.Envs, a.Created) {
		if r.Type != system && !r.complete() {
			return nil, errIncomplete
		}
	}
	return a, nil
}

// comment is what people read beside our variables; it ends with the ownership tag.
func comment(mark string) string {
	return "Kept by Coffer's secret sync: do not edit it here. [coffer:" + mark + "]"
}

var markPattern = regexp.MustCompile(`\[coffer:([A-Za-z0-9-]{1,80})\]$`)

func markOf(comment string) string {
	if m := markPattern.FindStringSubmatch(comment); m != nil {
		return m[1]
	}
	return ""
}

// sum returns what records of one name are together.
func sum(name string, rs []record) destination.Found {
	if len(rs) == 0 {
		return destination.Found{Name: name, State: destination.Absent}
	}
	rs = slices.SortedFunc(slices.Values(rs), func(a, b record) int { return cmp.Compare(a.ID, b.ID) })
	ids, versions := make([]string, len(rs)), make([]string, len(rs))
	mark, changed := rs[0].Mark, time.Time{}
	for i, r := range rs {
		ids[i], versions[i] = r.ID, r.Updated
		if at := r.changedAt(); at.After(changed) {
			changed = at
		}
		if r.Mark != mark {
			mark = "" // a part of it is another client's
		}
	}
	return destination.Found{
		Name: name, State: destination.Present, OwnerTag: mark, ID: strings.Join(ids, "+"), Version: strings.Join(versions, "+"),
		ChangedAt: changed,
	}
}
