// Package move brings things of one server to another: it compares what the destination has with what is wanted, and creates what is not there.
// What differs is left as it is and reported, unless an earlier run made it or the user asked for it. Secrets are not among the things: there
// are too many of them, and package secrets has them. Start reading at Object, then Runner.Do.
package move

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"golang.org/x/sync/errgroup"
)

// Object is one thing of the source.
type Object struct {
	Kind, Namespace, Name string
	Want                  map[string]any // its fields
	Now                   map[string]any // what the destination has, for Write; nil for nothing
	// Prepare, if set, completes Want with what is only known at the destination, before it is compared.
	Prepare func(ctx context.Context, o *Object) error
	// Current returns what the destination has, nil for nothing. Only fields in Want count.
	Current func(ctx context.Context) (map[string]any, error)
	// Write creates the object, or changes it if it is there, and returns the destination's remarks.
	Write func(ctx context.Context, o *Object) (*command.Response, error)
	// Notes say what of it does not come.
	Notes []string
	// Differing, if set, is why an object that differs is skipped instead of being a conflict.
	Differing string
}

// Body is what to send to have the object as it is wanted. What is empty goes only if the destination has something there.
func (o *Object) Body() map[string]any {
	body := map[string]any{}
	for name, value := range o.Want {
		if normal(value) == "" && normal(o.Now[name]) == "" && !plain(value) {
			continue
		}
		if value == nil {
			value = empty(o.Now[name])
		}
		body[name] = value
	}
	return body
}

// plain reports whether a value is a number or a boolean: also 0 and false may be other than the default.
func plain(value any) bool {
	switch value.(type) {
	case bool, float64, json.Number:
		return true
	}
	return false
}

// empty is nothing of the type of a value.
func empty(value any) any {
	switch value.(type) {
	case []any:
		return []any{}
	case map[string]any:
		return map[string]any{}
	}
	return ""
}

// Mode is what a Runner does about objects.
type Mode int

// The modes.
const (
	Apply  Mode = iota
	Plan        // nothing is written
	Verify      // nothing is written, and everything has to be the same
)

// Runner does it.
type Runner struct {
	Mode      Mode
	Overwrite bool
	Ledger    *ledger.Ledger
	Report    *Report
	Bar       *progress.Bar
}

// workers is how many objects are compared and written at once.
const workers = 8

// Do moves objects that do not depend on each other. Those that fail are in the report; the error is one that ends all.
func (r *Runner) Do(ctx context.Context, what string, objects []*Object) error {
	r.Bar.Begin(what, len(objects))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, o := range objects {
		g.Go(func() error {
			defer r.Bar.Add(1)
			action, reason, err := r.do(ctx, o)
			switch {
			case err == nil:
			case Ends(ctx, err):
				return err
			default:
				action, reason = Failed, command.Shortly(err)
			}
			if notes := strings.Join(o.Notes, "; "); notes != "" && action != Unchanged {
				reason = strings.TrimPrefix(reason+"; "+notes, "; ")
			}
			if reason == "" && action == Unchanged {
				r.Report.Count(o.Kind, action, 1)
				return nil
			}
			r.Report.Add(Action{Action: action, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Reason: reason})
			return nil
		})
	}
	return g.Wait()
}

// Ends reports whether an error concerns everything else, too: the end of the run, or a destination that does not serve requests however long
// they are repeated.
func Ends(ctx context.Context, err error) bool { return ctx.Err() != nil || command.Passing(err) }

func (r *Runner) do(ctx context.Context, o *Object) (action, reason string, err error) {
	if o.Prepare != nil {
		if err := o.Prepare(ctx, o); err != nil {
			return "", "", err
		}
	}
	now, err := o.Current(ctx)
	if err != nil {
		return "", "", err
	}
	action, reason = Create, ""
	if now != nil {
		action, reason = r.compare(o, now)
	}
	switch {
	case r.Mode == Verify && now == nil:
		return Missing, "", nil
	case r.Mode == Verify && action != Unchanged && action != Skip:
		return Different, reason, nil
	case r.Mode != Apply:
		return action, reason, nil
	}
	switch action {
	case Create, Update, Overwrite:
		o.Now = now
		a, err := o.Write(ctx, o)
		if err != nil {
			return "", "", err
		}
		if a != nil {
			o.Notes = append(o.Notes, a.Warnings()...)
		}
		if now, err = o.Current(ctx); err != nil {
			return "", "", err
		}
		if still := Differences(o.Want, now); len(still) > 0 {
			o.Notes = append(o.Notes, "the destination has another form of "+strings.Join(still, ", "))
		}
	case Unchanged:
	default:
		return action, reason, nil
	}
	return action, reason, r.Ledger.Put(ledger.Entry{
		Kind: o.Kind, Namespace: o.Namespace, Name: o.Name,
		Source: ledger.Fingerprint(o.Want), Destination: ledger.Fingerprint(project(o.Want, now)),
	})
}

// compare says what is to be done about an object that is there.
func (r *Runner) compare(o *Object, now map[string]any) (action, reason string) {
	differs := Differences(o.Want, now)
	if len(differs) == 0 {
		return Unchanged, ""
	}
	reason = "differs in " + strings.Join(differs, ", ")
	before, known := r.Ledger.Get(o.Kind, o.Namespace, o.Name)
	switch known = known && before.Destination == ledger.Fingerprint(project(o.Want, now)); {
	case known && before.Source == ledger.Fingerprint(o.Want) && r.Mode == Verify:
		return Skip, "the destination has its own form of " + strings.Join(differs, ", ")
	case known && before.Source == ledger.Fingerprint(o.Want):
		return Unchanged, ""
	case known:
		return Update, reason
	case r.Overwrite:
		return Overwrite, reason
	case o.Differing != "":
		return Skip, o.Differing
	}
	return Conflict, reason
}

// Differences returns the names of the fields in which have is not what is wanted.
func Differences(want, have map[string]any) []string {
	var out []string
	for name, value := range want {
		if normal(value) != normal(have[name]) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// project returns the fields of now that are wanted, in normal form.
func project(want, now map[string]any) map[string]string {
	out := map[string]string{}
	for name := range want {
		out[name] = normal(now[name])
	}
	return out
}
