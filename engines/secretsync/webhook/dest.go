package webhook

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/signature"
)

// Actions of requests.
const (
	actionCreate = "create" // the name has no other owner, or the receiver answers 409
	actionUpdate = "update" // likewise
	actionAdopt  = "adopt"  // the owner of the request owns the name now, even if it had another owner
	actionDelete = "delete" // the name has no other owner, or the receiver answers 409; 404 is fine
	actionPing   = "ping"   // nothing changes
)

// dest is one receiver. Safe for concurrent use.
type dest struct {
	*wire.Client
	url, method string
	key         []byte
}

func open(c destination.Config, env destination.Env) (*dest, error) {
	config, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError(fmt.Sprintf("webhook: a configuration of the type %T", c))
	}
	headers, problem := config.headers()
	if problem != "" {
		return nil, destination.InternalError("webhook: headers that were not checked")
	}
	w, err := wire.New("the webhook's receiver", "signing_key or headers", env)
	if err != nil {
		return nil, err
	}
	w.MaxBody = 64 << 10
	for name, values := range headers {
		w.Header[name] = values
	}
	w.Header.Set("Content-Type", "application/json")
	d := &dest{Client: w, url: config.URL, method: config.Method, key: []byte(config.SigningKey.Reveal())}
	if env.URL != "" {
		d.url = strings.TrimSuffix(env.URL, "/")
	}
	return d, nil
}

// message is the body of a request.
type message struct {
	Action    string  `json:"action"`
	Name      string  `json:"name"`
	Owner     string  `json:"owner,omitempty"`
	Value     *string `json:"value,omitempty"`
	Version   string  `json:"version"` // also the Idempotency-Key, which is not signed
	Timestamp string  `json:"timestamp"`
}

func (d *dest) send(ctx context.Context, m message, token string) (http.Header, error) {
	now := time.Now().UTC()
	m.Version, m.Timestamp = token, now.Format(time.RFC3339)
	body, err := json.Marshal(m)
	if err != nil {
		return nil, destination.InternalError("webhook: a request could not be made")
	}
	resp, err := d.Do(ctx, wire.Call{
		Method: d.method, URL: d.url, Body: body, Writes: m.Action != actionPing,
		Header: http.Header{signature.Header: {signature.Of(d.key, body, now)}, "Idempotency-Key": {token}},
	})
	if err != nil {
		return nil, err
	}
	if resp.OK() {
		return resp.Header, nil
	}
	e := d.Refusal(resp)
	switch {
	case resp.Status == http.StatusConflict && m.Action == actionCreate:
		e.Code, e.Text = destination.Exists, "the webhook's receiver has the name, and it is not ours"
	case resp.Status == http.StatusConflict:
		e.Code, e.Text = destination.Changed, "the webhook's receiver says that the name belongs to another client"
	}
	return resp.Header, e
}

// Read implements destination.Destination. It is not called: see destination.Rules.WriteOnly.
func (d *dest) Read(context.Context, string) (destination.Found, error) {
	return destination.Found{}, destination.InternalError("webhook: receivers cannot be read")
}

// List implements destination.Destination.
func (d *dest) List(context.Context) iter.Seq2[destination.Found, error] {
	return func(func(destination.Found, error) bool) {}
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	reject := func(code, text string) error {
		return &destination.Error{Class: destination.Client, Code: code, Text: text}
	}
	p := checkName(it.Name)
	switch {
	case p != "":
		return destination.Held{}, reject(destination.BadRequest, p)
	case len(it.Value) > maxValue:
		return destination.Held{}, reject(destination.TooLarge, fmt.Sprintf("the value has %d bytes, at most %d are sent", len(it.Value), maxValue))
	case !utf8.Valid(it.Value):
		return destination.Held{}, reject(destination.BadRequest, "the value is not text in UTF-8")
	}
	value := string(it.Value)
	m := message{Action: actionCreate, Name: it.Name, Owner: it.OwnerTag, Value: &value}
	switch {
	case was.State == destination.Absent:
	case was.OwnerTag == it.OwnerTag:
		m.Action = actionUpdate
	default:
		m.Action = actionAdopt
	}
	if _, err := d.send(ctx, m, it.Token); err != nil {
		return destination.Held{}, err
	}
	return destination.Held{Version: it.Token}, nil
}

// Delete implements destination.Destination.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	token := sha256.Sum256([]byte("delete\x00" + was.Name + "\x00" + was.OwnerTag + "\x00" + was.Version))
	_, err := d.send(ctx, message{Action: actionDelete, Name: was.Name, Owner: was.OwnerTag}, hex.EncodeToString(token[:16]))
	if e, ok := err.(*destination.Error); ok && e.Code == destination.NoLocation { //nolint:errorlint // of send
		return nil
	}
	return err
}

// Verify implements destination.Destination: the receiver answers a ping.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	h, err := d.send(ctx, message{Action: actionPing}, rand.Text())
	if err != nil {
		return destination.FailedChecks("the webhook's receiver", err)
	}
	return []destination.Check{
		{Name: "reachable", OK: true, Text: "the webhook's receiver answers"},
		{Name: "credentials", OK: true, Text: "a signed ping is accepted"},
		{Name: "write", Unknown: true, Text: "this could not be tried without writing"},
		destination.ClockCheck("the webhook's receiver", h.Get("Date"), time.Now()),
	}
}
