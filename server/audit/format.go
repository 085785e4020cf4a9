package audit

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
	"sync"
	"time"
)

// hashPrefix begins every hashed value.
const hashPrefix = "hmac-sha256:"

// maxPooledLine is the size of the largest buffer worth keeping.
const maxPooledLine = 64 << 10

// format is how one device writes lines. Safe for concurrent use.
type format struct {
	salt          []byte
	prefix        string
	raw           bool // log_raw: hash nothing
	plainAccessor bool // hmac_accessor=false
	elideLists    bool // elide_list_responses
	lines         sync.Pool
}

func newFormat(cfg Config) (*format, error) {
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	if len(cfg.Salt) == 0 {
		return nil, errors.New("an audit device needs a salt")
	}
	return &format{salt: cfg.Salt, prefix: o.prefix, raw: o.raw, plainAccessor: !o.hmacAccessor, elideLists: o.elideLists}, nil
}

// line is one line being written, with a keyed hash to use for it.
type line struct {
	f       *format
	buf     []byte
	mac     hash.Hash
	scratch []byte
	names   []string
	sum     [sha256.Size]byte
}

func (f *format) get() *line {
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

// hash returns a text as it appears in the lines, or would without log_raw.
func (f *format) hash(text string) string {
	l := f.get()
	defer l.free()
	l.scratch = append(l.scratch[:0], text...)
	l.appendHash(l.scratch)
	return string(l.buf)
}

// line formats an event. Free it after use.
func (f *format) line(e event) *line {
	l := f.get()
	l.buf = append(l.buf, f.prefix...)
	l.buf = append(l.buf, `{"time":"`...)
	l.buf = e.at.UTC().AppendFormat(l.buf, time.RFC3339Nano)
	kind := `","type":"request"`
	if e.response {
		kind = `","type":"response"`
	}
	l.buf = append(l.buf, kind...)
	if e.Auth != nil {
		l.open("auth")
		l.auth(e.Auth)
		l.close()
	}
	l.open("request")
	l.request(&e.Request, e.headers)
	l.close()
	if e.response && e.Response != nil {
		l.open("response")
		l.response(&e.Request, e.Response)
		l.close()
	}
	l.text("error", e.Error)
	l.buf = append(l.buf, '}', '\n')
	return l
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

func (l *line) request(r *Request, recorded *headers) {
	l.text("id", r.ID)
	l.text("operation", r.Operation)
	l.mount(r)
	l.secret("client_token", r.ClientToken)
	l.accessor("client_token_accessor", r.ClientTokenAccessor)
	l.open("namespace")
	l.text("id", r.NamespaceID)
	l.text("path", r.NamespacePath)
	l.close()
	l.text("path", r.Path)
	l.data("data", r.Data, r.PlainKeys, false)
	if len(r.Query) > 0 {
		l.query(r.Query)
	}
	l.text("remote_address", r.RemoteAddress)
	l.number("remote_port", int64(r.RemotePort))
	l.headers(r.Headers, recorded)
	l.text("forwarded_from", r.ForwardedFrom)
	l.number("wrap_ttl", int64(r.WrapTTL/time.Second))
}

func (l *line) mount(r *Request) {
	l.text("mount_type", r.MountType)
	l.text("mount_point", r.MountPoint)
	l.text("mount_accessor", r.MountAccessor)
	l.text("mount_class", r.MountClass)
}

func (l *line) response(req *Request, r *Response) {
	l.mount(req)
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
	l.data("data", r.Data, r.PlainKeys, l.f.elideLists && req.Operation == "list")
	l.texts("warnings", r.Warnings)
	if w := r.Wrap; w != nil {
		l.open("wrap_info")
		l.number("ttl", int64(w.TTL/time.Second))
		l.secret("token", w.Token)
		l.accessor("accessor", w.Accessor)
		l.instant("creation_time", w.CreatedAt)
		l.text("creation_path", w.CreationPath)
		l.accessor("wrapped_accessor", w.WrappedAccessor)
		l.close()
	}
	l.number("status", int64(r.Status))
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
	if l.f.plainAccessor {
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

// query writes query parameters, values hashed.
func (l *line) query(values url.Values) {
	l.open("query")
	for _, k := range sorted(l, values) {
		l.list(k, values[k], l.hashed)
	}
	l.close()
}

// headers writes those headers that are to be recorded, names in lower case.
func (l *line) headers(values http.Header, recorded *headers) {
	open := false
	for _, h := range *recorded {
		v := values[h.key]
		if len(v) == 0 {
			continue
		}
		if !open {
			l.open("headers")
			open = true
		}
		write := l.plain
		if h.hmac {
			write = l.hashed
		}
		l.list(h.name, v, write)
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
	if l.f.raw {
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
