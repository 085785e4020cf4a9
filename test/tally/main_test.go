package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	const in = `{"Action":"output","Package":"p","Test":"A","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"B","Output":"why it failed\n"}
{"Action":"fail","Package":"p","Test":"B"}
{"Action":"skip","Package":"p","Test":"C"}
{"Action":"fail","Package":"p","Elapsed":1.5}
{"ImportPath":"q [q.test]","Action":"build-output","Output":"q.go:1: does not compile\n"}
{"Action":"fail","Package":"q","FailedBuild":"q [q.test]"}
not JSON
`
	var out, failures strings.Builder
	c, err := tally(strings.NewReader(in), &out, &failures)
	if err != nil {
		t.Fatal(err)
	}
	if want := (counts{1, 3, 1}); c != want {
		t.Errorf("counts %v, want %v", c, want)
	}
	for _, want := range []string{"why it failed", "FAIL  p  1.5s", "does not compile", "not JSON"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "quiet") {
		t.Errorf("a test that passed is not quiet")
	}
	if want := "FAIL  p B\nwhy it failed\nFAIL  p\nFAIL  q\nq.go:1: does not compile\n"; failures.String() != want {
		t.Errorf("the failures are\n%s, want\n%s", failures.String(), want)
	}
}

func TestEnd(t *testing.T) {
	var many, last strings.Builder
	for i := range 20 {
		fmt.Fprintf(&many, "line %d\n", i)
		if i >= 5 {
			fmt.Fprintf(&last, "line %d\n", i)
		}
	}
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"15 lines", many.String(), last.String()},
		{"without what go test says of its progress", "=== RUN   T\nwhy\n=== NAME  T\n", "why\n"},
		{"without the logs of servers", "why\n    harness.go:1: the end of n1's log:\n" + many.String(), "why\n"},
		{"2,000 bytes", "first\n" + strings.Repeat("é", 1001), strings.Repeat("é", 999) + "\n"},
		{"a whole line at the end", "died", "died\n"},
	} {
		if got := end(test.text); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestSlowest(t *testing.T) {
	var in strings.Builder
	for i := range 12 { // the later, the slower
		fmt.Fprintf(&in, `{"Action":"pass","Package":"p%02d","Test":"T","Elapsed":%d}`+"\n", i, i)
		fmt.Fprintf(&in, `{"Action":"pass","Package":"p%02d","Test":"T/sub","Elapsed":99}`+"\n", i)
		fmt.Fprintf(&in, `{"Action":"pass","Package":"p%02d","Elapsed":%d}`+"\n", i, i)
	}
	var out strings.Builder
	if _, err := tally(strings.NewReader(in.String()), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(out.String(), "slowest packages:\n")
	packages, tests, ok := strings.Cut(text, "slowest tests:\n")
	if !ok {
		t.Fatalf("the slowest are not listed:\n%s", out.String())
	}
	var wantPackages, wantTests strings.Builder
	for i := 11; i > 1; i-- {
		fmt.Fprintf(&wantPackages, "%7.1fs  p%02d\n", float64(i), i)
		fmt.Fprintf(&wantTests, "%7.1fs  p%02d T\n", float64(i), i)
	}
	if packages != wantPackages.String() || tests != wantTests.String() {
		t.Errorf("the slowest are\n%s%s, want\n%s%s", packages, tests, wantPackages.String(), wantTests.String())
	}
}

func TestSum(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tally")
	for _, c := range []counts{{1, 2, 3}, {10, 0, 1}} {
		if err := record(file, fmt.Sprintln(c[0], c[1], c[2])); err != nil {
			t.Fatal(err)
		}
	}
	got, err := sum(file)
	if want := (counts{11, 2, 4}); err != nil || got != want {
		t.Errorf("sum = %v, %v, want %v", got, err, want)
	}
}
