// Package audit writes the audit log: one JSON line for each request before it runs, and one for each response
// before it leaves, on every enabled device.
//
// It promises to fail closed: while any device is enabled, a request whose record reached none of them is an
// error, and the server must not go on. Every text value of request and response bodies, and every token, is
// written as "hmac-sha256:<hex>" under a key of its own for each device, so a log shows that two values are
// equal, and AuditHash finds a known one, but it reveals none. Numbers, booleans, null and the names of fields
// stay readable.
//
// The lines are made in package audit/record; what they are written to is in package audit/device. Start reading at Broker, then
// Table, which keeps the enabled devices, and the request headers to record, in storage.
package audit

import "errors"

// Sentinels. Use errors.Is.
var (
	// ErrNotRecorded means that no enabled device took the record: the request must fail.
	ErrNotRecorded = errors.New("no audit device could record this")
	// ErrNoDevice means that no device is enabled at this path.
	ErrNoDevice = errors.New("no such audit device")
)
