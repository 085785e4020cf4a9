package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Work is what the load generator is told to do.
type Work struct {
	Addr    string // host:port, plain HTTP
	Method  string
	Path    string // "%d" becomes a number
	Token   string
	Body    string
	Type    string   // of the body; "" leaves it out
	Bodies  []string // instead of Body: that of each request, which are then as many as these
	Keep    bool     // what each request was answered, and how long it took; needs Count or Bodies
	Numbers int64    // 0: each request has the next number; else numbers go round below it
	First   int64    // number of the first request
	Conns   int
	Time    time.Duration
	Count   int64 // if set, stop after this many requests instead of after Time
}

// Outcome is what it measured.
type Outcome struct {
	Requests int64
	All      int64 // with those of the warm-up
	Errors   int64 // answers that are not 2xx
	Seconds  float64
	P50, P99 time.Duration
	Max      time.Duration
	Sample   string          // the first answer that is not 2xx
	Answers  []string        // if they were to be kept: the bodies, by number
	Took     []time.Duration // likewise
}

// Rate is in requests per second.
func (o Outcome) Rate() float64 { return float64(o.Requests) / o.Seconds }

// Sorted fills in what Took says.
func (o Outcome) Sorted() Outcome {
	slices.Sort(o.Took)
	o.P50, o.P99, o.Max = o.Took[len(o.Took)/2], o.Took[len(o.Took)*99/100], o.Took[len(o.Took)-1]
	return o
}

// LoadMain reads a Work as JSON from standard input and writes an Outcome. The client is lean on purpose: on a
// small machine its costs would otherwise be most of what is measured.
func LoadMain(args []string) error {
	if err := flag.NewFlagSet("load", flag.ExitOnError).Parse(args); err != nil {
		return err
	}
	var w Work
	if err := json.NewDecoder(os.Stdin).Decode(&w); err != nil {
		return err
	}
	out, err := w.run()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func (w Work) run() (Outcome, error) {
	if len(w.Bodies) > 0 {
		w.Count = int64(len(w.Bodies))
	}
	warmUp := w.Time / 5
	if w.Count > 0 {
		warmUp = 0
	}
	var next, done atomic.Int64
	next.Store(w.First)
	var mu sync.Mutex
	var all []time.Duration
	var out Outcome
	if w.Keep {
		out.Answers, out.Took = make([]string, w.Count), make([]time.Duration, w.Count)
	}
	var failure error
	begin := time.Now()
	from, until := begin.Add(warmUp), begin.Add(warmUp+w.Time)
	var wg sync.WaitGroup
	for range w.Conns {
		wg.Go(func() {
			took, errs, sample, err := w.connection(&next, &done, from, until, &out)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			out.Errors += errs
			if out.Sample == "" {
				out.Sample = sample
			}
			if err != nil {
				failure = err
			}
		})
	}
	wg.Wait()
	if failure != nil {
		return out, failure
	}
	if len(all) == 0 {
		return out, fmt.Errorf("no request finished")
	}
	out.Requests, out.All, out.Seconds = int64(len(all)), done.Load(), w.Time.Seconds()
	if w.Count > 0 {
		out.Seconds = time.Since(begin).Seconds()
	}
	slices.Sort(all)
	out.P50, out.P99, out.Max = all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
	return out, nil
}

// connection is one keep-alive connection in a closed loop. Requests that end between from and until count. It fills in
// only what is to be kept.
func (w Work) connection(next, done *atomic.Int64, from, until time.Time, kept *Outcome) (took []time.Duration, errs int64, sample string, err error) {
	conn, err := net.Dial("tcp", w.Addr)
	if err != nil {
		return nil, 0, "", err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 16<<10)
	before, after, numbered := strings.Cut(w.Path, "%d")
	tail := " HTTP/1.1\r\nHost: " + w.Addr + "\r\nX-Vault-Token: " + w.Token + "\r\n"
	if w.Type != "" {
		tail += "Content-Type: " + w.Type + "\r\n"
	}
	send := w.Body
	var out, body []byte
	for {
		n := next.Add(1) - 1
		if w.Count > 0 && n >= w.First+w.Count {
			return took, errs, sample, nil
		}
		if w.Numbers > 0 {
			n %= w.Numbers
		}
		out = append(out[:0], w.Method+" "+before...)
		if numbered {
			out = append(strconv.AppendInt(out, n, 10), after...)
		}
		out = append(out, tail...)
		if len(w.Bodies) > 0 {
			send = w.Bodies[n-w.First]
		}
		if send != "" {
			out = append(strconv.AppendInt(append(out, "Content-Length: "...), int64(len(send)), 10), "\r\n"...)
		}
		out = append(append(out, "\r\n"...), send...)
		began := time.Now()
		if _, err := conn.Write(out); err != nil {
			return took, errs, sample, err
		}
		var status int
		status, body, err = readAnswer(in, body[:0])
		if err != nil {
			return took, errs, sample, fmt.Errorf("reading an answer: %w", err)
		}
		ended := time.Now()
		if w.Keep {
			kept.Answers[n-w.First], kept.Took[n-w.First] = string(body), ended.Sub(began)
		}
		if w.Count == 0 && ended.After(until) {
			return took, errs, sample, nil
		}
		if w.Count > 0 || ended.After(from) {
			took = append(took, ended.Sub(began))
			if status/100 != 2 {
				if errs++; sample == "" {
					sample = fmt.Sprintf("%d %.200s", status, body)
				}
			}
		}
		done.Add(1)
	}
}

// readAnswer reads one HTTP/1.1 answer and appends its body to body.
func readAnswer(in *bufio.Reader, body []byte) (status int, _ []byte, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, body, err
	}
	if len(line) < 12 {
		return 0, body, fmt.Errorf("no status line: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, body, err
	}
	length, chunked := 0, false
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, body, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, body, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		}
	}
	if !chunked {
		body = slices.Grow(body, length)[:length]
		_, err = io.ReadFull(in, body)
		return status, body, err
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, body, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return 0, body, err
		}
		at := len(body)
		body = slices.Grow(body, int(size))[:at+int(size)]
		if _, err := io.ReadFull(in, body[at:]); err != nil {
			return 0, body, err
		}
		if _, err := in.Discard(2); err != nil {
			return 0, body, err
		}
		if size == 0 {
			return status, body, nil
		}
	}
}
