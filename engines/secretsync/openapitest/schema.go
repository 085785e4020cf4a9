package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// schema is a schema of OpenAPI 3.0, with the keywords that the vendors' documents have. A document with another keyword cannot
// be loaded, so that no rule is overlooked.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Nullable             bool               `json:"nullable"`
	Enum                 []any              `json:"enum"`
	Pattern              string             `json:"pattern"`
	MaxLength            *int               `json:"maxLength"`
	Format               string             `json:"format"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties *bool              `json:"additionalProperties"`
	OneOf                []*schema          `json:"oneOf"`
	AnyOf                []*schema          `json:"anyOf"`

	// Keywords that are not rules.
	Title       any `json:"title"`
	Description any `json:"description"`
	Default     any `json:"default"`
	Example     any `json:"example"`
	Deprecated  any `json:"deprecated"`

	pattern *regexp.Regexp
}

// UnmarshalJSON implements json.Unmarshaler. Unknown keywords are errors, whatever the decoder of the document does.
func (s *schema) UnmarshalJSON(data []byte) (err error) {
	type plain schema
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(s)); err != nil {
		return fmt.Errorf("a schema: %w", err)
	}
	if s.Pattern != "" {
		s.pattern, err = regexp.Compile(s.Pattern)
	}
	return err
}

// subs are the schemas directly in s.
func (s *schema) subs() []*schema {
	subs := slices.Concat(s.OneOf, s.AnyOf)
	for _, sub := range s.Properties {
		subs = append(subs, sub)
	}
	if s.Items != nil {
		subs = append(subs, s.Items)
	}
	return subs
}

// resolve puts the schemas of the document in the place of references to them.
func (s *schema) resolve(named map[string]*schema) error {
	if s.Ref != "" {
		name, _ := strings.CutPrefix(s.Ref, "#/components/schemas/")
		target := named[name]
		if target == nil || target.Ref != "" {
			return fmt.Errorf("a reference to %q cannot be resolved", s.Ref)
		}
		*s = *target
	}
	for _, sub := range s.subs() {
		if err := sub.resolve(named); err != nil {
			return err
		}
	}
	return nil
}

// check returns how a decoded JSON value breaks the schema; at names the value.
func (s *schema) check(at string, v any) error {
	if v == nil && s.Nullable {
		return nil
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Errorf("%s is not one of %v", at, s.Enum)
	}
	if err := s.alternatives(at, v); err != nil {
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		return s.object(at, v)
	case []any:
		return s.array(at, v)
	case string:
		return s.text(at, v)
	case float64:
		if s.Type != "" && s.Type != "number" && (s.Type != "integer" || v != math.Trunc(v)) {
			return fmt.Errorf("%s is a number, want %s", at, s.Type)
		}
	case bool:
		return s.is(at, "boolean")
	case nil:
		return s.is(at, "null")
	}
	return nil
}

// is returns an error if the schema wants another type.
func (s *schema) is(at, kind string) error {
	if s.Type != "" && s.Type != kind {
		return fmt.Errorf("%s is of type %s, want %s", at, kind, s.Type)
	}
	return nil
}

func (s *schema) alternatives(at string, v any) error {
	fits := func(among []*schema) (n int, err error) {
		for _, sub := range among {
			if subErr := sub.check(at, v); subErr != nil {
				err = errors.Join(err, subErr)
			} else {
				n++
			}
		}
		return n, err
	}
	if n, err := fits(s.OneOf); n != 1 && len(s.OneOf) > 0 {
		return fmt.Errorf("%s fits %d alternatives, want exactly one: %w", at, n, err)
	}
	if n, err := fits(s.AnyOf); n == 0 && len(s.AnyOf) > 0 {
		return fmt.Errorf("%s fits no alternative: %w", at, err)
	}
	return nil
}

func (s *schema) object(at string, v map[string]any) error {
	if err := s.is(at, "object"); err != nil {
		return err
	}
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s has no property %q", at, name)
		}
	}
	for name, value := range v {
		sub := s.Properties[name]
		if sub == nil {
			if s.AdditionalProperties != nil && !*s.AdditionalProperties {
				return fmt.Errorf("%s has the unknown property %q", at, name)
			}
			continue
		}
		if err := sub.check(at+"/"+name, value); err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) array(at string, v []any) error {
	if err := s.is(at, "array"); err != nil {
		return err
	}
	for i, value := range v {
		if s.Items == nil {
			break
		}
		if err := s.Items.check(fmt.Sprintf("%s/%d", at, i), value); err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) text(at, v string) error {
	if err := s.is(at, "string"); err != nil {
		return err
	}
	if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
		return fmt.Errorf("%s is longer than %d", at, *s.MaxLength)
	}
	if s.pattern != nil && !s.pattern.MatchString(v) {
		return fmt.Errorf("%s does not match %s", at, s.Pattern)
	}
	if _, err := time.Parse(time.RFC3339, v); err != nil && s.Format == "date-time" {
		return fmt.Errorf("%s is not a date-time", at)
	}
	return nil
}
