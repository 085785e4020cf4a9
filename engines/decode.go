package engines

import (
	"encoding/json"
	"reflect"
	"strings"
)

type plan struct{ t reflect.Type }

func newPlan(t reflect.Type, op Operation, segments []segment) (*plan, error) { return &plan{t}, nil }
func (p *plan) describe() []Field                                            { return nil }
func (p *plan) defaults() reflect.Value                                      { return reflect.Zero(p.t) }
func (p *plan) decode(req *Request, params map[string]string, in reflect.Value) ([]string, error) {
	if len(req.Body) == 0 {
		return nil, nil
	}
	return nil, json.Unmarshal(req.Body, in.Addr().Interface())
}
func quoteNames(names []string) string { return strings.Join(names, ", ") }

// Duration is a time.Duration in an input struct.
type Duration int64

// StringList is a list of texts in an input struct.
type StringList []string

// StringMap maps texts to texts in an input struct.
type StringMap map[string]string

// Object is a JSON object kept as it came.
type Object json.RawMessage
