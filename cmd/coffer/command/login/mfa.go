package login

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

// maxCodeAttempts is how often the codes of one login are asked for on a terminal.
const maxCodeAttempts = 3

func mfaFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "mfa", Usage: "`METHOD:CODE` of a second factor, by the method's name or id; METHOD:- reads the code from stdin; repeatable"}
}

// factorCodes reads -mfa as the values of the header that carries codes along with a login.
func factorCodes(ctx context.Context, c *command.Call) ([]string, error) {
	var values []string
	for _, v := range c.StringSlice("mfa") {
		method, code, ok := strings.Cut(v, ":")
		if !ok || method == "" || code == "" {
			return nil, command.Usagef("-mfa takes METHOD:CODE, or METHOD:- to read the code from stdin")
		}
		code, err := c.ReadSecret(ctx, code, "code")
		if err != nil {
			return nil, err
		}
		values = append(values, method+":"+code)
	}
	return values, nil
}

// secondFactor completes a login that waits for codes, by asking for them.
func secondFactor(ctx context.Context, c *command.Call, a *command.Response) (*command.Response, error) {
	need := a.Secret.Auth.MFARequirement
	if !command.IsTerminal(c.In) {
		if c.Format() != command.FormatTable && c.String("field") == "" && !c.Bool("no-print") {
			if err := c.PrintResponse(a); err != nil {
				return nil, err
			}
		}
		return nil, command.ServerErrorf("the login needs a second factor and stdin is no terminal to ask for it on: give it with %s", factorFlags(need))
	}
	for attempt := 1; ; attempt++ {
		codes, err := askCodes(ctx, c, need)
		if err != nil {
			return nil, err
		}
		done, err := c.Put(ctx, "sys/mfa/validate", map[string]any{"mfa_request_id": need.MFARequestID, "mfa_payload": codes})
		if command.StatusOf(err) != http.StatusForbidden || attempt == maxCodeAttempts {
			return done, command.WithHint(err, "A code works once, and a login waits for it for a few minutes. Log in again with the next one.")
		}
		c.Warnf("The server did not accept that: %s.", command.Refusal(err))
	}
}

// factorFlags is how the codes a login needs are given as flags, one method of each constraint.
func factorFlags(need *api.MFARequirement) string {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		var ways []string
		for _, m := range need.MFAConstraints[name].Any {
			ways = append(ways, "-mfa="+response.MethodName(m)+":CODE")
		}
		if way := strings.Join(ways, " or "); way != "" && !slices.Contains(flags, way) {
			flags = append(flags, way)
		}
	}
	if len(flags) == 0 {
		return "-mfa=METHOD:CODE"
	}
	return strings.Join(flags, " and ")
}

// askCodes asks for a code of one method of each constraint. A code counts wherever its method does.
func askCodes(ctx context.Context, c *command.Call, need *api.MFARequirement) (map[string][]string, error) {
	codes := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		methods := need.MFAConstraints[name].Any
		if slices.ContainsFunc(methods, func(m *api.MFAMethodID) bool { return codes[m.ID] != nil }) {
			continue
		}
		m, err := chooseMethod(ctx, c, name, methods)
		if err != nil {
			return nil, err
		}
		code := "" // a method without codes is only named
		if m.UsesPasscode {
			if code, err = c.Ask(ctx, "code of "+table.Printable(response.MethodName(m))); err != nil {
				return nil, err
			}
		}
		codes[m.ID] = []string{code}
	}
	return codes, nil
}

// chooseMethod returns the method that the user wants to satisfy a constraint with.
func chooseMethod(ctx context.Context, c *command.Call, constraint string, methods []*api.MFAMethodID) (*api.MFAMethodID, error) {
	if len(methods) == 0 {
		return nil, command.ServerErrorf("%q, which this login needs, cannot be satisfied: its methods are gone", constraint)
	}
	if len(methods) == 1 {
		return methods[0], nil
	}
	var names []string
	for _, m := range methods {
		names = append(names, table.Printable(response.MethodName(m)))
	}
	for {
		c.Warnf("%s takes a code of one of: %s", table.Printable(constraint), strings.Join(names, ", "))
		typed, err := c.Ask(ctx, "method")
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(methods, func(m *api.MFAMethodID) bool { return typed == m.Name || typed == m.ID }); i >= 0 {
			return methods[i], nil
		}
	}
}
