// Package openapitest holds a client and the fake of a vendor against the vendor's own OpenAPI document: every request that a
// test makes, and every answer that the fake gives. A difference fails the test, because it would be a failure in production,
// or a test of something that does not exist.
package openapitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// longAnswer is from how many bytes on only some answers are held against the contract: they are long lists of what shorter ones
// have had, and take long.
const longAnswer = 4 << 10

// Contract is a vendor's document. Safe for concurrent use once it is set up.
type Contract struct {
	// Unlisted are statuses that the vendor answers and does not document.
	Unlisted map[int]bool
	// Ignore reports paths that the document has been pruned of.
	Ignore func(path string) bool

	doc  *openapi3.T
	long atomic.Int64 // long answers so far
}

// Load reads a document. It panics on one that is not valid: documents are part of a program.
func Load(data []byte) *Contract {
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err == nil {
		err = doc.Validate(context.Background())
	}
	if err != nil {
		panic(fmt.Sprintf("the vendor's document: %v", err))
	}
	return &Contract{doc: doc}
}

// AnyOf has the alternatives of answers overlap, which the vendor's generated documents have them do: an empty object among
// them fits everything, so that exactly one never does.
func (c *Contract) AnyOf() *Contract {
	for _, item := range c.doc.Paths.Map() {
		for _, op := range item.Operations() {
			for _, resp := range op.Responses.Map() {
				for _, media := range resp.Value.Content {
					relax(media.Schema)
				}
			}
		}
	}
	return c
}

func relax(s *openapi3.SchemaRef) {
	if s == nil || s.Value == nil {
		return
	}
	s.Value.AnyOf, s.Value.OneOf = append(s.Value.AnyOf, s.Value.OneOf...), nil
	for _, sub := range s.Value.AnyOf {
		relax(sub)
	}
	for _, sub := range s.Value.Properties {
		relax(sub)
	}
	relax(s.Value.Items)
}

// Handler holds what goes in and comes out of next against the contract. Paths begin after prefix.
func (c *Contract) Handler(t testing.TB, prefix string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		problem := c.exchange(rec, r, prefix, next)
		if problem != nil {
			t.Errorf("%s %s breaks the vendor's contract: %v", r.Method, r.URL.Path, problem)
		}
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()) // whoever has gone needs no answer
	})
}

func (c *Contract) exchange(w *httptest.ResponseRecorder, r *http.Request, prefix string, next http.Handler) error {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	if !ok || c.Ignore != nil && c.Ignore(path) {
		next.ServeHTTP(w, r)
		return nil
	}
	route, params, err := c.find(r.Method, path)
	if err != nil {
		next.ServeHTTP(w, r)
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	opts := &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
		RejectWhenRequestBodyNotSpecified: true, MultiError: true, SkipSettingDefaults: true,
	}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: opts}
	reqErr := openapi3filter.ValidateRequest(r.Context(), in)
	unknown := c.unknownQuery(route, r.URL.Query())
	r.Body = io.NopCloser(bytes.NewReader(body))
	next.ServeHTTP(w, r)
	if c.Unlisted[w.Code] {
		if w.Code == http.StatusBadRequest || w.Code == http.StatusUnprocessableEntity {
			return nil // the fake has found it out by itself
		}
		return errors.Join(reqErr, unknown)
	}
	if w.Code == http.StatusBadRequest {
		return unknown
	}
	if w.Body.Len() > longAnswer && c.long.Add(1)%16 != 1 {
		return errors.Join(reqErr, unknown)
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: w.Code, Header: w.Header(), Options: opts, Body: io.NopCloser(bytes.NewReader(w.Body.Bytes())),
	}
	return errors.Join(reqErr, unknown, openapi3filter.ValidateResponse(r.Context(), out))
}

// unknownQuery returns an error for a parameter that the operation does not have.
func (c *Contract) unknownQuery(route *routers.Route, query url.Values) error {
	for name := range query {
		if route.Operation.Parameters.GetByInAndName(openapi3.ParameterInQuery, name) == nil {
			return fmt.Errorf("there is no parameter %q", name)
		}
	}
	return nil
}

// find returns the operation of a request. A literal segment beats a parameter.
func (c *Contract) find(method, path string) (*routers.Route, map[string]string, error) {
	var best *routers.Route
	var params map[string]string
	for pattern, item := range c.doc.Paths.Map() {
		got, ok := match(pattern, path)
		if op := item.GetOperation(method); ok && op != nil && (best == nil || len(got) < len(params)) {
			best = &routers.Route{Spec: c.doc, Path: pattern, PathItem: item, Method: method, Operation: op}
			params = got
		}
	}
	if best == nil {
		return nil, nil, errors.New("there is no such operation")
	}
	return best, params, nil
}

func match(pattern, path string) (map[string]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return nil, false
	}
	params := map[string]string{}
	for i, w := range want {
		g, err := url.PathUnescape(got[i])
		switch {
		case err != nil || g == "":
			if i > 0 {
				return nil, false
			}
		case strings.HasPrefix(w, "{"):
			params[strings.Trim(w, "{}")] = g
		case w != g:
			return nil, false
		}
	}
	return params, true
}
