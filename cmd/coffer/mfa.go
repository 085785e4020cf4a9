package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

// maxCodeAttempts is how often the codes of one login are asked for on a terminal.
const maxCodeAttempts = 3

func mfaFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "mfa", Usage: "`METHOD:CODE` of a second factor, by the method's name or id; METHOD:- reads the code from stdin; repeatable"}
}

// factorCodes reads -mfa as the values of the header that carries codes along with a login.
func (c *call) factorCodes(ctx context.Context) ([]string, error) {
	var values []string
	for _, v := range c.StringSlice("mfa") {
		method, code, ok := strings.Cut(v, ":")
		if !ok || method == "" || code == "" {
			return nil, usagef("-mfa takes METHOD:CODE, or METHOD:- to read the code from stdin")
		}
		code, err := c.readSecret(ctx, code, "code")
		if err != nil {
			return nil, err
		}
		values = append(values, method+":"+code)
	}
	return values, nil
}

// secondFactor completes a login that waits for codes, by asking for them.
func (c *call) secondFactor(ctx context.Context, a *answer) (*answer, error) {
	need := a.secret.Auth.MFARequirement
	if !isTerminal(c.in) {
		if c.format() != formatTable && c.String("field") == "" && !c.Bool("no-print") {
			if err := c.printAnswer(a); err != nil {
				return nil, err
			}
		}
		return nil, serverErrorf("the login needs a second factor and stdin is no terminal to ask for it on: give it with %s", factorFlags(need))
	}
	for attempt := 1; ; attempt++ {
		codes, err := c.askCodes(ctx, need)
		if err != nil {
			return nil, err
		}
		done, err := c.put(ctx, "sys/mfa/validate", map[string]any{"mfa_request_id": need.MFARequestID, "mfa_payload": codes})
		if statusOf(err) != http.StatusForbidden || attempt == maxCodeAttempts {
			return done, withHint(err, "A code works once, and a login waits for it for a few minutes. Log in again with the next one.")
		}
		c.warnf("The server did not accept that: %s.", refusal(err))
	}
}

// refusal is what the server said of a request it refused.
func refusal(err error) string {
	text, _, _ := strings.Cut(err.(*requestError).explain(), "\n")
	return text
}

// factorFlags is how the codes a login needs are given as flags, one method of each constraint.
func factorFlags(need *api.MFARequirement) string {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		var ways []string
		for _, m := range need.MFAConstraints[name].Any {
			ways = append(ways, "-mfa="+methodName(m)+":CODE")
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

func methodName(m *api.MFAMethodID) string {
	if m.Name != "" {
		return m.Name
	}
	return m.ID
}

// askCodes asks for a code of one method of each constraint. A code counts wherever its method does.
func (c *call) askCodes(ctx context.Context, need *api.MFARequirement) (map[string][]string, error) {
	codes := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		methods := need.MFAConstraints[name].Any
		if slices.ContainsFunc(methods, func(m *api.MFAMethodID) bool { return codes[m.ID] != nil }) {
			continue
		}
		m, err := c.chooseMethod(ctx, name, methods)
		if err != nil {
			return nil, err
		}
		code := "" // a method without codes is only named
		if m.UsesPasscode {
			if code, err = c.ask(ctx, "code of "+printable(methodName(m))); err != nil {
				return nil, err
			}
		}
		codes[m.ID] = []string{code}
	}
	return codes, nil
}

// chooseMethod returns the method that the user wants to satisfy a constraint with.
func (c *call) chooseMethod(ctx context.Context, constraint string, methods []*api.MFAMethodID) (*api.MFAMethodID, error) {
	if len(methods) == 0 {
		return nil, serverErrorf("%q, which this login needs, cannot be satisfied: its methods are gone", constraint)
	}
	if len(methods) == 1 {
		return methods[0], nil
	}
	var names []string
	for _, m := range methods {
		names = append(names, printable(methodName(m)))
	}
	for {
		c.warnf("%s takes a code of one of: %s", printable(constraint), strings.Join(names, ", "))
		typed, err := c.ask(ctx, "method")
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(methods, func(m *api.MFAMethodID) bool { return typed == m.Name || typed == m.ID }); i >= 0 {
			return methods[i], nil
		}
	}
}

// factorRows is a login that waits for codes, as a table.
func factorRows(need *api.MFARequirement) []row {
	rows := []row{{"mfa_request_id", need.MFARequestID}}
	for _, name := range slices.Sorted(maps.Keys(need.MFAConstraints)) {
		for _, m := range need.MFAConstraints[name].Any {
			prefix := fmt.Sprintf("mfa_constraint_%s_%s_", name, m.Type)
			rows = append(rows, row{prefix + "id", m.ID})
			if m.Name != "" {
				rows = append(rows, row{prefix + "name", m.Name})
			}
			rows = append(rows, row{prefix + "uses_passcode", m.UsesPasscode})
		}
	}
	return rows
}
