package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/role"
)

// sessionPolicy returns what limits temporary credentials: the role's own policies together with those of its groups, which
// the provider does not know sessions to be in.
func sessionPolicy(ctx context.Context, api aws.API, r *role.Role) (document string, arns []string, err error) {
	if len(r.IAMGroups) == 0 {
		return r.PolicyDocument, r.PolicyARNs, nil
	}
	var documents []string
	if r.PolicyDocument != "" {
		documents = append(documents, r.PolicyDocument)
	}
	arns = slices.Clone(r.PolicyARNs)
	for _, group := range r.IAMGroups {
		inline, attached, err := api.GroupPolicies(ctx, group)
		if err != nil {
			return "", nil, err
		}
		documents = append(documents, inline...)
		arns = append(arns, attached...)
	}
	slices.Sort(arns)
	arns = slices.Compact(arns)
	if document, err = merge(documents); err != nil {
		return "", nil, engines.Invalid("iam_groups: the policies of the groups and the role's cannot be one: %v", err)
	}
	n := utf8.RuneCountInString(document)
	switch {
	case document == "" && len(arns) == 0:
		return "", nil, engines.Invalid("iam_groups: the groups have no policies, so they would not limit the credentials")
	case n > role.MaxDocumentChars:
		return "", nil, engines.Invalid("iam_groups: the policies of the groups and the role's have %d characters together, the provider takes %d: shorten them, or attach managed policies", n, role.MaxDocumentChars)
	case len(arns) > role.MaxSessionPolicies:
		return "", nil, engines.Invalid("iam_groups: the groups and the role have %d managed policies together, the provider takes %d", len(arns), role.MaxSessionPolicies)
	}
	return document, arns, nil
}

const newestVersion = "2012-10-17"

// merge makes one policy of several, "" of none. Statement ids go: they would have to be unique.
func merge(documents []string) (string, error) {
	if len(documents) == 0 {
		return "", nil
	}
	var all []map[string]json.RawMessage
	versions := make([]string, len(documents))
	for i, text := range documents {
		var document struct {
			Version   string
			Statement json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			return "", errors.New("one is not a JSON object with Version and Statement")
		}
		statements, err := statementsOf(document.Statement)
		if err != nil {
			return "", err
		}
		all = append(all, statements...)
		versions[i] = document.Version
	}
	version, err := versionOf(versions, documents)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		delete(s, "Sid")
	}
	merged := struct {
		Version   string `json:",omitempty"`
		Statement []map[string]json.RawMessage
	}{version, all}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // each \u0026 is five characters more
	if err := enc.Encode(merged); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// statementsOf reads one statement or a list of them.
func statementsOf(raw json.RawMessage) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	if json.Unmarshal(raw, &list) == nil && !slices.ContainsFunc(list, func(s map[string]json.RawMessage) bool { return s == nil }) {
		return list, nil
	}
	var one map[string]json.RawMessage
	if err := json.Unmarshal(raw, &one); err != nil || one == nil {
		return nil, errors.New("one has a Statement that is neither an object nor a list of objects")
	}
	return []map[string]json.RawMessage{one}, nil
}

// versionOf returns the language version of policies together. Older versions take "${" as text and the newest as a
// variable, so such a policy cannot be one with others.
func versionOf(versions, documents []string) (string, error) {
	if !slices.ContainsFunc(versions, func(v string) bool { return v != versions[0] }) {
		return versions[0], nil
	}
	for i, v := range versions {
		if v != newestVersion && strings.Contains(documents[i], "${") {
			return "", errors.New("one holds \"${\" and has not the Version \"" + newestVersion + "\" as others have")
		}
	}
	return newestVersion, nil
}
