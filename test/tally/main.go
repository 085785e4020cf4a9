// Command tally reads `go test -json` from standard input, shows each package's result and the output of what
// failed, and ends with a line that counts: "123 passed, 0 failed, 4 skipped". Its exit status is 1 if
// anything failed. Tests are counted with their subtests. Lines that benchmarks of durability print (medians
// and such) are shown too when they begin with "chaos: ".
//
// Before that line it lists the ten slowest packages and the ten slowest tests. A test's time includes that of its subtests, which
// are not listed themselves, and the time that a parallel test runs; packages whose result is cached count as 0 s.
//
// If TALLY_FILE is set, the counts are appended to it; "tally -sum" adds such a file up. If TALLY_FAILURES is set, the names of
// what failed are appended to that file, each with the last lines of its output.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is what test2json writes.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build output
	FailedBuild                   string // the ImportPath that a package failed for
	Elapsed                       float64
}

// counts are passed, failed and skipped.
type counts [3]int

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c[0], c[1], c[2])
}

func main() {
	var c counts
	var failures strings.Builder
	var err error
	if len(os.Args) == 3 && os.Args[1] == "-sum" {
		c, err = sum(os.Args[2])
	} else {
		c, err = tally(os.Stdin, os.Stdout, &failures)
		if file := os.Getenv("TALLY_FILE"); err == nil && file != "" {
			err = record(file, fmt.Sprintln(c[0], c[1], c[2]))
		}
		if file := os.Getenv("TALLY_FAILURES"); file != "" {
			err = errors.Join(err, record(file, failures.String()))
		}
	}
	fmt.Println(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
	}
	if err != nil || c[1] > 0 {
		os.Exit(1)
	}
}

func tally(in io.Reader, out, failures io.Writer) (counts, error) {
	var c counts
	var packages, tests []event   // that ended
	output := map[string][]byte{} // of each test, package and build
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // not from a test: the tool itself
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
			output[e.ImportPath] = append(output[e.ImportPath], e.Output...)
		case "output":
			output[key] = append(output[key], e.Output...)
			if i := strings.Index(e.Output, "chaos: "); i >= 0 {
				fmt.Fprint(out, "      "+e.Output[i:])
			}
		case "pass", "fail", "skip":
			text := string(output[key])
			c.add(e, text, out)
			if e.Action == "fail" {
				fmt.Fprintf(failures, "FAIL  %s\n%s", strings.TrimSpace(key), end(string(output[e.FailedBuild])+text))
			}
			delete(output, key)
			switch {
			case e.Test == "":
				packages = append(packages, e)
			case !strings.Contains(e.Test, "/"):
				tests = append(tests, e)
			}
		}
	}
	slowest(out, "packages", packages)
	slowest(out, "tests", tests)
	return c, lines.Err()
}

// slowest lists the ten which took longest, without those that took no time.
func slowest(out io.Writer, what string, ended []event) {
	ended = slices.DeleteFunc(ended, func(e event) bool { return e.Elapsed == 0 })
	slices.SortStableFunc(ended, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	if len(ended) == 0 {
		return
	}
	fmt.Fprintf(out, "slowest %s:\n", what)
	for _, e := range ended[:min(10, len(ended))] {
		fmt.Fprintf(out, "%7.1fs  %s\n", e.Elapsed, strings.TrimSpace(e.Package+" "+e.Test))
	}
}

// serverLog is how the harness begins the logs of servers that it adds to a test that failed.
var serverLog = regexp.MustCompile(`(?m)^.*: the end of \S+'s log:$`)

// end returns the last lines of an output that tell why something failed, without what the harness adds.
func end(text string) string {
	if i := serverLog.FindStringIndex(text); i != nil {
		text = text[:i[0]]
	}
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(text)), func(line string) bool { return strings.HasPrefix(line, "=== ") })
	if len(lines) == 0 {
		return ""
	}
	text = strings.TrimSuffix(strings.Join(lines[max(0, len(lines)-15):], ""), "\n") + "\n"
	return strings.ToValidUTF8(text[max(0, len(text)-2000):], "")
}

func (c *counts) add(e event, text string, out io.Writer) {
	if e.Test == "" {
		switch e.Action {
		case "pass":
			fmt.Fprintf(out, "ok    %s  %.1fs\n", e.Package, e.Elapsed)
		case "fail":
			fmt.Fprintf(out, "FAIL  %s  %.1fs\n%s", e.Package, e.Elapsed, text)
			c[1]++ // also when no test ran: it did not build, or died
		}
		return
	}
	switch e.Action {
	case "pass":
		c[0]++
	case "skip":
		c[2]++
		if strings.Contains(text, "NOT TESTED") {
			fmt.Fprint(out, text)
		}
	case "fail":
		c[1]++
		fmt.Fprintf(out, "FAIL  %s %s\n%s", e.Package, e.Test, text)
	}
}

func record(file, text string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func sum(file string) (counts, error) {
	var c counts
	f, err := os.Open(file)
	if err != nil {
		return c, err
	}
	defer f.Close()
	for {
		var one counts
		if _, err := fmt.Fscanln(f, &one[0], &one[1], &one[2]); err == io.EOF {
			return c, nil
		} else if err != nil {
			return c, err
		}
		for i := range c {
			c[i] += one[i]
		}
	}
}
