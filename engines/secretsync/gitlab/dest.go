package gitlab

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// dest is one project or group in one scope. Safe for concurrent use.
type dest struct {
	*client
	config Config
	key    []byte // of the versions of what is not ours, which are not stored
}

func open(c destination.Config, env destination.Env) (*dest, error) {
	config, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError(fmt.Sprintf("gitlab: a configuration of the type %T", c))
	}
	cl, err := newClient(config, env)
	if err != nil {
		return nil, err
	}
	return &dest{client: cl, config: *config, key: []byte(rand.Text())}, nil
}

func reject(code, text string) error {
	return &destination.Error{Class: destination.Client, Code: code, Text: text}
}

// description is what people read beside our variables; it ends with the ownership tag. GitLab allows 255 characters.
func description(tag string) string {
	return "Synced by Coffer: do not edit it here. [coffer:" + tag + "]"
}

var tagPattern = engines.Pattern(`\[coffer:([A-Za-z0-9-]{1,80})\]$`)

func tagOf(description string) string {
	if m := tagPattern().FindStringSubmatch(description); m != nil {
		return m[1]
	}
	return ""
}

// version is a hash of all that a variable has, so that every change shows. Its key is the ownership tag: without it,
// nothing can be learnt of a value from what is stored.
func (d *dest) version(v *variable) string {
	key := []byte(tagOf(v.Description))
	if len(key) == 0 {
		key = d.key
	}
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

func (d *dest) found(v *variable) destination.Found {
	return destination.Found{Name: v.Key, State: destination.Present, OwnerTag: tagOf(v.Description), Version: d.version(v)}
}

// Read implements destination.Destination.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	if p := checkName(name); p != "" {
		return destination.Found{}, reject(destination.BadRequest, p)
	}
	v, err := d.get(ctx, name)
	if errors.Is(err, absent) {
		return destination.Found{Name: name}, nil
	}
	if err != nil {
		return destination.Found{}, err
	}
	f := d.found(v)
	if v.Value != nil {
		f.Value, f.Known = []byte(*v.Value), true
	}
	return f, nil
}

// List implements destination.Destination.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		if _, err := d.list(ctx, func(v *variable) bool { return yield(d.found(v), nil) }); err != nil {
			yield(destination.Found{}, err)
		}
	}
}

// maskable is what GitLab masks where values are expanded.
var maskable = engines.Pattern(`^[a-zA-Z0-9_+=/@:.~-]{8,}$`)

// check returns why an item cannot be a variable.
func (d *dest) check(it destination.Item) error {
	p := checkName(it.Name)
	masked := len(it.Value) >= minMask && !bytes.ContainsFunc(it.Value, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0x85 || r == 0xa0 })
	switch {
	case p != "":
		return reject(destination.BadRequest, p)
	case len(it.Value) > maxValue:
		return reject(destination.TooLarge, fmt.Sprintf("the value has %d bytes, a variable has at most %d", len(it.Value), maxValue))
	case !utf8.Valid(it.Value) || bytes.IndexByte(it.Value, 0) >= 0:
		return reject(destination.BadRequest, "the value is not text in UTF-8 without NUL, which variables are")
	case d.config.Masked && !d.config.Raw && !maskable().Match(it.Value):
		return reject(destination.BadRequest, "the value cannot be masked, since with raw=false it may only have letters, digits and any of _+=/@:.~-, and at least 8 of them: set raw=true, or masked=false")
	case d.config.Masked && !masked:
		return reject(destination.BadRequest, "the value cannot be masked: "+maskRule)
	case tagOf(description(it.OwnerTag)) != it.OwnerTag || it.OwnerTag == "":
		return destination.InternalError("gitlab: the ownership tag is not one")
	}
	return nil
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	if err := d.check(it); err != nil {
		return destination.Held{}, err
	}
	value := string(it.Value)
	v := &variable{
		Key: it.Name, Value: &value, Type: d.config.VariableType, Protected: d.config.Protected, Masked: d.config.Masked, Raw: d.config.Raw,
		Scope: d.scope, Description: description(it.OwnerTag),
	}
	method, at := http.MethodPost, d.variables
	if was.State != destination.Absent {
		if gone, err := d.unchanged(ctx, was); gone || err != nil {
			return destination.Held{}, cmpError(err, absent)
		}
		method, at = http.MethodPut, d.one(it.Name)
	}
	now, err := d.put(ctx, method, at, v)
	if err != nil {
		return destination.Held{}, err
	}
	if now.Description != v.Description {
		e := &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: "GitLab does not keep descriptions of variables, which say whose they are: GitLab 16.2 or later is needed"}
		if method == http.MethodPost {
			_, err = d.send(ctx, http.MethodDelete, d.one(it.Name), nil, nil)
		}
		e.Unknown = err != nil || method != http.MethodPost
		return destination.Held{}, e
	}
	return destination.Held{Version: d.version(now)}, nil
}

func cmpError(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// unchanged reads a variable once more, and fails if it is not what was read before. gone says that it is not there any more.
func (d *dest) unchanged(ctx context.Context, was destination.Found) (gone bool, err error) {
	v, err := d.get(ctx, was.Name)
	switch {
	case errors.Is(err, absent):
		return true, nil
	case err != nil:
		return false, err
	case d.version(v) != was.Version:
		return false, reject(destination.Changed, "the variable has been changed by another client")
	}
	return false, nil
}

// Delete implements destination.Destination.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	if gone, err := d.unchanged(ctx, was); gone || err != nil {
		return err
	}
	_, err := d.send(ctx, http.MethodDelete, d.one(was.Name), nil, nil)
	if errors.Is(err, absent) {
		return nil
	}
	return err
}

// expirySoon is the remaining lifetime from which on a token fails the check.
const expirySoon = 7 * 24 * time.Hour

// Verify implements destination.Destination. Who may read variables may write them, if the scope of the token allows it.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	h, err := d.list(ctx, func(*variable) bool { return true })
	if err != nil {
		return destination.FailedChecks("GitLab", err)
	}
	checks := []destination.Check{
		{Name: "reachable", OK: true, Text: "GitLab answers"},
		{Name: "credentials", OK: true, Text: "access_token is accepted"},
		{Name: "read", OK: true, Text: "the variables can be listed"},
	}
	var token struct {
		Scopes  []string `json:"scopes"`
		Expires string   `json:"expires_at"`
	}
	write := destination.Check{Name: "write", Unknown: true, Text: "GitLab does not say what access_token may do"}
	expiry := destination.Check{Name: "expiry", Unknown: true, Text: "GitLab names no time at which access_token expires"}
	if _, err := d.send(ctx, http.MethodGet, d.api+"/personal_access_tokens/self", nil, &token); err == nil {
		write = destination.Check{Name: "write", OK: slices.Contains(token.Scopes, "api"), Text: "access_token has the scopes " + strings.Join(token.Scopes, ", ")}
		if !write.OK {
			write.Text += ": it needs the scope api"
		}
		if at, err := time.Parse(time.DateOnly, token.Expires); err == nil {
			expiry = destination.Check{Name: "expiry", OK: time.Until(at) > expirySoon, Text: "access_token expires on " + token.Expires}
			if !expiry.OK {
				expiry.Text += ": replace it before then"
			}
		}
	}
	return append(checks, write, expiry, destination.ClockCheck("GitLab", h.Get("Date"), time.Now()))
}
