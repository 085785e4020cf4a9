// Package systemtest sends requests to sys paths on a router of their own, as tests of the packages below system do.
package systemtest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

// Ask runs a request on a router and returns the answer's data.
func Ask(t testing.TB, r *engines.Router, op engines.Operation, path, body string) (map[string]any, *engines.Response, error) {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	req := &engines.Request{Op: op, Path: path, Query: values, Header: http.Header{}}
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	resp, err := r.Handle(t.Context(), req)
	if err != nil || resp == nil {
		return nil, nil, err
	}
	raw, err := json.Marshal(resp.Data)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Raw != nil && resp.Raw.ContentType == "application/json" {
		raw = resp.Raw.Body
	}
	var data map[string]any
	if err := json.Unmarshal(raw, &data); err != nil {
		t.Fatal(err)
	}
	return data, resp, nil
}

// Must is Ask that fails the test on an error, and returns the data.
func Must(t testing.TB, r *engines.Router, op engines.Operation, path, body string) map[string]any {
	t.Helper()
	data, _, err := Ask(t, r, op, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", op, path, err)
	}
	return data
}

// Refused checks that a request fails with this kind.
func Refused(t testing.TB, r *engines.Router, kind engines.Kind, op engines.Operation, path, body string) {
	t.Helper()
	_, _, err := Ask(t, r, op, path, body)
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("%s %s %s = %v, want an error of kind %d", op, path, body, err, kind)
	}
}

// Router returns a router with these declarations.
func Router(declare ...func(*engines.Router)) *engines.Router {
	r := engines.NewRouter()
	for _, d := range declare {
		d(r)
	}
	return r
}
