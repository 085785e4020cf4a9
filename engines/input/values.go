package input

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/input/jsontext"
)

// Duration is a duration in an input struct. It is never negative. Clients send whole or fractional seconds,
// as a number or a text, or a text such as "90s", "1.5h" or "7d".
type Duration time.Duration

// Seconds returns the duration in whole seconds, rounded down.
func (d Duration) Seconds() int64 { return int64(time.Duration(d) / time.Second) }

// String formats d like time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// StringList is a list of texts in an input struct. Clients send a list, or a text with commas; elements are
// trimmed and empty ones dropped.
type StringList []string

// StringMap maps texts to texts in an input struct. Clients send an object whose values are texts, numbers or
// booleans, or a list of "k=v" texts, or a single one.
type StringMap map[string]string

// Object is a JSON object in an input struct, kept as it came.
type Object json.RawMessage

// MarshalJSON returns the object as it came; an empty one is null.
func (o Object) MarshalJSON() ([]byte, error) { return json.RawMessage(o).MarshalJSON() }

// Sensitive is a string that does not print itself: not with fmt, not with slog, not as JSON. Reveal returns it.
type Sensitive string

const placeholder = "[hidden]"

// String returns a placeholder.
func (Sensitive) String() string { return placeholder }

// GoString returns a placeholder.
func (Sensitive) GoString() string { return placeholder }

// MarshalText returns a placeholder; encoding/json and slog use it.
func (Sensitive) MarshalText() ([]byte, error) { return []byte(placeholder), nil }

// Reveal returns the secret.
func (s Sensitive) Reveal() string { return string(s) }

// kind is one type that an input field can have. Both functions set v or return what is wrong; raw gets
// scanned JSON that is not null. Kinds without text come from a body only.
type kind struct {
	name   string
	scalar bool // has neither length nor elements
	text   func(v reflect.Value, text string) string
	raw    func(v reflect.Value, raw []byte) string
}

var (
	stringKind   = &kind{name: "string", text: setString, raw: rawString}
	boolKind     = &kind{name: "boolean", scalar: true, text: setBool, raw: rawScalar("a boolean", setBool)}
	intKind      = &kind{name: "integer", scalar: true, text: setInt, raw: rawScalar("a whole number", setInt)}
	floatKind    = &kind{name: "number", scalar: true, text: setFloat, raw: rawScalar("a number", setFloat)}
	durationKind = &kind{name: "duration", scalar: true, text: setDuration, raw: rawDuration}
	listKind     = &kind{name: "list", text: setList, raw: rawList}
	mapKind      = &kind{name: "map", text: setMap, raw: rawMap}
	objectKind   = &kind{name: "object", raw: rawObject}
	objectsKind  = &kind{name: "object", raw: rawObjects}
	anyKind      = &kind{name: "any", raw: rawAny}
)

// kindOf returns the kind of a Go type, or nil.
func kindOf(t reflect.Type) *kind {
	switch t {
	case reflect.TypeFor[Duration]():
		return durationKind
	case reflect.TypeFor[StringList]():
		return listKind
	case reflect.TypeFor[StringMap]():
		return mapKind
	case reflect.TypeFor[Object]():
		return objectKind
	case reflect.TypeFor[map[string]json.RawMessage]():
		return objectsKind
	case reflect.TypeFor[json.RawMessage]():
		return anyKind
	case reflect.TypeFor[time.Duration]():
		return nil // its declaration would lie about units: use Duration
	}
	if t.Implements(reflect.TypeFor[Paired]()) && t.ConvertibleTo(reflect.TypeFor[json.RawMessage]()) {
		return anyKind
	}
	switch t.Kind() {
	case reflect.String:
		return stringKind
	case reflect.Bool:
		return boolKind
	case reflect.Int, reflect.Int64:
		return intKind
	case reflect.Float64:
		return floatKind
	}
	return nil
}

// got completes a message with the JSON type that came instead.
func got(want string, raw []byte) string {
	switch raw[0] {
	case '{':
		return "must be " + want + ", got an object"
	case '[':
		return "must be " + want + ", got a list"
	case '"':
		return "must be " + want + ", got a string"
	case 't', 'f':
		return "must be " + want + ", got a boolean"
	}
	return "must be " + want + ", got a number"
}

// scalarText returns the text of a JSON string, number or boolean.
func scalarText(raw []byte) (string, bool) {
	switch raw[0] {
	case '{', '[', 'n':
		return "", false
	case '"':
		return jsontext.Unquote(raw), true
	}
	return string(raw), true
}

func setString(v reflect.Value, text string) string { v.SetString(text); return "" }

func rawString(v reflect.Value, raw []byte) string {
	text, ok := scalarText(raw)
	if !ok {
		return got("a string", raw)
	}
	v.SetString(text)
	return ""
}

// rawScalar makes a raw function from a text function whose failures mean that the type is wrong.
func rawScalar(want string, set func(reflect.Value, string) string) func(reflect.Value, []byte) string {
	return func(v reflect.Value, raw []byte) string {
		text, ok := scalarText(raw)
		if !ok {
			return got(want, raw)
		}
		if problem := set(v, text); problem != "" {
			return got(want, raw)
		}
		return ""
	}
}

func setBool(v reflect.Value, text string) string {
	if text == "" {
		v.SetBool(false)
		return ""
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return "must be a boolean"
	}
	v.SetBool(b)
	return ""
}

func setInt(v reflect.Value, text string) string {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && text != "" {
		f, ferr := strconv.ParseFloat(text, 64) // 3.0 and 1e3 are whole numbers too
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return "must be a whole number"
		}
		n = int64(f)
	}
	v.SetInt(n)
	return ""
}

func setFloat(v reflect.Value, text string) string {
	if text == "" {
		v.SetFloat(0)
		return ""
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "must be a number"
	}
	v.SetFloat(f)
	return ""
}

const wantDuration = `a duration such as "30m"`

var errNegative = errors.New("must not be negative")

// ParseDuration reads a duration as clients write it: see Duration. An empty text is 0. The error says what
// is expected and never repeats the text.
func ParseDuration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	if text[0] == '-' {
		return 0, errNegative
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n <= math.MaxInt64/int64(time.Second) {
		return time.Duration(n) * time.Second, nil
	}
	unit := time.Second
	switch last := text[len(text)-1]; {
	case last == 'd':
		unit, text = 24*time.Hour, text[:len(text)-1]
	case last > '9':
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errors.New("must be " + wantDuration)
		}
		return d, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f*float64(unit) < math.MaxInt64) || strings.Trim(text, "0123456789.eE+") != "" {
		return 0, errors.New("must be " + wantDuration)
	}
	return time.Duration(f * float64(unit)), nil
}

// ParseNetwork reads a network such as "10.0.0.0/8", or an address as the network that is only itself.
func ParseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

func setDuration(v reflect.Value, text string) string {
	d, err := ParseDuration(text)
	if err != nil {
		return err.Error()
	}
	v.SetInt(int64(d))
	return ""
}

func rawDuration(v reflect.Value, raw []byte) string {
	if text, ok := scalarText(raw); ok && raw[0] != 't' && raw[0] != 'f' {
		return setDuration(v, text)
	}
	return got(wantDuration, raw)
}

func setList(v reflect.Value, text string) string {
	list := StringList{}
	for element := range strings.SplitSeq(text, ",") {
		if element = strings.TrimSpace(element); element != "" {
			list = append(list, element)
		}
	}
	v.Set(reflect.ValueOf(list))
	return ""
}

func rawList(v reflect.Value, raw []byte) string {
	if raw[0] != '[' {
		text, ok := scalarText(raw)
		if !ok {
			return got("a list of strings", raw)
		}
		return setList(v, text)
	}
	list := StringList{}
	for _, element := range jsontext.Elements(raw) {
		text, ok := scalarText(element)
		if !ok {
			return "must be a list of strings, but an element is not a string"
		}
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
	}
	v.Set(reflect.ValueOf(list))
	return ""
}

const wantMap = `an object of strings, or a list of "key=value"`

func setMap(v reflect.Value, text string) string {
	if text == "" {
		v.Set(reflect.ValueOf(StringMap{}))
		return ""
	}
	return setPairs(v, []string{text})
}

func setPairs(v reflect.Value, pairs []string) string {
	m := make(StringMap, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return "must be " + wantMap
		}
		m[key] = strings.TrimSpace(value)
	}
	v.Set(reflect.ValueOf(m))
	return ""
}

func rawMap(v reflect.Value, raw []byte) string {
	switch raw[0] {
	case '"':
		return setMap(v, jsontext.Unquote(raw))
	case '[':
		var pairs []string
		for _, element := range jsontext.Elements(raw) {
			if element[0] != '"' {
				return "must be " + wantMap
			}
			pairs = append(pairs, jsontext.Unquote(element))
		}
		return setPairs(v, pairs)
	case '{':
		m := StringMap{}
		for _, member := range jsontext.Members(raw) {
			text, ok := scalarText(member.Value)
			if !ok {
				return "must be " + wantMap + ", but a value is neither a string, a number nor a boolean"
			}
			m[member.Name] = text
		}
		v.Set(reflect.ValueOf(m))
		return ""
	}
	return got(wantMap, raw)
}

func rawObject(v reflect.Value, raw []byte) string {
	if raw[0] != '{' {
		return got("an object", raw)
	}
	v.SetBytes(raw)
	return ""
}

func rawObjects(v reflect.Value, raw []byte) string {
	if raw[0] != '{' {
		return got("an object", raw)
	}
	members := jsontext.Members(raw)
	m := make(map[string]json.RawMessage, len(members))
	for _, member := range members {
		m[member.Name] = member.Value
	}
	v.Set(reflect.ValueOf(m))
	return ""
}

func rawAny(v reflect.Value, raw []byte) string { v.SetBytes(raw); return "" }
