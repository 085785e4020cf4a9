package openapi

import (
	"fmt"
	"maps"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// response is what a route declares of its responses: see engines.Route.Returns.
type response struct {
	kind   string // "" an envelope, "json" an object without one, else the content type of a body that is not JSON
	auth   bool   // the envelope has "auth"
	both   bool   // the fields of "data" are at the top of the envelope, too
	empty  bool   // a response without a body is possible, too
	fields object // the schema of "data", or of the object; nil: there is none
}

// parseShape reads the shape of a route. A route without one never has a body.
func parseShape(r *engines.Route, help func(name string) string) (*response, error) {
	if r.Shape == "" {
		return nil, nil
	}
	out, text := &response{}, r.Shape
	if before, after, found := strings.Cut(text, ";"); found && !strings.Contains(before, `"`) {
		for _, word := range strings.Fields(before) {
			switch {
			case word == "auth":
				out.auth = true
			case word == "top":
				out.both = true
			case word == "empty":
				out.empty = true
			case word == "json", strings.Contains(word, "/"):
				out.kind = word
			default:
				return nil, fmt.Errorf("%s %q returns %q: %q is no kind of response", r.Op, r.Pattern, r.Shape, word)
			}
		}
		text = after
	}
	p := shapeParser{text: text, help: help}
	p.space()
	if p.text == "" {
		return out, nil
	}
	var err error
	if out.fields, err = p.fields(""); err == nil && p.text != "" {
		err = fmt.Errorf("%q is left", p.text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q returns %q: %w", r.Op, r.Pattern, r.Shape, err)
	}
	return out, nil
}

// shapeParser reads the fields of a shape. text is what is left of it.
type shapeParser struct {
	text string
	help func(name string) string
}

func (p *shapeParser) space() { p.text = strings.TrimLeft(p.text, " \t\n") }

func (p *shapeParser) take(token string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.text, token)
	if ok {
		p.text = rest
		p.space()
	}
	return ok
}

// word returns the next name, "" if there is none.
func (p *shapeParser) word() string {
	p.space()
	end := strings.IndexAny(p.text, " \t\n,:?|{}[]\"")
	if end < 0 {
		end = len(p.text)
	}
	word := p.text[:end]
	p.text = p.text[end:]
	p.space()
	return word
}

// fields reads fields up to the given end, which it takes.
func (p *shapeParser) fields(end string) (object, error) {
	if p.take("}") {
		return object{"type": "object", "additionalProperties": false}, nil
	}
	properties := object{}
	schema := object{"type": "object", "properties": properties}
	for {
		name := p.word()
		if name == "" {
			return nil, fmt.Errorf("a name is missing before %q", p.text)
		}
		field := object{"type": "string"}
		if p.take(":") {
			var err error
			if field, err = p.kind(); err != nil {
				return nil, err
			}
		}
		text := p.help(name)
		if p.take(`"`) {
			before, after, closed := strings.Cut(p.text, `"`)
			if text, p.text = before, after; !closed {
				return nil, fmt.Errorf("a quote is missing after %q", before)
			}
			p.space()
		}
		if name == "*" {
			schema["additionalProperties"] = field
		} else {
			if text != "" {
				field["description"] = text
			}
			properties[name] = field
		}
		if !p.take(",") {
			break
		}
	}
	if len(properties) == 0 {
		delete(schema, "properties")
	}
	if !p.take(end) {
		return nil, fmt.Errorf("%q is expected before %q", end, p.text)
	}
	return schema, nil
}

// kind reads a type.
func (p *shapeParser) kind() (object, error) {
	var out object
	var err error
	switch {
	case p.take("["):
		items, failed := p.kind()
		if out, err = (object{"type": "array", "items": items}), failed; err == nil && !p.take("]") {
			err = fmt.Errorf(`"]" is expected before %q`, p.text)
		}
	case p.take("{"):
		out, err = p.fields("}")
	default:
		switch word := p.word(); word {
		case "string", "integer", "number", "boolean":
			out = object{"type": word}
		case "any":
			return object{}, nil // of OpenAPI's schemas only the one without a type takes everything
		default:
			err = fmt.Errorf("%q is no type", word)
		}
	}
	if err == nil && p.take("|") {
		other, failed := p.kind()
		return object{"oneOf": []object{out, other}}, failed
	}
	if err == nil && p.take("?") {
		out["nullable"] = true
	}
	return out, err
}

// fieldHelp returns what the routes of a mount say of a field of that name, "" if nothing or not the same: the fields that are read are
// mostly those that were written.
func fieldHelp(routes []*engines.Route) func(name string) string {
	texts := map[string]string{}
	for _, r := range routes {
		for _, f := range r.Fields {
			if seen, ok := texts[f.Name]; ok && seen != f.Help || f.In == "path" {
				texts[f.Name] = ""
			} else if !ok && f.In == "body" && !f.Whole {
				texts[f.Name] = f.Help
			}
		}
	}
	return func(name string) string { return texts[name] }
}

// responses describes the responses of a route, with an example of each.
func responses(r *response) object {
	out := object{"default": object{"$ref": "#/components/responses/Error"}}
	ok := object{"description": "OK"}
	if r == nil {
		r, ok["description"] = &response{empty: true}, "Done, with warnings or a wrapped response."
	}
	if r.empty {
		out["204"] = object{"description": "Done. There is no body."}
	}
	switch r.kind {
	case "":
		properties, example := object{}, envelopeExample()
		own := object{"type": "object", "properties": properties}
		if r.auth {
			properties["auth"], example["auth"] = object{"$ref": "#/components/schemas/Auth"}, exampleOf("", authSchema)
		}
		data := object{"type": "object", "nullable": true, "additionalProperties": false}
		if r.fields != nil {
			data = maps.Clone(r.fields)
			data["nullable"] = true // while it is wrapped
			example["data"] = exampleOf("", data)
		}
		properties["data"] = data
		if names, ok := r.fields["properties"].(object); ok && r.both {
			for name, field := range names {
				properties[name], example[name] = field, exampleOf(name, field.(object))
			}
		}
		if r.both && r.fields["additionalProperties"] != nil {
			own["additionalProperties"] = true
		}
		schema := object{"allOf": []object{{"$ref": "#/components/schemas/Envelope"}, own}}
		ok["content"] = object{"application/json": object{"schema": schema, "example": example}}
	case "json":
		ok["content"] = object{"application/json": object{"schema": r.fields, "example": exampleOf("", r.fields)}}
	default:
		ok["description"] = "A body of the type " + r.kind + ", without an envelope."
		ok["content"] = object{r.kind: object{"schema": object{"type": "string"}, "example": "…"}}
	}
	out["200"] = ok
	return out
}

var authSchema = object{"type": "object", "nullable": true, "description": "The token that a login or a token path made.", "properties": object{
	"client_token": object{"type": "string", "format": "password"}, "accessor": object{"type": "string"},
	"policies": texts, "token_policies": texts, "identity_policies": texts,
	"metadata":       object{"type": "object", "nullable": true, "additionalProperties": object{"type": "string"}},
	"lease_duration": object{"type": "integer", "description": "Seconds."}, "renewable": object{"type": "boolean"},
	"entity_id": object{"type": "string"}, "token_type": object{"type": "string"}, "orphan": object{"type": "boolean"},
	"num_uses": object{"type": "integer"},
	"mfa_requirement": object{"type": "object", "nullable": true, "description": "What the login needs besides: sys/mfa/validate takes the codes.", "properties": object{
		"mfa_request_id": object{"type": "string"},
		"mfa_constraints": object{"type": "object", "additionalProperties": object{"type": "object", "properties": object{
			"any": object{"type": "array", "items": object{"type": "object", "properties": object{
				"type": object{"type": "string"}, "id": object{"type": "string"}, "uses_passcode": object{"type": "boolean"}, "name": object{"type": "string"},
			}}},
		}}},
	}},
}}

var texts = object{"type": "array", "nullable": true, "items": object{"type": "string"}}

// components are the schemas that responses share.
func components() object {
	return object{
		"securitySchemes": object{"token": object{"type": "apiKey", "in": "header", "name": "X-Vault-Token"}},
		"schemas": object{
			"Auth": authSchema,
			"Envelope": object{"type": "object", "description": "What every JSON response has around its data.", "properties": object{
				"request_id":     object{"type": "string", "description": "Also in the audit log."},
				"lease_id":       object{"type": "string", "description": "Renew or revoke it; empty without a lease."},
				"renewable":      object{"type": "boolean"},
				"lease_duration": object{"type": "integer", "description": "Seconds."},
				"data":           object{"type": "object", "nullable": true, "additionalProperties": true},
				"auth":           object{"type": "object", "nullable": true, "additionalProperties": true},
				"wrap_info": object{"type": "object", "nullable": true, "description": "Where a wrapped response is.", "properties": object{
					"token": object{"type": "string", "format": "password"}, "accessor": object{"type": "string"},
					"ttl": object{"type": "integer", "description": "Seconds."}, "creation_time": object{"type": "string"},
					"creation_path": object{"type": "string"}, "wrapped_accessor": object{"type": "string"},
				}},
				"warnings":   texts,
				"mount_type": object{"type": "string"},
			}},
		},
		"responses": object{"Error": object{
			"description": "The request failed. Each text says what failed and what to change.",
			"content": object{"application/json": object{
				"schema": object{"type": "object", "properties": object{
					"errors":   object{"type": "array", "items": object{"type": "string"}},
					"data":     object{"type": "object", "nullable": true, "additionalProperties": true},
					"warnings": texts,
				}},
				"example": object{"errors": []string{"permission denied"}},
			}},
		}},
	}
}

// description returns what a route does, and what it asks of the caller and the node, in sentences.
func description(r *engines.Route) string {
	lines := []string{strings.TrimSuffix(r.Help, ".") + "."}
	say := func(f engines.Flags, text string) {
		if r.Flags.Has(f) {
			lines = append(lines, text)
		}
	}
	switch {
	case r.Flags.Has(engines.Unauthenticated):
		lines = append(lines, "Needs no token.")
	case r.Flags.Has(engines.AnyToken):
		lines = append(lines, "Needs a valid token, whatever its policies.")
	case r.Flags.Has(engines.Sudo):
		lines = append(lines, fmt.Sprintf("Needs a policy with the capabilities `%s` and `sudo` on the path.", capability(r)))
	default:
		lines = append(lines, fmt.Sprintf("Needs a policy with the capability `%s` on the path.", capability(r)))
	}
	say(engines.RootNamespace, "Answers in the root namespace only.")
	say(engines.WorksSealed, "Answers while the node is sealed, too.")
	say(engines.AnyNode, "Concerns the node that it reaches.")
	say(engines.Primary, "On a secondary it is forwarded to the primary.")
	say(engines.Strict, "Rejects fields that it does not know.")
	say(engines.RawBody, "The body is a stream of bytes, not JSON.")
	say(engines.Form, "Takes the form of a browser, too.")
	return strings.Join(lines, " ")
}

// capability is that of a policy which allows the operation.
func capability(r *engines.Route) string {
	if r.Op == engines.Update && r.Exists != nil {
		return "create` or `update"
	}
	return string(r.Op)
}
