// Package openapitest holds a client and the fake of a vendor against the vendor's own OpenAPI document: every request that a
// test makes, and every response that the fake gives. A difference fails the test, because it would be a failure in production,
// or a test of something that does not exist.
package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
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

	doc  document
	long atomic.Int64 // long responses so far
}

// document is what of an OpenAPI document is checked.
type document struct {
	Paths      map[string]map[string]*operation
	Components struct {
		Schemas    map[string]*schema
		Parameters map[string]*parameter
	}
}

type operation struct {
	Parameters  []*parameter
	RequestBody *struct {
		Required bool
		Content  map[string]media
	}
	Responses map[string]struct{ Content map[string]media }
}

type parameter struct {
	Ref      string `json:"$ref"`
	Name     string
	In       string
	Required bool
	Schema   *schema
}

type media struct{ Schema *schema }

// Load reads a document. It panics on one that it does not understand: documents are part of a program.
func Load(data []byte) *Contract {
	c := new(Contract)
	if err := json.Unmarshal(data, &c.doc); err != nil {
		panic(fmt.Sprintf("the vendor's document: %v", err))
	}
	for _, s := range c.doc.Components.Schemas {
		c.resolve(s)
	}
	for _, operations := range c.doc.Paths {
		for _, op := range operations {
			c.prepare(op)
		}
	}
	return c
}

// prepare resolves the references in an operation.
func (c *Contract) prepare(op *operation) {
	for i, p := range op.Parameters {
		if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
			op.Parameters[i] = c.doc.Components.Parameters[name]
		}
		c.resolve(op.Parameters[i].Schema)
	}
	if op.RequestBody != nil {
		for _, m := range op.RequestBody.Content {
			c.resolve(m.Schema)
		}
	}
	for _, resp := range op.Responses {
		for _, m := range resp.Content {
			c.resolve(m.Schema)
		}
	}
}

func (c *Contract) resolve(s *schema) {
	if err := s.resolve(c.doc.Components.Schemas); err != nil {
		panic(fmt.Sprintf("the vendor's document: %v", err))
	}
}

// AnyOf has the alternatives of responses overlap, which the vendor's generated documents have them do: an empty object among
// them fits everything, so that exactly one never does.
func (c *Contract) AnyOf() *Contract {
	for _, operations := range c.doc.Paths {
		for _, op := range operations {
			for _, resp := range op.Responses {
				for _, m := range resp.Content {
					relax(m.Schema)
				}
			}
		}
	}
	return c
}

func relax(s *schema) {
	s.AnyOf, s.OneOf = append(s.AnyOf, s.OneOf...), nil
	for _, sub := range s.subs() {
		relax(sub)
	}
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
		_, _ = w.Write(rec.Body.Bytes()) // a client that has disconnected needs no response
	})
}

func (c *Contract) exchange(w *httptest.ResponseRecorder, r *http.Request, prefix string, next http.Handler) error {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	if !ok || c.Ignore != nil && c.Ignore(path) {
		next.ServeHTTP(w, r)
		return nil
	}
	op, params, err := c.find(r.Method, path)
	if err != nil {
		next.ServeHTTP(w, r)
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	reqErr := errors.Join(op.checkParameters(params, r.URL.Query()), op.checkRequest(r.Header, body))
	unknown := op.unknownQuery(r.URL.Query())
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
	return errors.Join(reqErr, unknown, op.checkResponse(w.Code, w.Header(), w.Body.Bytes()))
}

// checkParameters returns how the parameters break the contract. All that the documents have are texts and whole numbers.
func (op *operation) checkParameters(path map[string]string, query url.Values) error {
	var problems []error
	for _, p := range op.Parameters {
		text, given := path[p.Name]
		if p.In == "query" {
			text, given = query.Get(p.Name), query.Has(p.Name)
		}
		if !given {
			if p.Required {
				problems = append(problems, fmt.Errorf("parameter %q is required", p.Name))
			}
			continue
		}
		var value any = text
		if n, err := strconv.Atoi(text); err == nil && p.Schema.Type == "integer" {
			value = float64(n)
		}
		problems = append(problems, p.Schema.check(fmt.Sprintf("parameter %q", p.Name), value))
	}
	return errors.Join(problems...)
}

// unknownQuery returns an error for a parameter that the operation does not have.
func (op *operation) unknownQuery(query url.Values) error {
	for name := range query {
		if !slices.ContainsFunc(op.Parameters, func(p *parameter) bool { return p.In == "query" && p.Name == name }) {
			return fmt.Errorf("there is no parameter %q", name)
		}
	}
	return nil
}

func (op *operation) checkRequest(header http.Header, body []byte) error {
	switch {
	case op.RequestBody == nil && len(body) > 0:
		return errors.New("request body: the operation has none")
	case op.RequestBody == nil || len(body) == 0 && !op.RequestBody.Required:
		return nil
	case len(body) == 0:
		return errors.New("request body: required")
	}
	return checkBody("request body", op.RequestBody.Content, header, body)
}

func (op *operation) checkResponse(status int, header http.Header, body []byte) error {
	resp, ok := op.Responses[strconv.Itoa(status)]
	if !ok {
		return fmt.Errorf("status is not supported: %d", status)
	}
	if len(resp.Content) == 0 {
		return nil
	}
	return checkBody("response body", resp.Content, header, body)
}

func checkBody(what string, content map[string]media, header http.Header, body []byte) error {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	m, ok := content[mediaType]
	if !ok {
		return fmt.Errorf("%s: media type %q is not in the contract", what, mediaType)
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return m.Schema.check(what, value)
}

// find returns the operation of a request. A literal segment beats a parameter.
func (c *Contract) find(method, path string) (*operation, map[string]string, error) {
	var best *operation
	var params map[string]string
	for pattern, operations := range c.doc.Paths {
		got, ok := match(pattern, path)
		if op := operations[strings.ToLower(method)]; ok && op != nil && (best == nil || len(got) < len(params)) {
			best, params = op, got
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
