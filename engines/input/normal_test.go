package input_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
)

type everyKind struct {
	String   string             `json:"string" help:"."`
	Name     string             `json:"name" form:"name" help:"."`
	Bool     bool               `json:"bool" default:"true" help:"."`
	Int      int                `json:"int" help:"."`
	Float    float64            `json:"float" help:"."`
	Duration engines.Duration   `json:"duration" help:"."`
	Old      engines.Duration   `json:"old" alias:"duration" help:"."`
	List     engines.StringList `json:"list" help:"."`
	Map      engines.StringMap  `json:"map" help:"."`
	Object   engines.Object     `json:"object" help:"."`
	Pointer  *int               `json:"pointer" help:"."`
	Either   engines.StringList `json:"either" alias:"list,string" help:"."`
}

// decoder is a route whose handler keeps what it gets.
func decoder(t *testing.T) (route *engines.Route, decoded func(body string) (everyKind, error)) {
	t.Helper()
	var got everyKind
	route = engines.On(engines.NewRouter(), engines.Update, "x", ".", 0, func(_ context.Context, _ *engines.Request, in *everyKind) (*engines.Response, error) {
		got = *in
		return nil, nil
	})
	return route, func(body string) (everyKind, error) {
		_, err := route.Serve(t.Context(), &engines.Request{Op: engines.Update, Body: json.RawMessage(body)}, nil)
		return got, err
	}
}

func inputOf(route *engines.Route, body string) (*input.Input, error) {
	return route.Input(&engines.Request{Op: engines.Update, Body: json.RawMessage(body)}, nil)
}

// TestInputIsWhatIsDecoded compares random values in pairs: two have one form if, and only if, the handler gets the same.
func TestInputIsWhatIsDecoded(t *testing.T) {
	route, decode := decoder(t)
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	texts := []string{
		"", " ", "a", "A", " a", "b", "a,b", "b,a", "a, b,", "k=v", "k=w", " k = v", "true", "TRUE", "1", "01", "1.0", "1e0", "+1", "0", "-0", "0.0", "f", "60", "60s",
		"1m", "0.5", "0.50", "500ms", "1.5", "2", "*", "null", "{}", "7d", "168h", "\u00e9",
	}
	value := func() string {
		text := func() string {
			raw, _ := json.Marshal(texts[rng.IntN(len(texts))])
			if t := string(raw); rng.IntN(3) == 0 && len(t) > 2 && t[1] != '\\' && t[1] < 0x80 {
				return fmt.Sprintf(`"\u%04x`, t[1]) + t[2:]
			}
			return string(raw)
		}
		switch rng.IntN(5) {
		case 0:
			return []string{"true", "false", "0", "1", "1.0", "60", "6e1", "0.5", "5e-1", "-0", "-1", "1.5"}[rng.IntN(12)]
		case 1:
			return "[" + text() + " ," + text() + "]"
		case 2:
			return "[" + text() + "]"
		case 3:
			return `{"k" : ` + text() + "}"
		}
		return text()
	}
	same, different := 0, 0
	for range 15000 {
		field := []string{"string", "name", "bool", "int", "float", "duration", "list", "map", "object", "pointer"}[rng.IntN(10)]
		var got [2]reflect.Value
		var form [2]input.Value
		var body [2]string
		ok := true
		for i := range body {
			raw := value()
			body[i] = fmt.Sprintf("{%q: %s}", field, raw)
			in, err := decode(body[i])
			input, inputErr := inputOf(route, body[i])
			if (err == nil) != (inputErr == nil) {
				t.Fatalf("%s: decoding says %v, the input %v", body[i], err, inputErr)
			}
			if ok = ok && err == nil; !ok {
				break
			}
			if f := input.Fields[field]; len(input.Fields) != 1 || f == nil || !f.Got || len(f.Values) != 1 {
				t.Fatalf("%s is %+v", body[i], input.Fields)
			}
			form[i] = input.Fields[field].Values[0]
			if listed := input.Value(field, json.RawMessage(raw)); !reflect.DeepEqual(listed, form[i]) {
				t.Fatalf("%s is %+v, but %+v as a rule has it", body[i], form[i], listed)
			}
			got[i] = reflect.ValueOf(comparable(in)).FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, field) })
		}
		if !ok {
			continue
		}
		equal := reflect.DeepEqual(got[0].Interface(), got[1].Interface())
		if equal != reflect.DeepEqual(form[0], form[1]) {
			t.Fatalf("%s and %s: the handler gets the same: %v; they are %+v and %+v", body[0], body[1], equal, form[0], form[1])
		}
		if equal {
			same++
		} else {
			different++
		}
	}
	if same < 40 || different < 500 {
		t.Errorf("%d pairs were the same and %d not: that compares too little", same, different)
	}
}

// comparable brings decoded values into a form that reflect compares as handlers take them: lists as sets, names without
// case, durations of more than a second in seconds.
func comparable(in everyKind) everyKind {
	in.Name = strings.ToLower(strings.TrimSpace(in.Name))
	slices.Sort(in.List)
	in.List = slices.Compact(in.List)
	if d := time.Duration(in.Duration); d > time.Second {
		in.Duration = engines.Duration(d.Truncate(time.Second))
	}
	if in.Float == 0 {
		in.Float = 0 // nor -0
	}
	if in.Object != nil {
		var v any
		if err := json.Unmarshal(in.Object, &v); err != nil {
			panic(err)
		}
		in.Object, _ = json.Marshal(v)
	}
	return in
}

func TestInputNames(t *testing.T) {
	route, _ := decoder(t)
	for _, test := range []struct{ body, want string }{
		{``, ``},
		{`{"old":"1m"}`, `duration=60`},
		{`{"old":"1m","duration":"2m"}`, `duration=60,120`},
		{`{"DURATION":"1m"}`, `(duration=60)`},
		{`{"duration":"1m","Duration":"2m"}`, `duration=60,120`},
		{`{"bool":null}`, `(bool=null,true)`},
		{`{"old":null}`, `(duration=null,0)`},
		{`{"pointer":null}`, `(pointer=null,0)`},
		{`{"unknown":[1.0,{"b":1,"a":2}]}`, `unknown=[1,{"a":2,"b":1}]`},
		{`{"unknown":null}`, `(unknown=null)`},
		{`{"either":"a,b"}`, `list=["a","b"] string=["a","b"]`},
	} {
		in, err := inputOf(route, test.body)
		if err != nil {
			t.Fatalf("%s: %v", test.body, err)
		}
		var all []string
		for name, f := range in.Fields {
			var values []string
			for _, v := range f.Values {
				values = append(values, v.Text)
			}
			slices.Sort(values)
			text := name + "=" + strings.Join(values, ",")
			if !f.Got {
				text = "(" + text + ")"
			}
			all = append(all, text)
		}
		slices.Sort(all)
		want := strings.Fields(test.want)
		for i, w := range want { // values are sorted as texts
			front, values, _ := strings.Cut(strings.Trim(w, "()"), "=")
			if !strings.ContainsAny(values, "[{") {
				list := strings.Split(values, ",")
				slices.Sort(list)
				values = strings.Join(list, ",")
			}
			if front += "=" + values; strings.HasPrefix(w, "(") {
				front = "(" + front + ")"
			}
			want[i] = front
		}
		if !slices.Equal(all, want) {
			t.Errorf("%s is %q, want %q", test.body, all, want)
		}
	}
}
