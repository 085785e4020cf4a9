// Package query is the vendor's query protocol as a service answers it: XML, lists in pages, and refusals with their codes.
package query

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Element is one of XML: with a text, or with others inside.
type Element struct {
	Name, Value string
	Inside      []Element
}

// Text is an element with a text.
func Text(name, value string) Element { return Element{Name: name, Value: value} }

// Group is an element with others inside.
func Group(name string, inside ...Element) Element { return Element{Name: name, Inside: inside} }

// When is a time as the services write it, to the second.
func When(name string, t time.Time) Element {
	return Text(name, t.UTC().Format("2006-01-02T15:04:05Z"))
}

func (e Element) write(b *bytes.Buffer) {
	if e.Name == "" {
		return
	}
	b.WriteString("<" + e.Name + ">")
	_ = xml.EscapeText(b, []byte(e.Value)) // a Buffer does not fail
	for _, in := range e.Inside {
		in.write(b)
	}
	b.WriteString("</" + e.Name + ">")
}

// Respond answers what was asked for.
func Respond(w http.ResponseWriter, namespace, action, requestID string, result []Element) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<%sResponse xmlns="%s">`, action, namespace)
	if result != nil {
		Group(action+"Result", result...).write(&b)
	}
	Group("ResponseMetadata", Text("RequestId", requestID)).write(&b)
	fmt.Fprintf(&b, "</%sResponse>", action)
	send(w, http.StatusOK, b.Bytes())
}

// Answer answers with an error.
func Answer(w http.ResponseWriter, namespace, requestID string, r *Refusal, retryAfter time.Duration) {
	kind := "Sender"
	if r.Status >= 500 {
		kind = "Receiver"
	}
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<ErrorResponse xmlns="%s">`, namespace)
	Group("Error", Text("Type", kind), Text("Code", r.Code), Text("Message", r.Message)).write(&b)
	Text("RequestId", requestID).write(&b)
	b.WriteString("</ErrorResponse>")
	send(w, r.Status, b.Bytes())
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have closed the connection
}

// Row is one member of a list, with what lists are ordered and continued by.
type Row struct {
	Key     string
	Element Element
}

// Page returns a part of a list, at most limit members, as MaxItems and Marker of a request ask for it. A marker is where the last page ended, so members that
// are removed in between do not hide others.
func Page(form url.Values, limit int, name string, rows []Row) ([]Element, *Refusal) {
	if n, err := strconv.Atoi(form.Get("MaxItems")); err == nil {
		limit = min(limit, n)
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	if marker := form.Get("Marker"); marker != "" {
		after, err := base64.RawURLEncoding.DecodeString(marker)
		if err != nil {
			return nil, Refuse("ValidationError", "Invalid Marker")
		}
		rows = slices.DeleteFunc(rows, func(o Row) bool { return o.Key <= string(after) })
	}
	more := len(rows) > limit
	if more {
		rows = rows[:limit]
	}
	all := Group(name)
	for _, o := range rows {
		o.Element.Name = "member"
		all.Inside = append(all.Inside, o.Element)
	}
	result := []Element{all, Text("IsTruncated", strconv.FormatBool(more))}
	if more {
		result = append(result, Text("Marker", base64.RawURLEncoding.EncodeToString([]byte(rows[len(rows)-1].Key))))
	}
	return result, nil
}

// Refusal is an answer that is an error.
type Refusal struct {
	Status  int
	Code    string
	Message string
}

// Refuse makes a refusal, with the status of its code.
func Refuse(code, format string, args ...any) *Refusal {
	return &Refusal{StatusOf(code), code, fmt.Sprintf(format, args...)}
}

// StatusOf is the status that a code is answered with.
func StatusOf(code string) int {
	switch code {
	case "NoSuchEntity":
		return http.StatusNotFound
	case "EntityAlreadyExists", "LimitExceeded", "DeleteConflict", "ConcurrentModification", "EntityTemporarilyUnmodifiable":
		return http.StatusConflict
	case "AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "MissingAuthenticationToken", "ExpiredToken",
		"RegionDisabledException":
		return http.StatusForbidden
	case "RequestEntityTooLarge":
		return http.StatusRequestEntityTooLarge
	case "ServiceFailure", "InternalFailure":
		return http.StatusInternalServerError
	case "ServiceUnavailable":
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest // with "Throttling"
}
