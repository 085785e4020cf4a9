package input_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input/jsontext"
)

type roleIn struct {
	Name     string                     `json:"name" help:"Which role."`
	Text     string                     `json:"text" max:"8" query:"true"`
	Kind     string                     `json:"kind" enum:"small,large" default:"small"`
	On       bool                       `json:"on" default:"true"`
	Count    int                        `json:"count"`
	Big      int64                      `json:"big"`
	Ratio    float64                    `json:"ratio"`
	TTL      engines.Duration           `json:"ttl" default:"1h"`
	List     engines.StringList         `json:"list" max:"3"`
	Map      engines.StringMap          `json:"map" max:"2"`
	Raw      json.RawMessage            `json:"raw" max:"32"`
	Object   engines.Object             `json:"object"`
	Objects  map[string]json.RawMessage `json:"objects"`
	Secret   engines.Sensitive          `json:"secret"`
	MaybeInt *int                       `json:"maybe_int"`
	MaybeTTL *engines.Duration          `json:"maybe_ttl"`
	embedded
}

type embedded struct {
	Inner string `json:"inner"`
}

// decode runs body and query through a route and returns what the handler got.
func decode[In any](t testing.TB, op engines.Operation, body, query string) (*In, *engines.Response, error) {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	var got *In
	r := engines.NewRouter()
	engines.On(r, op, "roles/{name}", "", 0, func(_ context.Context, _ *engines.Request, in *In) (*engines.Response, error) {
		got = in
		return nil, nil
	})
	resp, err := r.Handle(t.Context(), &engines.Request{
		Op: op, Path: "roles/x", Body: json.RawMessage(body), Query: values})
	return got, resp, err
}

func ptr[T any](v T) *T { return &v }

func TestDecode(t *testing.T) {
	type set func(*roleIn)
	hours := func(n int) engines.Duration { return engines.Duration(time.Duration(n) * time.Hour) }
	tests := []struct {
		body string
		want set
	}{
		{``, func(*roleIn) {}},
		{`{}`, func(*roleIn) {}},
		{` { "text" : null, "ttl": null } `, func(*roleIn) {}},
		{`{"name":"other","text":"a\u00e9\n"}`, func(in *roleIn) { in.Text = "aé\n" }},
		{`{"text":12.50,"inner":true}`, func(in *roleIn) { in.Text, in.Inner = "12.50", "true" }},
		{`{"kind":"large","on":"false"}`, func(in *roleIn) { in.Kind, in.On = "large", false }},
		{`{"on":0}`, func(in *roleIn) { in.On = false }},
		{`{"count":"7","big":-9223372036854775808,"ratio":"0.5"}`, func(in *roleIn) { in.Count, in.Big, in.Ratio = 7, -1<<63, 0.5 }},
		{`{"count":3.0,"big":1e3,"ratio":2}`, func(in *roleIn) { in.Count, in.Big, in.Ratio = 3, 1000, 2 }},
		{`{"count":"","ratio":"","on":"","ttl":""}`, func(in *roleIn) { in.On, in.TTL = false, 0 }},
		{`{"ttl":7200}`, func(in *roleIn) { in.TTL = hours(2) }},
		{`{"ttl":"7200"}`, func(in *roleIn) { in.TTL = hours(2) }},
		{`{"ttl":"1.5d"}`, func(in *roleIn) { in.TTL = hours(36) }},
		{`{"ttl":"1h30m"}`, func(in *roleIn) { in.TTL = hours(3) / 2 }},
		{`{"ttl":0.5}`, func(in *roleIn) { in.TTL = engines.Duration(500 * time.Millisecond) }},
		{`{"ttl":"250us"}`, func(in *roleIn) { in.TTL = engines.Duration(250 * time.Microsecond) }},
		{`{"list":["a"," b ","",3]}`, func(in *roleIn) { in.List = engines.StringList{"a", "b", "3"} }},
		{`{"list":"a, b,,"}`, func(in *roleIn) { in.List = engines.StringList{"a", "b"} }},
		{`{"list":[]}`, func(in *roleIn) { in.List = engines.StringList{} }},
		{`{"map":{"a":"1","b":2}}`, func(in *roleIn) { in.Map = engines.StringMap{"a": "1", "b": "2"} }},
		{`{"map":["a=1","b=x=y"]}`, func(in *roleIn) { in.Map = engines.StringMap{"a": "1", "b": "x=y"} }},
		{`{"map":"a=true"}`, func(in *roleIn) { in.Map = engines.StringMap{"a": "true"} }},
		{`{"raw":[1, {"a":2}]}`, func(in *roleIn) { in.Raw = json.RawMessage(`[1, {"a":2}]`) }},
		{`{"object":{"a": 1.0}}`, func(in *roleIn) { in.Object = engines.Object(`{"a": 1.0}`) }},
		{`{"objects":{"a":[1],"b":null}}`, func(in *roleIn) {
			in.Objects = map[string]json.RawMessage{"a": json.RawMessage(`[1]`), "b": json.RawMessage(`null`)}
		}},
		{`{"secret":"s3cret"}`, func(in *roleIn) { in.Secret = "s3cret" }},
		{`{"maybe_int":0,"maybe_ttl":"2h"}`, func(in *roleIn) { in.MaybeInt, in.MaybeTTL = ptr(0), ptr(hours(2)) }},
	}
	for _, tt := range tests {
		want := &roleIn{Name: "x", Kind: "small", On: true, TTL: hours(1)}
		tt.want(want)
		got, resp, err := decode[roleIn](t, engines.Update, tt.body, "")
		if err != nil {
			t.Errorf("%s: %v", tt.body, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %#v\nwant %#v", tt.body, got, want)
		}
		if resp != nil {
			t.Errorf("%s: response %+v, want none", tt.body, resp)
		}
	}
}

func TestDecodeProblems(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	many := strings.TrimSuffix(strings.Repeat("1,", jsontext.MaxElements+1), ",")
	tests := []struct {
		body string
		want []string // all in the one text
	}{
		{`[]`, []string{"must be one JSON object"}},
		{`"secret"`, []string{"must be one JSON object"}},
		{`{"text":"a"} {}`, []string{"goes on"}},
		{`{"text":"a"`, []string{"malformed JSON"}},
		{`{"text":secret}`, []string{`field "text"`, "malformed JSON"}},
		{`{"text":"a",}`, []string{"malformed JSON"}},
		{`{"count":01}`, []string{"malformed JSON"}},
		{"{\"text\":\"a\nb\"}", []string{`field "text"`, "malformed JSON"}},
		{"{\"text\":\"\xff\"}", []string{"not valid UTF-8"}},
		{`{"text":"a","text":"b"}`, []string{`field "text"`, "same name twice"}},
		{`{"text":"a","t\u0065xt":"b"}`, []string{`field "text"`, "same name twice"}},
		{`{"raw":{"a":1,"a":2}}`, []string{`field "raw"`, "same name twice"}},
		{`{"raw":` + deep(jsontext.MaxDepth) + `}`, []string{`field "raw"`, "nested deeper than 32"}},
		{`{"raw":` + strings.Repeat(`{"a":`, 1e6), []string{`field "raw"`, "nested deeper than 32"}},
		{`{"list":[` + many + `]}`, []string{`field "list"`, "more than 10000 elements"}},
		{`{"text":["secret"]}`, []string{`field "text": must be a string, got a list`}},
		{`{"text":"123456789"}`, []string{`field "text": is longer than 8 bytes`}},
		{`{"raw":"` + strings.Repeat("a", 31) + `"}`, []string{`field "raw": is longer than 32 bytes`}},
		{`{"kind":"secret"}`, []string{`field "kind": must be one of "small", "large"`}},
		{`{"on":"secret"}`, []string{`field "on": must be a boolean, got a string`}},
		{`{"count":1.5}`, []string{`field "count": must be a whole number, got a number`}},
		{`{"big":9223372036854775808}`, []string{`field "big": must be a whole number`}},
		{`{"count":true}`, []string{`field "count": must be a whole number, got a boolean`}},
		{`{"ratio":"NaN"}`, []string{`field "ratio": must be a number`}},
		{`{"ratio":1e999}`, []string{`field "ratio": must be a number`}},
		{`{"ttl":["secret"]}`, []string{`field "ttl": must be a duration such as "30m", got a list`}},
		{`{"ttl":true}`, []string{`field "ttl": must be a duration such as "30m", got a boolean`}},
		{`{"ttl":"secret"}`, []string{`field "ttl": must be a duration such as "30m"`}},
		{`{"ttl":-1}`, []string{`field "ttl": must not be negative`}},
		{`{"ttl":"-1h"}`, []string{`field "ttl": must not be negative`}},
		{`{"ttl":1e30}`, []string{`field "ttl": must be a duration`}},
		{`{"ttl":"99999999999999d"}`, []string{`field "ttl": must be a duration`}},
		{`{"ttl":"0x10"}`, []string{`field "ttl": must be a duration`}},
		{`{"list":{"a":"secret"}}`, []string{`field "list": must be a list of strings, got an object`}},
		{`{"list":[["secret"]]}`, []string{`field "list": must be a list of strings, but an element is not`}},
		{`{"list":"a,b,c,d"}`, []string{`field "list": has more than 3 elements`}},
		{`{"map":{"a":{"b":"secret"}}}`, []string{`field "map": must be an object of strings`}},
		{`{"map":["secret"]}`, []string{`field "map": must be an object of strings`}},
		{`{"map":7}`, []string{`field "map": must be an object of strings, or a list of "key=value", got a number`}},
		{`{"map":{"a":"1","b":"2","c":"3"}}`, []string{`field "map": has more than 2 elements`}},
		{`{"object":"secret"}`, []string{`field "object": must be an object, got a string`}},
		{`{"objects":[1]}`, []string{`field "objects": must be an object, got a list`}},
		{`{"secret":{"a":"secret"}}`, []string{`field "secret": must be a string, got an object`}},
		{`{"maybe_int":"secret"}`, []string{`field "maybe_int": must be a whole number`}},
		{`{"inner":[]}`, []string{`field "inner"`}},
		{`{"count":"secret","on":[],"ttl":{}}`, []string{`field "count"`, `field "on"`, `field "ttl"`}},
	}
	for _, tt := range tests {
		body := tt.body
		if len(body) > 80 {
			body = body[:80]
		}
		_, _, err := decode[roleIn](t, engines.Update, tt.body, "")
		if err == nil || kindOf(err) != engines.KindInvalid {
			t.Errorf("%s: error %v, want one of KindInvalid", body, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q, want %q in it", body, err, want)
			}
		}
		if clean := strings.ReplaceAll(err.Error(), `"secret":`, ""); strings.Contains(clean, "secret") {
			t.Errorf("%s: error %q repeats a value", body, err)
		}
	}
}

func TestDecodeRequired(t *testing.T) {
	type in struct {
		Name string             `json:"name"`
		A    string             `json:"a" required:"true"`
		B    engines.StringList `json:"b" required:"true"`
		C    int                `json:"c" required:"true"`
	}
	tests := []struct{ body, want string }{
		{``, `field "a": is required; field "b": is required; field "c": is required`},
		{`{"a":null,"b":["x"],"c":0}`, `field "a": is required`},
		{`{"a":"","b":"","c":0}`, `field "a": must not be empty; field "b": must not be empty`},
		{`{"a":"x","b":"y","c":0}`, ``},
	}
	for _, tt := range tests {
		_, _, err := decode[in](t, engines.Update, tt.body, "")
		if got := text(err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.body, got, tt.want)
		}
	}
}

func kindOf(err error) engines.Kind {
	var e *engines.Error
	if !errors.As(err, &e) {
		return -1
	}
	return e.Kind
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestDecodeQuery(t *testing.T) {
	got, _, err := decode[roleIn](t, engines.Read, "", "count=3&ttl=5m&list=a&list=b&name=other&on=0&unknown=1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 3 || got.TTL.String() != "5m0s" || len(got.List) != 2 || got.Name != "x" || got.On {
		t.Errorf("read from the query: %+v", got)
	}
	got, _, err = decode[roleIn](t, engines.List, `{"count":4}`, "count=3")
	if err != nil || got.Count != 4 {
		t.Errorf("body and query: %+v, %v, want the body to win", got, err)
	}
	got, _, err = decode[roleIn](t, engines.Update, "", "text=a&count=3")
	if err != nil || got.Text != "a" || got.Count != 0 {
		t.Errorf("write: %+v, %v, want only the field with the query tag", got, err)
	}
	for _, query := range []string{"count=secret", "ttl=-1", "kind=secret", "text=%ff"} {
		op := engines.Read
		if _, _, err := decode[roleIn](t, op, "", query); kindOf(err) != engines.KindInvalid || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want KindInvalid without the value", query, err)
		}
	}
}

func TestGiven(t *testing.T) {
	r := engines.NewRouter()
	var given []string
	engines.On(r, engines.Update, "roles/{name}", "", 0, func(_ context.Context, req *engines.Request, _ *roleIn) (*engines.Response, error) {
		for _, name := range []string{"name", "text", "count", "on", "maybe_int"} {
			if req.Given(name) {
				given = append(given, name)
			}
		}
		return nil, nil
	})
	_, err := r.Handle(t.Context(), &engines.Request{Op: engines.Update, Path: "roles/x",
		Body: json.RawMessage(`{"name":"a","count":0,"on":null}`), Query: url.Values{"text": {""}}})
	if err != nil || strings.Join(given, ",") != "text,count" {
		t.Errorf("given %v, %v, want text and count", given, err)
	}
}

func TestUnknownFields(t *testing.T) {
	_, resp, err := decode[roleIn](t, engines.Update, `{"count":1,"x":"v","y\n":"v"}`, "")
	want := `unrecognized field(s) ignored: "x", "y\n"`
	if err != nil || resp == nil || len(resp.Warnings) != 1 || resp.Warnings[0] != want {
		t.Errorf("response %+v, %v, want the warning %s", resp, err, want)
	}
	body := map[string]int{}
	for c := 'a'; c <= 'z'; c++ {
		body[strings.Repeat(string(c), 100)] = 1
	}
	b, _ := json.Marshal(body)
	_, resp, err = decode[roleIn](t, engines.Update, string(b), "")
	if err != nil || strings.Count(resp.Warnings[0], `"`) != 20 || !strings.HasSuffix(resp.Warnings[0], "and 16 more") || len(resp.Warnings[0]) > 1000 {
		t.Errorf("response %+v, %v, want ten shortened names", resp, err)
	}
}

func TestWholeBody(t *testing.T) {
	type in struct {
		Name string          `json:"name"`
		Body json.RawMessage `json:"body" body:"true" max:"64"`
		Flag bool            `json:"flag" query:"true"`
	}
	got, resp, err := decode[in](t, engines.Update, ` {"a": 1.00, "name":null} `, "flag=1")
	if err != nil || string(got.Body) != `{"a": 1.00, "name":null}` || !got.Flag || resp != nil {
		t.Errorf("got %+v, %+v, %v", got, resp, err)
	}
	for _, body := range []string{`[1]`, `{"a":1,"a":2}`, `{"a":"` + strings.Repeat("b", 64) + `"}`} {
		if _, _, err := decode[in](t, engines.Update, body, ""); kindOf(err) != engines.KindInvalid {
			t.Errorf("%s: %v, want KindInvalid", body, err)
		}
	}
}

func TestDefaultsAreNotShared(t *testing.T) {
	type in struct {
		Name string             `json:"name"`
		List engines.StringList `json:"list" default:"a,b"`
	}
	r := engines.NewRouter()
	engines.On(r, engines.Update, "roles/{name}", "", 0, func(_ context.Context, _ *engines.Request, in *in) (*engines.Response, error) {
		if got := strings.Join(in.List, ","); got != "a,b" {
			t.Errorf("default is %q, want a,b", got)
		}
		in.List[0] = "changed"
		return nil, nil
	})
	for range 2 {
		if _, err := r.Handle(t.Context(), &engines.Request{Op: engines.Update, Path: "roles/x"}); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzDecode: no input panics; what is accepted is JSON for encoding/json too, and the other way round except
// for our limits; raw fields come out byte for byte.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"raw":{"a":[1,-2.5e+3,true,false,null,"\u00e9\\"]}}`, `{"a":1,"a":2}`, `{"map":["a=b"],"list":"x,y","ttl":"1.5h"}`,
		`{"text":"\ud800","object":{}}`, `{"objects":{"":0}}`, `{"raw":[[[[[[[[]]]]]]]]}`, "{\"text\":\"\xff\"}", `{"count":1e400}`, `{"raw":-0.0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 {
			return
		}
		type in struct {
			Name string          `json:"name"`
			Body json.RawMessage `json:"body" body:"true"`
		}
		_, _, err := decode[in](t, engines.Update, string(body), "")
		if err == nil && !json.Valid(body) {
			t.Errorf("accepted %q, which is not JSON", body)
		}
		if err != nil && strings.Contains(err.Error(), "malformed JSON") && json.Valid(body) {
			t.Errorf("refused %q, which is JSON", body)
		}
		got, _, err := decode[roleIn](t, engines.Update, string(body), "")
		if err != nil {
			if kindOf(err) != engines.KindInvalid {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if got.Raw != nil && !json.Valid(got.Raw) || got.Object != nil && !json.Valid(got.Object) {
			t.Errorf("%q: raw field is not JSON", body)
		}
		if got.TTL < 0 || got.MaybeTTL != nil && *got.MaybeTTL < 0 {
			t.Errorf("%q: negative duration", body)
		}
	})
}
