package process

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

func TestLoggers(t *testing.T) {
	var out bytes.Buffer
	l := NewLoggers(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: LevelTrace}), slog.LevelInfo)
	raft, api := l.Named("raft").With("node", "n1").WithGroup("g"), l.Named("api")
	r := systemtest.Router(l.Routes)
	logged := func() string {
		out.Reset()
		raft.Debug("deep")
		api.Debug("deep")
		var names []string
		for _, name := range []string{"raft", "api"} {
			if strings.Contains(out.String(), "logger="+name) {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	for _, step := range []struct {
		op         engines.Operation
		path, body string
		want       string
	}{
		{engines.Read, "loggers", "", ""},
		{engines.Update, "loggers/raft", `{"level":"debug"}`, "raft"},
		{engines.Update, "loggers", `{"level":"trace"}`, "raft api"},
		{engines.Delete, "loggers/api", "", "raft"},
		{engines.Delete, "loggers", "", ""},
	} {
		systemtest.Must(t, r, step.op, step.path, step.body)
		if got := logged(); got != step.want {
			t.Errorf("after %s %s %s: debug records of %q, want %q", step.op, step.path, step.body, got, step.want)
		}
	}
	systemtest.Must(t, r, engines.Update, "loggers/api", `{"level":"err"}`)
	data := systemtest.Must(t, r, engines.Read, "loggers", "")
	if data["api"] != "error" || data["raft"] != "info" {
		t.Errorf("levels = %v", data)
	}
	if data := systemtest.Must(t, r, engines.Read, "loggers/api", ""); data["api"] != "error" || len(data) != 1 {
		t.Errorf("one level = %v", data)
	}
	if l.Configure(slog.LevelInfo); levelName(l.levels["api"].Level()) != "error" {
		t.Error("the same configuration sets a level back")
	}
	l.Configure(slog.LevelDebug)
	systemtest.Must(t, r, engines.Update, "loggers", `{"level":"err"}`)
	systemtest.Must(t, r, engines.Delete, "loggers/api", "")
	if data := systemtest.Must(t, r, engines.Read, "loggers", ""); data["api"] != "debug" || data["raft"] != "error" {
		t.Errorf("levels with another configuration = %v", data)
	}
	systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "loggers", `{"level":"loud"}`)
	systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "loggers", `{}`)
	systemtest.Refused(t, r, engines.KindNotFound, engines.Update, "loggers/nope", `{"level":"info"}`)
}
