package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/coffer-project/coffer/engines/input/jsontext"
	"github.com/coffer-project/coffer/server/pipeline"
)

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// reply writes an answer.
func (x *exchange) reply(reply *pipeline.Reply) {
	h := x.w.Header()
	if state := x.api.opts.Backend.State(); state != nil {
		h["X-Vault-Index"] = state
	}
	if reply == nil || reply.Response == nil {
		x.send(http.StatusNoContent, nil)
		return
	}
	x.mountType = reply.MountType
	maps.Copy(h, reply.Header)
	if reply.Raw != nil {
		x.raw(reply)
		return
	}
	status := reply.Status
	if status == 0 {
		status = http.StatusOK
		if reply.Data == nil && reply.Auth == nil && reply.Held == nil && reply.Wrap == nil && len(reply.Warnings) == 0 && reply.Top == nil {
			status = http.StatusNoContent
		}
	}
	if status == http.StatusNoContent {
		x.send(status, nil)
		return
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	if err := writeEnvelope(buf, x.req.ID, reply); err != nil {
		x.fail(err)
		return
	}
	body, err := x.redacted(reply.Path, buf.Bytes())
	if err != nil {
		x.fail(err)
		return
	}
	x.send(status, body)
}

// send writes a JSON body. HEAD gets the header only.
func (x *exchange) send(status int, body []byte) {
	x.status = status
	x.responding()
	h := x.w.Header()
	if body == nil {
		x.w.WriteHeader(status)
		return
	}
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		x.w.Write(body)
	}
}

func (x *exchange) raw(reply *pipeline.Reply) {
	raw := reply.Raw
	content, err := x.redacted(reply.Path, raw.Body)
	if err != nil {
		x.fail(err)
		return
	}
	h := x.w.Header()
	h.Set("Content-Type", raw.ContentType)
	maps.Copy(h, raw.Header)
	x.status = reply.Status
	if x.status == 0 {
		x.status = http.StatusOK
	}
	if raw.Stream == nil {
		h["Content-Length"] = []string{strconv.Itoa(len(content))}
	}
	x.responding()
	x.w.WriteHeader(x.status)
	switch {
	case x.r.Method == http.MethodHead:
		return
	case raw.Stream == nil:
		x.w.Write(content)
		return
	}
	x.takeTime()
	// Not the context of the request, which has a time limit: a stream lasts as long as its client stays.
	if err := raw.Stream(x.r.Context(), x.w); err != nil {
		// The status is out: break the connection, so that the client cannot take a part for the whole.
		x.api.log.Warn("a streamed answer broke off", "request_id", x.req.ID, "err", err)
		panic(http.ErrAbortHandler)
	}
}

// writeEnvelope writes the family's envelope. The order of the keys is fixed.
func writeEnvelope(b *bytes.Buffer, id string, r *pipeline.Reply) error {
	b.WriteString(`{"request_id":"`)
	b.WriteString(id)
	if held := r.Held; held == nil {
		b.WriteString(`","lease_id":"","renewable":false,"lease_duration":0`)
	} else {
		b.WriteString(`","lease_id":`)
		if err := writeJSON(b, held.ID); err != nil {
			return err
		}
		b.WriteString(`,"renewable":`)
		b.WriteString(strconv.FormatBool(held.Renewable))
		b.WriteString(`,"lease_duration":`)
		b.WriteString(strconv.FormatInt(held.Seconds, 10))
	}
	for _, part := range []struct {
		name  string
		value any
		null  bool
	}{{"data", r.Data, r.Data == nil}, {"wrap_info", r.Wrap, r.Wrap == nil}, {"warnings", r.Warnings, len(r.Warnings) == 0}, {"auth", r.Auth, r.Auth == nil}} {
		b.WriteString(`,"` + part.name + `":`)
		if part.null {
			b.WriteString("null")
		} else if err := writeJSON(b, part.value); err != nil {
			return err
		}
	}
	if r.MountType != "" {
		b.WriteString(`,"mount_type":"`)
		b.WriteString(r.MountType)
		b.WriteByte('"')
	}
	if len(r.Top) > 0 {
		for _, name := range slices.Sorted(maps.Keys(r.Top)) {
			if err := writeTop(b, name, r.Top[name]); err != nil {
				return err
			}
		}
	}
	b.WriteString("}\n")
	return nil
}

// reserved are the envelope's own keys: Top must not double them.
var reserved = map[string]bool{
	"request_id": true, "lease_id": true, "renewable": true, "lease_duration": true,
	"data": true, "wrap_info": true, "warnings": true, "auth": true, "mount_type": true,
}

func writeTop(b *bytes.Buffer, name string, value any) error {
	if reserved[name] {
		return nil
	}
	b.WriteByte(',')
	if err := writeJSON(b, name); err != nil {
		return err
	}
	b.WriteByte(':')
	return writeJSON(b, value)
}

// writeJSON writes v without HTML escapes and without a newline. A json.RawMessage goes out as it is.
func writeJSON(b *bytes.Buffer, v any) error {
	raw, ok := v.(json.RawMessage)
	if ok && len(raw) == 0 {
		v, ok = nil, false
	}
	if !ok {
		var err error
		if raw, err = jsontext.Append(b.AvailableBuffer(), v); err != nil {
			return err
		}
	}
	b.Write(raw)
	return nil
}
