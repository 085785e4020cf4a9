package record

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// hashPrefix begins every hashed value.
const hashPrefix = "hmac-sha256:"

// maxPooledLine is the size of the largest buffer worth keeping.
const maxPooledLine = 64 << 10

// Limits of one record. What they leave out is one hash, with its length.
const (
	maxDataBytes   = 64 << 10 // of the body of a request, and of the data of a response
	maxValuesBytes = 8 << 10  // of the query, of the headers, and of the warnings
	maxErrorBytes  = 2 << 10

	// Of a record of a request without a valid token, whatever its size: a brief one has at most briefBytes, the two of a
	// request to a path that needs no token have openBytes each.
	briefBytes = 1 << 10
	openBytes  = 3 << 9
	// Of texts in a record that would be longer than that.
	shortTextBytes = 128
	shortNameBytes = 64
)

// Format is how one device writes lines. Safe for concurrent use.
type Format struct {
	Style
	salt  []byte
	lines sync.Pool
}

// Style is what the options of a device say of its lines.
type Style struct {
	Prefix        string // of each line
	Raw           bool   // log_raw: hash nothing
	PlainAccessor bool   // hmac_accessor=false
	ElideLists    bool   // elide_list_responses
}

// NewFormat returns the format of a device whose hashes have the salt as their key.
func NewFormat(salt []byte, how Style) (*Format, error) {
	if len(salt) == 0 {
		return nil, errors.New("an audit device needs a salt")
	}
	return &Format{salt: salt, Style: how}, nil
}

// line is one line being written, with a keyed hash to use for it.
type line struct {
	f       *Format
	buf     []byte
	mac     hash.Hash
	scratch []byte
	names   []string
	sum     [sha256.Size]byte
	short   bool // write no more than tells what the request was
}

func (f *Format) get() *line {
	l, ok := f.lines.Get().(*line)
	if !ok {
		l = &line{f: f, mac: hmac.New(sha256.New, f.salt)}
	}
	l.buf = l.buf[:0]
	return l
}

func (l *line) free() {
	if cap(l.buf) <= maxPooledLine && cap(l.scratch) <= maxPooledLine {
		l.f.lines.Put(l)
	}
}

// Hash returns a text as it appears in the lines, or would without log_raw.
func (f *Format) Hash(text string) string {
	l := f.get()
	defer l.free()
	l.scratch = append(l.scratch[:0], text...)
	l.appendHash(l.scratch)
	return string(l.buf)
}

// Write formats an event and gives its line to a function, which must not keep it.
func (f *Format) Write(e Event, to func(line []byte) error) error {
	l := f.line(e)
	defer l.free()
	return to(l.buf)
}

// line formats an event. Free it after use.
func (f *Format) line(e Event) *line {
	l := f.get()
	l.short = false
	l.event(e)
	if limit := e.limit(); limit > 0 && len(l.buf) > limit {
		l.buf, l.short = l.buf[:0], true
		l.event(e)
	}
	return l
}

// limit is the size of the longest line that the event may have, 0 for no such limit: a client that has proved nothing
// must not fill the disk.
func (e Event) limit() int {
	switch {
	case !e.Unauthenticated || e.Response != nil && e.Response.Auth != nil && e.Response.Auth.ClientToken != "":
		return 0
	case e.Brief:
		return briefBytes
	}
	return openBytes
}

func (l *line) event(e Event) {
	l.buf = append(l.buf, l.f.Prefix...)
	l.buf = append(l.buf, `{"time":"`...)
	l.buf = e.At.UTC().AppendFormat(l.buf, time.RFC3339Nano)
	kind := `","type":"request"`
	if e.OfResponse {
		kind = `","type":"response"`
	}
	l.buf = append(l.buf, kind...)
	if e.Auth != nil {
		l.open("auth")
		l.auth(e.Auth)
		l.close()
	}
	l.open("request")
	l.request(e)
	l.close()
	if e.OfResponse && e.Response != nil {
		l.open("response")
		l.response(e)
		l.close()
	}
	l.clip("error", e.Error, maxErrorBytes, shortTextBytes)
	l.buf = append(l.buf, '}', '\n')
}

func (l *line) auth(a *Auth) {
	l.secret("client_token", a.ClientToken)
	l.accessor("accessor", a.Accessor)
	l.text("display_name", a.DisplayName)
	l.texts("policies", a.Policies)
	l.texts("token_policies", a.TokenPolicies)
	l.texts("identity_policies", a.IdentityPolicies)
	if len(a.ExternalNamespacePolicies) > 0 {
		l.open("external_namespace_policies")
		for _, k := range sorted(l, a.ExternalNamespacePolicies) {
			l.texts(k, a.ExternalNamespacePolicies[k])
		}
		l.close()
	}
	l.flag("no_default_policy", a.NoDefaultPolicy)
	if len(a.Metadata) > 0 {
		l.open("metadata")
		for _, k := range sorted(l, a.Metadata) {
			l.name(k)
			l.buf = appendQuoted(l.buf, a.Metadata[k])
		}
		l.close()
	}
	l.text("entity_id", a.EntityID)
	l.text("token_type", a.TokenType)
	l.number("token_ttl", int64(a.TTL/time.Second))
	l.instant("token_issue_time", a.IssuedAt)
	l.number("num_uses", int64(a.NumUses))
}

// request writes the request's part. The record of a response leaves out what the one before it, of the same id, has.
func (l *line) request(e Event) {
	r := &e.Request
	l.text("id", r.ID)
	if e.OfResponse {
		l.text("login_id", r.LoginID)
	}
	l.text("operation", r.Operation)
	if !e.Brief {
		l.mount(r)
	}
	l.secret("client_token", r.ClientToken)
	l.accessor("client_token_accessor", r.ClientTokenAccessor)
	l.open("namespace")
	l.text("id", r.NamespaceID)
	l.clip("path", r.NamespacePath, len(r.NamespacePath), shortNameBytes)
	l.close()
	l.clip("path", r.Path, len(r.Path), shortTextBytes)
	switch {
	case e.OfResponse:
	case r.Unread != 0:
		l.open("data_rest")
		l.flag("unread", true)
		l.number("bytes", r.Unread)
		l.close()
	case e.Brief || l.short:
		l.rest("data_rest", r.Data)
	default:
		l.data("data", r.Data, r.PlainKeys, false, e.dataLimit())
	}
	if !e.OfResponse {
		l.query(r.Query)
	}
	l.text("remote_address", r.RemoteAddress)
	l.number("remote_port", int64(r.RemotePort))
	if !e.OfResponse && !l.short {
		l.headers(r.Headers, e.Headers)
	}
	l.clip("forwarded_from", r.ForwardedFrom, len(r.ForwardedFrom), shortNameBytes)
	l.number("wrap_ttl", int64(r.WrapTTL/time.Second))
}

// dataLimit is how much of a body may be recorded.
func (e Event) dataLimit() int {
	if limit := e.limit(); limit > 0 {
		return limit / 2 // the rest is for the other members
	}
	return maxDataBytes
}

func (l *line) mount(r *Request) {
	if l.short {
		return
	}
	l.text("mount_type", r.MountType)
	l.text("mount_point", r.MountPoint)
	l.text("mount_accessor", r.MountAccessor)
	l.text("mount_class", r.MountClass)
}

func (l *line) response(e Event) {
	r := e.Response
	l.mount(&e.Request)
	if r.Auth != nil {
		l.open("auth")
		l.auth(r.Auth)
		l.close()
	}
	if r.LeaseID != "" {
		l.open("secret")
		l.text("lease_id", r.LeaseID)
		l.close()
	}
	if l.short {
		l.rest("data_rest", r.Data)
	} else {
		l.data("data", r.Data, r.PlainKeys, l.f.ElideLists && e.Request.Operation == "list", e.dataLimit())
		l.warnings(r.Warnings)
	}
	if w := r.Wrap; w != nil {
		l.open("wrap_info")
		l.number("ttl", int64(w.TTL/time.Second))
		l.secret("token", w.Token)
		l.accessor("accessor", w.Accessor)
		l.instant("creation_time", w.CreatedAt)
		l.clip("creation_path", w.CreationPath, len(w.CreationPath), shortNameBytes)
		l.accessor("wrapped_accessor", w.WrappedAccessor)
		l.close()
	}
	l.number("status", int64(r.Status))
}

func (l *line) warnings(texts []string) {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	if size <= maxValuesBytes {
		l.texts("warnings", texts)
		return
	}
	l.rest("warnings_rest", []byte(strings.Join(texts, "\n")))
}

// rest writes the hash and the length of what is not recorded itself, unless it is empty.
func (l *line) rest(name string, value []byte) {
	if len(value) == 0 {
		return
	}
	l.open(name)
	l.name("hmac")
	l.quotedHash(value)
	l.number("bytes", int64(len(value)))
	l.close()
}

// open begins an object as a member, close ends it.
func (l *line) open(name string) {
	l.name(name)
	l.buf = append(l.buf, '{')
}

func (l *line) close() { l.buf = append(l.buf, '}') }

// name writes a member's name, with the comma before it if it is not the first.
func (l *line) name(name string) {
	if l.buf[len(l.buf)-1] != '{' {
		l.buf = append(l.buf, ',')
	}
	l.buf = append(appendQuoted(l.buf, name), ':')
}

// text writes a readable member, unless it is empty; so do texts and number.
func (l *line) text(name, value string) {
	if value != "" {
		l.name(name)
		l.buf = appendQuoted(l.buf, value)
	}
}

// clip writes a readable member with at most limit bytes of its value, or shortest in a short record.
func (l *line) clip(name, value string, limit, shortest int) {
	if l.short {
		limit = min(limit, shortest)
	}
	if len(value) <= limit && !l.short {
		l.text(name, value)
		return
	}
	if value == "" {
		return
	}
	l.name(name)
	start := len(l.buf)
	for text, mark := value, ""; ; text, mark = text[:min(limit, len(text)-1-len(text)/8)], "…" {
		if l.buf = appendQuoted(l.buf[:start], strings.ToValidUTF8(text, "")+mark); len(l.buf)-start <= limit+len(`"…"`) {
			return
		}
	}
}

func (l *line) texts(name string, values []string) {
	if len(values) > 0 {
		l.list(name, values, l.plain)
	}
}

func (l *line) number(name string, value int64) {
	if value != 0 {
		l.name(name)
		l.buf = strconv.AppendInt(l.buf, value, 10)
	}
}

// flag writes a member that is true, or nothing.
func (l *line) flag(name string, value bool) {
	if value {
		l.name(name)
		l.buf = append(l.buf, "true"...)
	}
}

// instant writes a time, unless it is zero.
func (l *line) instant(name string, at time.Time) {
	if !at.IsZero() {
		l.name(name)
		l.buf = append(l.buf, '"')
		l.buf = at.UTC().AppendFormat(l.buf, time.RFC3339Nano)
		l.buf = append(l.buf, '"')
	}
}

// secret writes a hashed member, unless it is empty.
func (l *line) secret(name, value string) {
	if value != "" {
		l.name(name)
		l.hashed(value)
	}
}

func (l *line) accessor(name, value string) {
	if l.f.PlainAccessor {
		l.text(name, value)
		return
	}
	l.secret(name, value)
}

// sorted returns a map's keys in order, good until the next call for this line.
func sorted[V any](l *line, m map[string]V) []string {
	l.names = slices.AppendSeq(l.names[:0], maps.Keys(m))
	slices.Sort(l.names)
	return l.names
}

// hashedBytes is what one hashed value takes, with quotes and a comma.
const hashedBytes = len(hashPrefix) + 2*sha256.Size + 3

// sizeOf is how much the line grows by the values, or a little more.
func sizeOf(values []string) int {
	size := 0
	for _, v := range values {
		size += max(len(v), hashedBytes)
	}
	return size
}

// query writes query parameters, values hashed.
func (l *line) query(values url.Values) {
	if len(values) == 0 {
		return
	}
	size := 0
	for k, v := range values {
		size += len(k) + sizeOf(v)
	}
	if l.short || size > maxValuesBytes {
		l.rest("query_rest", []byte(values.Encode()))
		return
	}
	l.open("query")
	for _, k := range sorted(l, values) {
		l.list(k, values[k], l.hashed)
	}
	l.close()
}

// headers writes those headers that are to be recorded, names in lower case. Values that are too long are one hash.
func (l *line) headers(values http.Header, recorded *Headers) {
	open, left := false, maxValuesBytes
	for _, h := range *recorded {
		v := values[h.key]
		if len(v) == 0 {
			continue
		}
		if !open {
			l.open("headers")
			open = true
		}
		size := sizeOf(v)
		switch {
		case size > left:
			l.name(h.name)
			l.buf = append(l.buf, '[')
			l.quotedHash([]byte(strings.Join(v, "\n")))
			l.buf = append(l.buf, ']')
			continue
		case h.hmac:
			l.list(h.name, v, l.hashed)
		default:
			l.list(h.name, v, l.plain)
		}
		left -= size
	}
	if open {
		l.close()
	}
}

func (l *line) list(name string, values []string, write func(string)) {
	l.name(name)
	l.buf = append(l.buf, '[')
	for i, v := range values {
		if i > 0 {
			l.buf = append(l.buf, ',')
		}
		write(v)
	}
	l.buf = append(l.buf, ']')
}

func (l *line) plain(value string) { l.buf = appendQuoted(l.buf, value) }

// hashed writes one text value: its hash, or itself with log_raw.
func (l *line) hashed(value string) {
	if l.f.Raw && (!l.short || len(value) <= shortNameBytes) {
		l.buf = appendQuoted(l.buf, value)
		return
	}
	l.scratch = append(l.scratch[:0], value...)
	l.quotedHash(l.scratch)
}

func (l *line) quotedHash(value []byte) {
	l.buf = append(l.buf, '"')
	l.appendHash(value)
	l.buf = append(l.buf, '"')
}

func (l *line) appendHash(value []byte) {
	l.mac.Reset()
	l.mac.Write(value)
	l.buf = append(l.buf, hashPrefix...)
	l.buf = hex.AppendEncode(l.buf, l.mac.Sum(l.sum[:0]))
}

// appendQuoted appends a text as JSON.
func appendQuoted(buf []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(fmt.Sprintf("audit: a text does not marshal: %v", err)) // texts always do
			}
			return append(buf, quoted...)
		}
	}
	buf = append(buf, '"')
	buf = append(buf, s...)
	return append(buf, '"')
}
