// Package index knows the names of the index entries of leases, which begin with a time and tell everything that counting and
// waiting need, and holds those that fall due next.
//
// It promises that a window has every name before its end that was put there and not taken. It reads and writes no storage:
// package lease does. Start reading at the prefixes, then Ref and Window.
package index

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// A lease is in exactly one of the two indexes: what has to be looked at when, and irrevocable leases by when they became so.
const (
	ExpPrefix   storage.Key = "l/lease/exp/"
	StuckPrefix storage.Key = "l/lease/stuck/"
)

// Name returns the name of an index entry.
func Name(at time.Time, ns, mount, mountPath, id string) string {
	return fmt.Sprintf("%020d,%s,%s,%s,%s", at.UnixNano(), ns, mount, Escape(mountPath), Escape(strings.TrimPrefix(id, mountPath)))
}

// Ref is what the name of an index entry tells.
type Ref struct {
	At               int64 // when to look, nanoseconds
	Name             string
	Namespace, Mount string
	MountPath        string
	ID               string
}

// Parse is the inverse of Name.
func Parse(name string) (Ref, bool) {
	parts := strings.Split(name, ",")
	if len(parts) != 5 || len(parts[0]) != 20 {
		return Ref{}, false
	}
	at, err := strconv.ParseInt(parts[0], 10, 64)
	path, ok1 := unescape(parts[3])
	rest, ok2 := unescape(parts[4])
	if err != nil || !ok1 || !ok2 || parts[1] == "" || parts[2] == "" || rest == "" {
		return Ref{}, false
	}
	return Ref{At: at, Name: name, Namespace: parts[1], Mount: parts[2], MountPath: path, ID: path + rest}, true
}

// ShortName is the name of a lease among those of its token.
func ShortName(ns, id string) string { return ns + "," + Escape(id) }

// ParseShort is the inverse of ShortName.
func ParseShort(name string) (ns, id string, ok bool) {
	ns, escaped, ok := strings.Cut(name, ",")
	if !ok || ns == "" {
		return "", "", false
	}
	id, ok = unescape(escaped)
	return ns, id, ok && id != ""
}

// TimeName is less than every name of that time and greater than every name of an earlier one.
func TimeName(at time.Time) string { return fmt.Sprintf("%020d", at.UnixNano()) }

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F", ",", "%2C")
	unescaper = strings.NewReplacer("%2F", "/", "%2C", ",", "%25", "%")
)

// Escape makes a text that holds neither slash nor comma.
func Escape(s string) string { return escaper.Replace(s) }

// unescape is the inverse of Escape; it rejects what escape does not make.
func unescape(s string) (string, bool) {
	out := unescaper.Replace(s)
	return out, Escape(out) == s
}
