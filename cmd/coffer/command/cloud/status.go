package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func statusCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "status", Usage: "show the age of the root key, static roles, and what is still to be removed",
		Help: `Shows how the provider is reached, how old the root key is and when it is replaced next; the static roles with their rotations; and how
much waits to be removed at the provider because it belongs to nothing. What the token may not read is left out.

Examples:

  $ coffer cloud status
  $ coffer cloud status -mount=aws -format=json`,
		Flags: []cli.Flag{mountFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		if c.Bool("output-curl-string") {
			return command.Usagef("-output-curl-string is not for %s: it sends several requests", c.FullName())
		}
		s, err := fetchStatus(ctx, c)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintValue(s)
		}
		return printStatus(c, s)
	})
}

// mountStatus is what -format=json prints. Nil is what the token may not read.
type mountStatus struct {
	Configured  bool         `json:"configured"`
	Root        *rootStatus  `json:"root"`
	StaticRoles []staticRole `json:"static_roles"`
	Rollbacks   *int         `json:"rollbacks"`

	hidden []string // paths
	denied error    // of the last of them
	seen   bool     // something was read
}

type rootStatus struct {
	AccessKey        string `json:"access_key"`
	Region           string `json:"region"`
	KeyCreatedAt     string `json:"key_created_at"`
	NextRotation     string `json:"next_rotation"`
	RotationPeriod   int64  `json:"rotation_period"`
	RotationSchedule string `json:"rotation_schedule"`
	Disabled         bool   `json:"disable_automated_rotation"`
	Failures         int    `json:"rotation_failures"`
	LastError        string `json:"rotation_last_error"`
}

type staticRole struct {
	Name         string `json:"name"`
	Username     string `json:"username"`
	Period       int64  `json:"rotation_period"`
	LastRotation string `json:"last_rotation"`
	NextRotation string `json:"next_rotation"`
	Failures     int    `json:"rotation_failures"`
	LastError    string `json:"last_error"`
}

func fetchStatus(ctx context.Context, c *command.Call) (*mountStatus, error) {
	s := &mountStatus{}
	var conf struct{ Data *rootStatus }
	found, err := fetch(ctx, c, s, http.MethodGet, "config/root", &conf)
	if err != nil {
		return nil, err
	}
	s.Configured, s.Root = found || len(s.hidden) > 0, conf.Data
	var names struct{ Data struct{ Keys []string } }
	if _, err := fetch(ctx, c, s, "LIST", "static-roles", &names); err != nil {
		return nil, err
	}
	for _, name := range names.Data.Keys {
		var role struct{ Data staticRole }
		found, err := fetch(ctx, c, s, http.MethodGet, "static-roles/"+name, &role)
		if err != nil {
			return nil, err
		}
		if found {
			role.Data.Name = name
			s.StaticRoles = append(s.StaticRoles, role.Data)
		}
	}
	var undone struct{ Data struct{ Keys []string } }
	hidden := len(s.hidden)
	if _, err := fetch(ctx, c, s, "LIST", "rollbacks", &undone); err != nil {
		return nil, err
	}
	if len(s.hidden) == hidden {
		n := len(undone.Data.Keys)
		s.Rollbacks = &n
	}
	if s.denied != nil && !s.seen && s.Rollbacks == nil {
		return nil, s.denied // it is the token, or there is no such mount
	}
	return s, nil
}

// fetch reads a path of the engine into v and reports whether there is anything. What the token may not read is noted.
func fetch(ctx context.Context, c *command.Call, s *mountStatus, method, what string, v any) (bool, error) {
	a, err := c.Send(ctx, command.Request{Method: method, Path: apiPath(c, what)})
	switch {
	case command.NothingThere(err):
		return false, nil
	case command.StatusOf(err) == http.StatusForbidden:
		s.hidden, s.denied = append(s.hidden, apiPath(c, what)), err
		return false, nil
	case err != nil:
		return false, err
	}
	s.seen = true
	if err := json.Unmarshal(a.Raw, v); err != nil {
		return false, command.ServerErrorf("the answer of %s is not that of an engine of cloud credentials", apiPath(c, what))
	}
	return true, nil
}

func printStatus(c *command.Call, s *mountStatus) error {
	rows := append([][]string{{"Key", "Value"}, {"---", "-----"}}, s.rootRows()...)
	if s.Rollbacks != nil {
		rows = append(rows, []string{"To Be Removed", strconv.Itoa(*s.Rollbacks)})
	}
	if err := command.StyleOf(c.Out).Write(c.Out, rows); err != nil {
		return err
	}
	for _, path := range s.hidden {
		c.Warnf("Left out: the token may not read %s.", table.Printable(path))
	}
	if s.StaticRoles == nil {
		return nil
	}
	fmt.Fprintln(c.Out)
	var roles [][]string
	for _, r := range s.StaticRoles {
		roles = append(roles, []string{
			table.Text(r.Name), table.Text(r.Username), table.Duration(r.Period), table.Text(cmp.Or(r.LastRotation, "-")), table.Text(cmp.Or(r.NextRotation, "-")),
			strconv.Itoa(r.Failures), table.Text(cmp.Or(r.LastError, "-")),
		})
	}
	return c.PrintColumns([]string{"Static Role", "User", "Period", "Last Rotation", "Next Rotation", "Failures", "Last Error"}, roles)
}

// rootRows say how the provider is reached, and how old the key is.
func (s *mountStatus) rootRows() [][]string {
	r := s.Root
	switch {
	case !s.Configured:
		return [][]string{{"Root Key", "config/root is not written: the server's own credentials are used"}}
	case r == nil:
		return nil
	case r.AccessKey == "":
		return [][]string{{"Root Key", "none: the server's own credentials are used"}}
	}
	rows := [][]string{{"Root Key", table.Text(r.AccessKey)}, {"Created", r.created(time.Now())}, {"Next Rotation", r.next()}}
	if r.Failures > 0 {
		rows = append(rows, []string{"Failures", strconv.Itoa(r.Failures)}, []string{"Last Error", table.Text(r.LastError)})
	}
	return rows
}

// created is when the key was made, and how long ago that is.
func (r *rootStatus) created(now time.Time) string {
	at, err := time.Parse(time.RFC3339, r.KeyCreatedAt)
	if err != nil {
		return "not known: the key was not made by a rotation"
	}
	age := now.Sub(at)
	ago := fmt.Sprintf("%d days ago", int(age.Hours()/24))
	if age < 48*time.Hour {
		ago = age.Truncate(time.Minute).String() + " ago"
	}
	return table.Text(r.KeyCreatedAt) + ", " + ago
}

// next is when the key is replaced, and why then.
func (r *rootStatus) next() string {
	switch {
	case r.Disabled:
		return "never: disable_automated_rotation is set"
	case r.NextRotation == "":
		return "never: neither rotation_period nor rotation_schedule is set"
	case r.RotationSchedule != "":
		return table.Text(r.NextRotation) + ", by " + table.Text(r.RotationSchedule)
	}
	return table.Text(r.NextRotation) + ", every " + table.Duration(r.RotationPeriod)
}
