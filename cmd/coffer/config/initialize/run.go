package initialize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// maxFile is how many bytes of a file are a value.
const maxFile = 1 << 20

// Call is a request with its values.
type Call struct {
	Operation, Path string
	Token           string // "": the root token
	Data            map[string]any
}

// Do runs a call and returns the response as the API writes it; nil: it has none.
type Do func(context.Context, Call) (map[string]any, error)

// Prepare returns the requests with the values of variables and files, so that one that is missing is found before anything is done.
func Prepare(all []Request) ([]Request, error) {
	out := make([]Request, len(all))
	for i, r := range all {
		var err error
		if out[i], err = r.replace(func(s *Source) (any, error) {
			switch s.Kind {
			case "env":
				text, ok := os.LookupEnv(s.EnvVar)
				if !ok && s.Required {
					return nil, fmt.Errorf("the variable %s is not set", s.EnvVar)
				}
				return s.convert(text)
			case "file":
				text, err := readFile(s.Path)
				if err != nil {
					return nil, err
				}
				return s.convert(text)
			}
			return s, nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return string(text), err
}

// Run does the calls of prepared requests one after the other. It ends with the first that fails, unless that one may. failed hears
// of those.
func Run(ctx context.Context, prepared []Request, do Do, failed func(Request, error)) error {
	type pair struct{ request, response map[string]any }
	history := map[[2]string]pair{}
	for _, r := range prepared {
		r, err := r.replace(func(s *Source) (any, error) {
			before := history[[2]string{s.Block, s.Request}]
			from := before.request
			if s.Kind == "response" {
				from = before.response
			}
			v, err := selected(from, s.Selector)
			if err != nil {
				return nil, err
			}
			return s.convert(v)
		})
		if err != nil {
			return err
		}
		call := Call{Operation: r.Operation, Data: r.Data}
		var isText, tokenIsText bool
		call.Path, isText = r.Path.(string)
		call.Token, tokenIsText = r.Token.(string)
		if !isText || r.Token != nil && !tokenIsText {
			return fmt.Errorf("%s: path and token must be texts", r)
		}
		response, err := do(ctx, call)
		if err != nil {
			if err = fmt.Errorf("%s: %w", r, err); !r.AllowFailure {
				return err
			}
			failed(r, err)
		}
		history[[2]string{r.Block, r.Name}] = pair{
			map[string]any{"operation": call.Operation, "path": call.Path, "token": call.Token, "data": call.Data}, response,
		}
	}
	return nil
}

// replace returns the request with each source replaced.
func (r Request) replace(by func(*Source) (any, error)) (Request, error) {
	path, err := replace(r.Path, by)
	token, err2 := replace(r.Token, by)
	data, err3 := replace(r.Data, by)
	if err := errors.Join(err, err2, err3); err != nil {
		return r, fmt.Errorf("%s: %w", r, err)
	}
	r.Path, r.Token = path, token
	r.Data, _ = data.(map[string]any)
	return r, nil
}

func replace(v any, by func(*Source) (any, error)) (any, error) {
	switch v := v.(type) {
	case *Source:
		return by(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, each := range v {
			one, err := replace(each, by)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			out[key] = one
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, each := range v {
			one, err := replace(each, by)
			if err != nil {
				return nil, err
			}
			out[i] = one
		}
		return out, nil
	}
	return v, nil
}

// selected returns the value at the end of a chain of names.
func selected(v any, names []string) (any, error) {
	for _, name := range names {
		object, ok := v.(map[string]any)
		if v, ok = object[name]; !ok {
			return nil, fmt.Errorf("there is no field %s", strings.Join(names, "."))
		}
	}
	return v, nil
}

// convert returns a value as the type that the source says. Errors do not show it.
func (s *Source) convert(v any) (any, error) {
	text, isText := v.(string)
	var out any = v
	var err error
	ok := true
	switch s.Type {
	case "string":
		if !isText {
			_, isMap := v.(map[string]any)
			_, isList := v.([]any)
			out, ok = fmt.Sprint(v), !isMap && !isList && v != nil
		}
	case "int":
		if isText {
			out, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		}
	case "float64":
		if isText {
			out, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	case "bool":
		if isText {
			out, err = strconv.ParseBool(strings.TrimSpace(text))
		}
		_, isBool := out.(bool)
		ok = isBool
	case "[]string":
		if isText {
			out = strings.Split(text, ",")
		} else {
			_, ok = texts(v)
		}
	case "map":
		if isText {
			var m map[string]any
			err = json.Unmarshal([]byte(text), &m)
			out = m
		} else {
			_, ok = v.(map[string]any)
		}
	}
	if err != nil || !ok {
		return nil, fmt.Errorf("the value from %s is no %s", s.Kind, s.Type)
	}
	return out, nil
}
