package awstest

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// element is one of XML: with a text, or with others inside.
type element struct {
	name, text string
	inside     []element
}

func text(name, value string) element { return element{name: name, text: value} }

func group(name string, inside ...element) element { return element{name: name, inside: inside} }

// when is a time as the services write it, to the second.
func when(name string, t time.Time) element {
	return text(name, t.UTC().Format("2006-01-02T15:04:05Z"))
}

func (e element) write(b *bytes.Buffer) {
	if e.name == "" {
		return
	}
	b.WriteString("<" + e.name + ">")
	_ = xml.EscapeText(b, []byte(e.text)) // a Buffer does not fail
	for _, in := range e.inside {
		in.write(b)
	}
	b.WriteString("</" + e.name + ">")
}

// respond answers what was asked for.
func (s *Server) respond(w http.ResponseWriter, namespace, action string, result []element) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<%sResponse xmlns="%s">`, action, namespace)
	if result != nil {
		group(action+"Result", result...).write(&b)
	}
	group("ResponseMetadata", text("RequestId", s.requestID())).write(&b)
	fmt.Fprintf(&b, "</%sResponse>", action)
	send(w, http.StatusOK, b.Bytes())
}

// answer is an error.
func (s *Server) answer(w http.ResponseWriter, namespace string, r *refusal, retryAfter time.Duration) {
	kind := "Sender"
	if r.status >= 500 {
		kind = "Receiver"
	}
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<ErrorResponse xmlns="%s">`, namespace)
	group("Error", text("Type", kind), text("Code", r.code), text("Message", r.message)).write(&b)
	text("RequestId", s.requestID()).write(&b)
	b.WriteString("</ErrorResponse>")
	send(w, r.status, b.Bytes())
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have closed the connection
}

func (s *Server) requestID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", s.requests)
}

// row is one member of a list, with what lists are ordered and continued by.
type row struct {
	key     string
	element element
}

// page returns a part of a list, as MaxItems and Marker ask for it. A marker is where the last page ended, so members that
// are removed in between do not hide others.
func (r *request) page(name string, rows []row) ([]element, *refusal) {
	limit := r.s.pageSize
	if n, err := strconv.Atoi(r.get("MaxItems")); err == nil {
		limit = min(limit, n)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.key, b.key) })
	if marker := r.get("Marker"); marker != "" {
		after, err := base64.RawURLEncoding.DecodeString(marker)
		if err != nil {
			return nil, refuse("ValidationError", "Invalid Marker")
		}
		rows = slices.DeleteFunc(rows, func(o row) bool { return o.key <= string(after) })
	}
	more := len(rows) > limit
	if more {
		rows = rows[:limit]
	}
	all := group(name)
	for _, o := range rows {
		o.element.name = "member"
		all.inside = append(all.inside, o.element)
	}
	result := []element{all, text("IsTruncated", strconv.FormatBool(more))}
	if more {
		result = append(result, text("Marker", base64.RawURLEncoding.EncodeToString([]byte(rows[len(rows)-1].key))))
	}
	return result, nil
}
