package openapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// byName are values of examples, by the name of the field: those that say more than the type does.
var byName = map[string]any{
	"accessor": "hmrQ0nCdqjRcbbZYQVDBs1Dh", "address": "https://10.0.1.7:8200", "api_address": "https://10.0.1.7:8200", "cluster_address": "https://10.0.1.7:8201",
	"client_token": "hvs.CAESIJ…", "cluster_id": "4d1c09cf-2f31-4a0f-8f0e-0a1b7d3a5f7e", "cluster_name": "eu-1", "created_time": exampleTime, "creation_time": exampleTime,
	"deletion_time": "", "description": "payments team", "display_name": "userpass-ana", "entity_id": exampleID, "expire_time": exampleTime,
	"id": exampleID, "issue_time": exampleTime, "issuer": "https://coffer.example.com", "keys": []any{"app"}, "last_update_time": exampleTime, "lease_duration": 2764800,
	"lease_id": "aws/creds/deploy/2wlWFOzGkNbQZ2tS", "max_ttl": "24h", "max_versions": 10, "mount_accessor": "auth_userpass_1c9f3f07", "name": "app", "namespace": "team",
	"node_id": "n1", "password": "correct-horse", "path": "app", "policies": []any{"default", "app-read"}, "policy": `path "secret/data/app" { capabilities = ["read"] }`,
	"rules": `path "secret/data/app" { capabilities = ["read"] }`, "secret_id": "f0c3b8a1-…", "role_id": "7be1c5d6-0a55-4f6c-9b6e-5a2a1f1d7a30", "role_name": "app", "role": "app",
	"state": "active", "status": "ok", "token": "hvs.CAESIJ…", "token_policies": []any{"app-read"}, "token_type": "service", "ttl": "1h", "type": "kv",
	"updated_time": exampleTime, "username": "ana", "uuid": exampleID, "version": 1, "versions": []any{1}, "request_id": exampleID,
}

const (
	exampleTime = "2026-03-14T09:26:53Z"
	exampleID   = "8f4b2c1d-6e0a-4d53-9a77-51c3e2b9d406"
)

// exampleOf returns a value that fits a schema of ours. The same schema has the same example.
func exampleOf(name string, schema object) any {
	if v, ok := schema["default"]; ok {
		return v
	}
	if all, ok := schema["enum"].([]string); ok {
		for _, v := range all {
			if v != "" {
				return v
			}
		}
	}
	if v, ok := byName[name]; ok && fits(schema, v) {
		return v
	}
	if either, ok := schema["oneOf"].([]object); ok {
		return exampleOf(name, either[0])
	}
	switch schema["type"] {
	case "string":
		switch {
		case schema["format"] == "duration":
			return "1h"
		case schema["format"] == "binary":
			return "…"
		case strings.HasSuffix(name, "_time"), strings.HasSuffix(name, "_at"):
			return exampleTime
		}
		return "example"
	case "boolean":
		return true
	case "integer", "number":
		return 1
	case "array":
		items, _ := schema["items"].(object)
		return []any{exampleOf(strings.TrimSuffix(name, "s"), items)}
	case "object":
		out := object{}
		properties, _ := schema["properties"].(object)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			out[name] = exampleOf(name, properties[name].(object))
		}
		if any, ok := schema["additionalProperties"].(object); ok && len(properties) == 0 {
			out["app"] = exampleOf("", any)
		}
		return out
	}
	return "example"
}

// fits reports whether a value of byName is of the type of a schema.
func fits(schema object, v any) bool {
	switch v := v.(type) {
	case string:
		return schema["type"] == "string"
	case int:
		return schema["type"] == "integer" || schema["type"] == "number"
	case []any:
		items, ok := schema["items"].(object)
		return ok && fits(items, v[0])
	}
	return false
}

// bodyExample returns an example of a request's body: the fields that are required, or else the first ones.
func bodyExample(schema object) any {
	const shown = 4
	properties, _ := schema["properties"].(object)
	if properties == nil {
		return exampleOf("", schema)
	}
	names, _ := schema["required"].([]string)
	if names == nil {
		names = slices.Sorted(maps.Keys(properties))
		names = names[:min(len(names), shown)]
	}
	out := object{}
	for _, name := range names {
		out[name] = exampleOf(name, properties[name].(object))
	}
	return out
}

func envelopeExample() object {
	return object{
		"request_id": exampleID, "lease_id": "", "renewable": false, "lease_duration": 0,
		"data": nil, "wrap_info": nil, "warnings": nil, "auth": nil,
	}
}

// command returns an example of a request with curl, for readers of the document.
func command(method, path string, parameters []object, kind string, body any) string {
	var query []string
	for _, p := range parameters {
		name, _ := p["name"].(string)
		switch {
		case p["in"] == "path":
			path = strings.ReplaceAll(path, "{"+name+"}", text(p["example"]))
		case p["required"] == true:
			query = append(query, name+"="+text(p["example"]))
		}
	}
	if query != nil {
		path += "?" + strings.Join(query, "&")
	}
	out := "curl -X " + strings.ToUpper(method) + ` -H "X-Vault-Token: $COFFER_TOKEN" `
	switch {
	case kind == "application/octet-stream":
		out += "--data-binary @FILE "
	case kind != "":
		encoded, err := json.Marshal(body)
		if err != nil {
			encoded = []byte("{}")
		}
		out += "-H 'Content-Type: " + kind + "' -d '" + strings.ReplaceAll(string(encoded), "'", `'\''`) + "' "
	}
	return out + `"$COFFER_ADDR/v1` + path + `"`
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return strings.Trim(string(encoded), `"`)
}
