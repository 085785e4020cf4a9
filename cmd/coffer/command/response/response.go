// Package response turns what the server sent into the rows of a table, and one value into what a script reads. Start with Rows.
package response

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/openbao/openbao/api/v2"
)

// Row is one line of a two-column table, and one name -field knows.
type Row struct {
	Key   string
	Value any
}

// Rows lists what a response holds: its lease, token and wrapping, then its data by name.
func Rows(s *api.Secret) []Row {
	if s == nil {
		return nil
	}
	var rows []Row
	add := func(key string, value any) { rows = append(rows, Row{key, value}) }
	switch {
	case s.LeaseID != "":
		add("lease_id", s.LeaseID)
		add("lease_duration", s.LeaseDuration)
		add("lease_renewable", s.Renewable)
	case s.LeaseDuration > 0:
		add("refresh_interval", s.LeaseDuration)
	}
	if t := s.Auth; t != nil {
		if t.MFARequirement != nil && t.ClientToken == "" {
			rows = append(rows, factorRows(t.MFARequirement)...)
			return append(rows, Data(s.Data)...)
		}
		add("token", t.ClientToken)
		add("token_accessor", t.Accessor)
		add("token_duration", TokenDuration(t.LeaseDuration))
		add("token_renewable", t.Renewable)
		add("token_policies", t.TokenPolicies)
		add("identity_policies", t.IdentityPolicies)
		add("policies", t.Policies)
		if t.EntityID != "" {
			add("entity_id", t.EntityID)
		}
		for _, k := range slices.Sorted(maps.Keys(t.Metadata)) {
			add("token_meta_"+k, t.Metadata[k])
		}
	}
	if w := s.WrapInfo; w != nil {
		add("wrapping_token", w.Token)
		add("wrapping_accessor", w.Accessor)
		add("wrapping_token_ttl", w.TTL)
		add("wrapping_token_creation_time", w.CreationTime)
		add("wrapping_token_creation_path", w.CreationPath)
		if w.WrappedAccessor != "" {
			add("wrapped_accessor", w.WrappedAccessor)
		}
	}
	return append(rows, Data(s.Data)...)
}

// TokenDuration is how long a token lives, for a table "∞" if for ever.
func TokenDuration(seconds int) any {
	if seconds == 0 {
		return forever{}
	}
	return seconds
}

// forever is shown as ∞ and stays 0 for scripts.
type forever struct{}

func (forever) String() string               { return "∞" }
func (forever) MarshalJSON() ([]byte, error) { return []byte("0"), nil }

// Data lists data by name.
func Data(data map[string]any) []Row {
	rows := make([]Row, 0, len(data))
	for _, k := range slices.Sorted(maps.Keys(data)) {
		rows = append(rows, Row{k, data[k]})
	}
	return rows
}

// Bare is a value as a script wants it: strings and numbers as they are, anything else as JSON.
func Bare(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	}
	raw, err := json.Marshal(value)
	return string(raw), err
}

// MethodName is how a second factor is called for people.
func MethodName(m *api.MFAMethodID) string {
	if m.Name != "" {
		return m.Name
	}
	return m.ID
}

// factorRows is a login that waits for codes, as a table.
func factorRows(need *api.MFARequirement) []Row {
	rows := []Row{{"mfa_request_id", need.MFARequestID}}
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		for _, m := range need.MFAConstraints[name].Any {
			prefix := fmt.Sprintf("mfa_constraint_%s_%s_", name, m.Type)
			rows = append(rows, Row{prefix + "id", m.ID})
			if m.Name != "" {
				rows = append(rows, Row{prefix + "name", m.Name})
			}
			rows = append(rows, Row{prefix + "uses_passcode", m.UsesPasscode})
		}
	}
	return rows
}
