package saml

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/engines/saml/assertion"
)

func explainCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "explain", Args: "ROLE [subject=NAME] [ATTRIBUTE=VALUE …]", Min: 1, Max: -1, Usage: "show which conditions of a role a user meets",
		Help: `Shows which conditions of a role a user meets and which not, and what is probably wrong. Without anything else, it is about the last
login with the role that was refused. Otherwise about the user given: by subject and attributes, an attribute with several values more
than once, or by a response that the identity provider sent, as XML or as it was posted. Its signature is not checked.

Ends with status 2 if the role does not let the user in.

Examples:

  $ coffer saml explain dev
  $ coffer saml explain dev subject=ada@example.com groups=dev groups=staff
  $ coffer saml explain -assertion=response.xml dev`,
		Flags: []cli.Flag{
			pathFlag(),
			&cli.StringFlag{Name: "assertion", Usage: "`FILE` with a response of the identity provider; - is stdin"},
			command.FieldFlag(),
		},
	}, explain)
}

// explanation is what the server answers.
type explanation struct {
	Admitted   bool                `json:"admitted"`
	Subject    string              `json:"subject"`
	Attributes map[string][]string `json:"attributes"`
	Groups     []string            `json:"groups"`
	Policies   []string            `json:"policies"`
	Checks     []check             `json:"checks"`
	Refused    *refusal            `json:"refused"`
}

type check struct {
	Bound    string   `json:"bound"`
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Expected []string `json:"expected"`
	Given    []string `json:"given"`
	Passed   bool     `json:"passed"`
	Hint     string   `json:"hint"`
}

type refusal struct {
	At      string `json:"at"`
	Reason  string `json:"reason"`
	Detail  string `json:"detail"`
	Address string `json:"address"`
}

func explain(ctx context.Context, c *command.Call) error {
	body, err := explainBody(ctx, c)
	if err != nil {
		return err
	}
	role := c.Path(0)
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: apiPath(c, "role/"+role+"/explain"), Body: body})
	if err != nil {
		return err
	}
	var out struct{ Data explanation }
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return command.ServerErrorf("the answer does not explain a role: %v", err)
	}
	if c.Format() != command.FormatTable || c.String("field") != "" {
		err = c.PrintResponse(a)
	} else {
		c.PrintWarnings(a)
		err = printExplanation(c, role, &out.Data)
	}
	if err == nil && !out.Data.Admitted {
		return &command.ExitError{Code: command.ExitServer}
	}
	return err
}

// explainBody is the user in question, an empty one for the last login that was rejected.
func explainBody(ctx context.Context, c *command.Call) (map[string]any, error) {
	attributes, subject := map[string][]string{}, ""
	var contexts []string
	for _, arg := range c.Args().Tail() {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return nil, command.Usagef("%q is neither subject=NAME nor ATTRIBUTE=VALUE", arg)
		case name == "subject" && subject != "":
			return nil, command.Usagef("subject is given more than once")
		case name == "subject":
			subject = value
		default:
			attributes[name] = append(attributes[name], value)
		}
	}
	if c.IsSet("assertion") {
		if c.Args().Len() > 1 {
			return nil, command.Usagef("-assertion says who the user is: give no subject and attributes with it")
		}
		text, err := readInput(ctx, c, "assertion")
		if err != nil {
			return nil, err
		}
		a, err := readResponse(text)
		if err != nil {
			return nil, command.Usagef("-assertion: %w", err)
		}
		subject, attributes, contexts = a.Subject, a.Attributes, a.Contexts
	}
	body := map[string]any{}
	if subject != "" {
		body["subject"] = subject
	}
	if len(attributes) > 0 {
		body["attributes"] = attributes
	}
	if len(contexts) > 0 {
		body["authn_context_class_refs"] = contexts
	}
	return body, nil
}

// readResponse reads a response as XML, as the base64 that browsers post, or as the form around that.
func readResponse(text string) (*assertion.Assertion, error) {
	text = strings.TrimSpace(strings.TrimPrefix(text, "\ufeff"))
	if strings.HasPrefix(text, "<") {
		return assertion.ReadUnverified([]byte(text))
	}
	if _, after, ok := strings.Cut(text, "SAMLResponse="); ok {
		text, _, _ = strings.Cut(after, "&")
	}
	if strings.Contains(text, "%") {
		plain, err := url.QueryUnescape(text)
		if err != nil {
			return nil, fmt.Errorf("reading the form: %w", err)
		}
		text = plain
	}
	document, err := assertion.Decode(text)
	if err != nil {
		return nil, err
	}
	return assertion.ReadUnverified(document)
}

// printExplanation shows people what came out: the response first, then each condition, then what to do.
func printExplanation(c *command.Call, role string, e *explanation) error {
	style := command.StyleOf(c.Out)
	style.Colours = false // the marks have colours of their own
	var out bytes.Buffer
	if r := e.Refused; r != nil {
		fmt.Fprintf(&out, "Refused at %s, from %s: %s (%s).\n", table.Printable(r.At), table.Printable(r.Address), table.Printable(r.Detail), table.Printable(r.Reason))
	}
	who := "a user without a subject"
	if e.Subject != "" {
		who = table.Printable(e.Subject)
	}
	switch {
	case e.Refused != nil && e.Subject == "" && len(e.Attributes) == 0:
		fmt.Fprintln(&out, "The identity provider's response was rejected, so the user is not known. The role was not asked.")
		_, err := out.WriteTo(c.Out)
		return err
	case e.Admitted && e.Refused != nil:
		fmt.Fprintf(&out, "✓ The role %s lets %s in, as it is now.\n", role, who)
	case e.Admitted:
		fmt.Fprintf(&out, "✓ The role %s lets %s in.\n", role, who)
	default:
		fmt.Fprintf(&out, "✗ The role %s does not let %s in.\n", role, who)
	}
	if err := writeChecks(&out, style, e.Checks); err != nil {
		return err
	}
	rows := [][]string{}
	for _, name := range slices.Sorted(maps.Keys(e.Attributes)) {
		rows = append(rows, []string{"Attribute " + table.Printable(name), quoted(e.Attributes[name])})
	}
	rows = append(rows, []string{"Groups", quoted(e.Groups)})
	if e.Admitted {
		rows = append(rows, []string{"Policies", quoted(e.Policies)})
	}
	fmt.Fprintln(&out)
	if err := style.Write(&out, rows); err != nil {
		return err
	}
	text := out.String()
	if command.Coloured(c.Out) {
		text = colourMarks(text)
	}
	_, err := fmt.Fprint(c.Out, text)
	return err
}

// writeChecks writes a table of conditions, and below it what is probably wrong.
func writeChecks(out *bytes.Buffer, style table.Style, checks []check) error {
	if len(checks) == 0 {
		return nil
	}
	rows := [][]string{{" ", "Condition", "Type", "Expected", "Given"}, {" ", "---------", "----", "--------", "-----"}}
	var hints []string
	for _, check := range checks {
		mark, name := "✗", check.Bound
		if check.Passed {
			mark = "✓"
		}
		if check.Name != "" {
			name += " " + check.Name
		}
		rows = append(rows, []string{mark, table.Printable(name), table.Printable(check.Type), someQuoted(check.Expected), someQuoted(check.Given)})
		if check.Hint != "" {
			hints = append(hints, table.Printable(name)+": "+table.Printable(check.Hint)+".")
		}
	}
	fmt.Fprintln(out)
	if err := style.Write(out, rows); err != nil {
		return err
	}
	if len(hints) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(hints, "\n"))
	}
	return nil
}

// quoted lists values so that blanks at their ends are seen.
func quoted(values []string) string {
	if len(values) == 0 {
		return "none"
	}
	shown := make([]string, len(values))
	for i, v := range values {
		shown[i] = fmt.Sprintf("%q", v)
	}
	return strings.Join(shown, ", ")
}

// tableValues is how many values a table shows of each.
const tableValues = 4

func someQuoted(values []string) string {
	if more := len(values) - tableValues; more > 1 {
		return fmt.Sprintf("%s and %d more", quoted(values[:tableValues]), more)
	}
	return quoted(values)
}

// colourMarks makes the marks at the beginning of lines green and red.
func colourMarks(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "✓"); ok {
			line = "\x1b[32m✓\x1b[0m" + rest
		} else if rest, ok := strings.CutPrefix(line, "✗"); ok {
			line = "\x1b[31m✗\x1b[0m" + rest
		}
		out.WriteString(line)
	}
	return out.String()
}
