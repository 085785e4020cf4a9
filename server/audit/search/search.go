// Package search finds records in the file of an audit device, the newest first, within bounds. It answers no values and no hashes of
// values. Start reading at Search.
package search

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"
)

// The bounds of one search.
const (
	MaxBytes   = 64 << 20        // read of the file
	MaxTime    = 3 * time.Second // after which it ends where it is
	MaxResults = 500
	MaxBuckets = 120
	maxText    = 512     // bytes of a path or error that are answered
	maxLine    = 4 << 20 // longer lines are passed over
	block      = 256 << 10
	// disorder is how far the times of neighbouring lines may be out of order: the search goes on so far beyond its range.
	disorder = 2 * time.Minute
)

// Filter says which records are wanted; what is empty does not count.
type Filter struct {
	From, To   time.Time // To is not included
	Actor      []string  // a display name, an entity id or an accessor as it is recorded: one of them
	Path       string    // what the path begins with, with the namespace before it
	Operation  string
	Outcome    string // "ok", "failed" or, of the failed ones, "denied": policies did not allow it
	Hash       string
	OfRequests bool // the lines of requests, too; with Hash they always count
}

// Record is what is answered of a line.
type Record struct {
	Time          time.Time `json:"time"`
	Type          string    `json:"type"` // "request" or "response"
	ID            string    `json:"id"`
	Operation     string    `json:"operation"`
	Namespace     string    `json:"namespace"`
	Path          string    `json:"path"`
	MountType     string    `json:"mount_type"`
	DisplayName   string    `json:"display_name"`
	EntityID      string    `json:"entity_id"`
	Accessor      string    `json:"accessor"` // as it is recorded
	RemoteAddress string    `json:"remote_address"`
	Outcome       string    `json:"outcome"`
	Status        int       `json:"status"` // of HTTP; 0: not recorded
	Error         string    `json:"error"`
}

// Found is the outcome of a search.
type Found struct {
	Records []Record
	Matches int
	Buckets []int // of the matches between From and To, in equal parts, oldest first
	// Ended says why the search went no further back: "range", "start" of the file, "bytes" or "time".
	Ended string
	Read  int64
	// Oldest is the time of the oldest line that was looked at.
	Oldest time.Time
}

type line struct {
	Time time.Time `json:"time"`
	Type string    `json:"type"`
	Auth struct {
		Accessor    string `json:"accessor"`
		DisplayName string `json:"display_name"`
		EntityID    string `json:"entity_id"`
	} `json:"auth"`
	Request struct {
		ID        string `json:"id"`
		Operation string `json:"operation"`
		MountType string `json:"mount_type"`
		Namespace struct {
			Path string `json:"path"`
		} `json:"namespace"`
		Path          string `json:"path"`
		RemoteAddress string `json:"remote_address"`
		Accessor      string `json:"client_token_accessor"`
	} `json:"request"`
	Response struct {
		MountType string `json:"mount_type"`
		Status    int    `json:"status"`
	} `json:"response"`
	Error string `json:"error"`
}

// Search looks through the first size bytes of a file, from their end on. The records that are answered are the limit newest ones; matches
// and buckets count all.
func Search(ctx context.Context, file io.ReaderAt, size int64, want Filter, limit, buckets int) (Found, error) {
	found := Found{Records: []Record{}, Buckets: make([]int, buckets), Ended: "start"}
	until := time.Now().Add(MaxTime)
	var rest []byte // the beginning of it is not read yet
	for at := size; at > 0; {
		switch {
		case size-at >= MaxBytes:
			found.Ended = "bytes"
			return found, nil
		case time.Now().After(until):
			found.Ended = "time"
			return found, nil
		case ctx.Err() != nil:
			return found, ctx.Err()
		}
		n := min(at, block)
		at -= n
		chunk := make([]byte, n, n+int64(len(rest)))
		if _, err := file.ReadAt(chunk, at); err != nil && err != io.EOF {
			return found, err
		}
		found.Read += n
		chunk = append(chunk, rest...)
		for {
			i := bytes.LastIndexByte(chunk, '\n')
			if i < 0 && at > 0 {
				break
			}
			if done := found.take(chunk[i+1:], &want, limit); done {
				found.Ended = "range"
				return found, nil
			}
			if i < 0 {
				break
			}
			chunk = chunk[:i]
		}
		if rest = chunk; len(rest) > maxLine {
			rest = rest[:0]
		}
	}
	return found, nil
}

// take looks at one line, and reports whether all before it are older than what is wanted.
func (f *Found) take(text []byte, want *Filter, limit int) (done bool) {
	start := bytes.IndexByte(text, '{') // a prefix of the device stands before it
	if start < 0 {
		return false
	}
	var l line
	if json.Unmarshal(text[start:], &l) != nil || l.Time.IsZero() {
		return false // of something else
	}
	if f.Oldest.IsZero() || l.Time.Before(f.Oldest) {
		f.Oldest = l.Time
	}
	if l.Time.Before(want.From) {
		return l.Time.Before(want.From.Add(-disorder))
	}
	if !l.Time.Before(want.To) || !want.matches(&l, text) {
		return false
	}
	f.Matches++
	if n := len(f.Buckets); n > 0 {
		i := int(int64(n) * int64(l.Time.Sub(want.From)/time.Millisecond) / max(1, int64(want.To.Sub(want.From)/time.Millisecond)))
		f.Buckets[min(max(i, 0), n-1)]++
	}
	if len(f.Records) < limit {
		f.Records = append(f.Records, l.record())
	}
	return false
}

func (want *Filter) matches(l *line, text []byte) bool {
	if l.Type != "response" && !want.OfRequests && want.Hash == "" {
		return false
	}
	// Who asks for the hash of a value is recorded with it: the question is not what is looked for.
	if want.Hash != "" && (!bytes.Contains(text, []byte(`"`+want.Hash+`"`)) || strings.HasPrefix(l.Request.Path, "sys/audit-hash/")) {
		return false
	}
	if want.Operation != "" && l.Request.Operation != want.Operation {
		return false
	}
	outcome := l.outcome()
	if want.Outcome != "" && outcome != want.Outcome && (want.Outcome != "failed" || outcome != "denied") {
		return false
	}
	if !strings.HasPrefix(l.Request.Namespace.Path+l.Request.Path, want.Path) {
		return false
	}
	if len(want.Actor) == 0 {
		return true
	}
	for _, a := range want.Actor {
		if a != "" && (strings.EqualFold(a, l.Auth.DisplayName) || a == l.Auth.EntityID || a == l.Auth.Accessor || a == l.Request.Accessor) {
			return true
		}
	}
	return false
}

// outcome is made of the error: most records have no status of HTTP.
func (l *line) outcome() string {
	switch {
	case strings.Contains(l.Error, "permission denied"):
		return "denied"
	case l.Error != "" || l.Response.Status >= 400:
		return "failed"
	}
	return "ok"
}

func (l *line) record() Record {
	r := Record{
		Time: l.Time, Type: l.Type, ID: l.Request.ID, Operation: l.Request.Operation, Namespace: clip(l.Request.Namespace.Path),
		Path: clip(l.Request.Path), MountType: l.Request.MountType, DisplayName: clip(l.Auth.DisplayName), EntityID: l.Auth.EntityID,
		Accessor: l.Auth.Accessor, RemoteAddress: l.Request.RemoteAddress, Outcome: l.outcome(), Status: l.Response.Status, Error: clip(l.Error),
	}
	if r.MountType == "" {
		r.MountType = l.Response.MountType
	}
	if r.Accessor == "" {
		r.Accessor = l.Request.Accessor
	}
	return r
}

func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
