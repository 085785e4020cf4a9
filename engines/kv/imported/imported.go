// Package imported reads the secrets that a request to import brings: it checks everything that can be known without the store.
// Start reading at Parse.
package imported

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/engines/kv/limits"
	"github.com/coffer-project/coffer/storage"
)

// Secret is one secret as another server had it.
type Secret struct {
	Path  string        `json:"-"`
	After time.Duration `json:"-"` // DeleteAfter, parsed

	Created     Time              `json:"created_time"`
	Updated     Time              `json:"updated_time"`
	CASRequired bool              `json:"cas_required"`
	MaxVersions uint32            `json:"max_versions"`
	DeleteAfter string            `json:"delete_version_after"`
	Custom      map[string]string `json:"custom_metadata"`
	Versions    []Version         `json:"versions"`
}

// Version is one version of a Secret.
type Version struct {
	Number    uint32         `json:"version"`
	Created   Time           `json:"created_time"`
	Deletion  Time           `json:"deletion_time"`
	Destroyed bool           `json:"destroyed"`
	Data      engines.Object `json:"data"`
}

// Time is in nanoseconds since 1970, and read as RFC 3339; an empty text is no time.
type Time int64

func (i *Time) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*i = 0
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil || at.Unix() <= 0 || at.Year() > 2261 {
		return errors.New("times must be RFC 3339, between 1970 and 2261")
	}
	*i = Time(at.UnixNano())
	return nil
}

// UnmarshalJSON keeps an object as it came; a null is none.
func (v *Version) UnmarshalJSON(raw []byte) error {
	type plain Version
	var with struct {
		plain
		Data json.RawMessage `json:"data"`
	}
	if err := decodeStrict(raw, &with); err != nil {
		return err
	}
	*v = Version(with.plain)
	if len(with.Data) > 0 && with.Data[0] != 'n' {
		if with.Data[0] != '{' {
			return errors.New("data must be an object")
		}
		v.Data = engines.Object(with.Data)
	}
	return nil
}

// decodeStrict is json.Unmarshal that rejects unknown names. Its errors hold no values.
func decodeStrict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return errors.New("a value of " + cmp.Or(wrong.Field, "it") + " has the wrong type")
	}
	return err
}

// Parse reads one secret.
func Parse(path string, raw json.RawMessage) (*Secret, error) {
	s := &Secret{Path: path}
	invalid := func(format string, args ...any) error {
		return engines.Invalid("field \"secrets\": secret %q: "+format, append([]any{path}, args...)...)
	}
	err := limits.Path(path)
	if err == nil {
		err = engines.CheckPath(path)
	}
	if err != nil {
		return nil, invalid("%s", err)
	}
	if err := decodeStrict(raw, s); err != nil {
		return nil, invalid("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if s.After, err = input.ParseDuration(s.DeleteAfter); err != nil {
		return nil, invalid("delete_version_after %s", err)
	}
	if s.Created == 0 || s.Updated == 0 {
		return nil, invalid("created_time and updated_time are required")
	}
	if err := limits.Custom(s.Custom); err != nil {
		return nil, invalid("%s", strings.TrimPrefix(err.Error(), "field \"custom_metadata\": "))
	}
	slices.SortFunc(s.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })
	for i, v := range s.Versions {
		switch {
		case v.Number == 0:
			return nil, invalid("a version has no number")
		case i > 0 && v.Number == s.Versions[i-1].Number:
			return nil, invalid("version %d is given twice", v.Number)
		case v.Created == 0:
			return nil, invalid("version %d: created_time is required", v.Number)
		case v.Destroyed && v.Data != nil:
			return nil, invalid("version %d is destroyed, so it has no data", v.Number)
		}
		if err := limits.Size(len(v.Data)); err != nil {
			return nil, err
		}
	}
	if n := s.Size(); n > 3*storage.MaxBatchBytes/4 {
		return nil, &engines.Error{Kind: engines.KindTooLarge, Detail: "secret " + path + " has too much data for one request: send its oldest versions first, then the others"}
	}
	return s, nil
}

// Size is about what the secret takes in a transaction.
func (s *Secret) Size() int {
	n := 2*len(s.Path) + 256
	for _, v := range s.Versions {
		n += len(v.Data) + len(s.Path) + 64
	}
	return n
}
