package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Profiles answers what Go's profiling tools ask for. Profiles tell much of what goes on inside, though no values:
// every path needs the sudo capability.
type Profiles struct {
	busy sync.Mutex // held while the CPU is profiled or traced: there can be one at a time
}

// maxProfileSeconds bounds how long a profile or trace may take.
const maxProfileSeconds = 300

// Routes declares sys/pprof.
func (p *Profiles) Routes(r *engines.Router) {
	const flags = engines.Sudo | engines.AnyNode | engines.RootNamespace
	engines.On(r, engines.Read, "pprof", "List the profiles of this node.", flags, p.index).Returns("text/plain;")
	engines.On(r, engines.Read, "pprof/cmdline", "Tell the program's name. Its arguments are left out.", flags, p.cmdline).
		Returns("text/plain;")
	engines.On(r, engines.Read, "pprof/profile", "Profile the CPU for some seconds.", flags, p.cpu).Returns("application/octet-stream;")
	engines.On(r, engines.Read, "pprof/trace", "Trace the execution for some seconds.", flags, p.trace).Returns("application/octet-stream;")
	engines.On(r, engines.Read, "pprof/symbol", "Look program counters up: give them, in hex, as the query string, joined by \"+\".", flags, p.symbol).
		Returns("text/plain;")
	engines.On(r, engines.Read, "pprof/{name}", "Read one profile: allocs, block, goroutine, heap, mutex or threadcreate.", flags, p.profile).
		Returns("application/octet-stream;")
}

func (p *Profiles) index(context.Context, *engines.Request, *none) (*engines.Response, error) {
	var b strings.Builder
	all := pprof.Profiles()
	slices.SortFunc(all, func(x, y *pprof.Profile) int { return cmp.Compare(x.Name(), y.Name()) })
	for _, one := range all {
		fmt.Fprintf(&b, "%d\t%s\n", one.Count(), one.Name())
	}
	b.WriteString("\tprofile?seconds=30\n\ttrace?seconds=1\n")
	return text(b.String()), nil
}

func text(body string) *engines.Response {
	return &engines.Response{Raw: &engines.Raw{ContentType: "text/plain; charset=utf-8", Body: []byte(body)}}
}

// cmdline leaves the arguments out: a development server may be given its root token there.
func (p *Profiles) cmdline(context.Context, *engines.Request, *none) (*engines.Response, error) {
	return text(os.Args[0]), nil
}

func stream(f func(ctx context.Context, w io.Writer) error) *engines.Response {
	return &engines.Response{Raw: &engines.Raw{
		ContentType: "application/octet-stream",
		Stream:      func(ctx context.Context, w interface{ Write([]byte) (int, error) }) error { return f(ctx, w) },
	}}
}

type profileInput struct {
	Name  string `json:"name" help:"Name of the profile."`
	Debug int    `json:"debug" help:"1 or 2 for text instead of the binary format."`
	GC    bool   `json:"gc" help:"Collect garbage first."`
}

func (p *Profiles) profile(_ context.Context, _ *engines.Request, in *profileInput) (*engines.Response, error) {
	one := pprof.Lookup(in.Name)
	if one == nil {
		return nil, engines.NotFound("no such profile: sys/pprof lists them")
	}
	if in.GC {
		runtime.GC()
	}
	r := stream(func(_ context.Context, w io.Writer) error { return one.WriteTo(w, in.Debug) })
	if in.Debug > 0 {
		r.Raw.ContentType = "text/plain; charset=utf-8"
	}
	return r, nil
}

type cpuInput struct {
	Seconds int `json:"seconds" default:"30" help:"How long to profile, 1 to 300."`
}

type traceInput struct {
	Seconds int `json:"seconds" default:"1" help:"How long to trace, 1 to 300."`
}

func (p *Profiles) cpu(_ context.Context, _ *engines.Request, in *cpuInput) (*engines.Response, error) {
	return p.during(in.Seconds, func(w io.Writer) error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile)
}

func (p *Profiles) trace(_ context.Context, _ *engines.Request, in *traceInput) (*engines.Response, error) {
	return p.during(in.Seconds, func(w io.Writer) error { return trace.Start(w) }, trace.Stop)
}

// during records for some seconds, or as long as the client stays.
func (p *Profiles) during(seconds int, start func(io.Writer) error, stop func()) (*engines.Response, error) {
	if seconds < 1 || seconds > maxProfileSeconds {
		return nil, engines.Invalid("field \"seconds\" must be between 1 and %d", maxProfileSeconds)
	}
	return stream(func(ctx context.Context, w io.Writer) error {
		if !p.busy.TryLock() {
			return errors.New("another profile or trace is being recorded")
		}
		defer p.busy.Unlock()
		if err := start(w); err != nil {
			return err
		}
		defer stop()
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}), nil
}

// symbol answers in the format of the pprof tool.
func (p *Profiles) symbol(_ context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	var b strings.Builder
	b.WriteString("num_symbols: 1\n")
	for query := range req.Query {
		for _, word := range strings.FieldsFunc(query, func(r rune) bool { return r == ' ' || r == '+' }) {
			pc, err := strconv.ParseUint(word, 0, 64)
			if err != nil {
				continue
			}
			if f := runtime.FuncForPC(uintptr(pc)); f != nil {
				fmt.Fprintf(&b, "%#x %s\n", pc, f.Name())
			}
		}
	}
	return text(b.String()), nil
}
