package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

func TestHostInfo(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/cpuinfo":              "processor\t: 0\nvendor_id\t: Acme\nmodel name\t: Fast One\ncpu MHz\t\t: 2400.5\n\nprocessor\t: 1\nmodel name\t: Fast One\n",
		"proc/stat":                 "cpu  10 0 0 0\ncpu0 200 0 100 4000 0 0 0 0 0 0\nintr 5\n",
		"proc/meminfo":              "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\n",
		"proc/uptime":               "3600.12 1000.0\n",
		"proc/sys/kernel/osrelease": "6.1.0-test\n",
		"etc/os-release":            "ID=debian\nVERSION_ID=\"13\"\n",
		"proc/1/stat":               "",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := systemtest.Must(t, systemtest.Router(Host{DataDir: root, Root: root}.Routes), engines.Read, "host-info", "")
	cpus := data["cpu"].([]any)
	if len(cpus) != 2 || cpus[0].(map[string]any)["modelName"] != "Fast One" || cpus[0].(map[string]any)["mhz"] != 2400.5 {
		t.Errorf("cpu = %v", cpus)
	}
	if times := data["cpu_times"].([]any); len(times) != 1 || times[0].(map[string]any)["idle"] != 40.0 {
		t.Errorf("cpu_times = %v", times)
	}
	memory := data["memory"].(map[string]any)
	if memory["total"] != 1024000.0 || memory["used"] != 768000.0 || memory["usedPercent"] != 75.0 {
		t.Errorf("memory = %v", memory)
	}
	host := data["host"].(map[string]any)
	if host["uptime"] != 3600.0 || host["platform"] != "debian" || host["kernelVersion"] != "6.1.0-test" || host["procs"] != 1.0 || host["hostname"] == "" {
		t.Errorf("host = %v", host)
	}
	disks := data["disk"].([]any)
	if len(disks) != 2 || disks[1].(map[string]any)["path"] != root || disks[1].(map[string]any)["total"].(float64) <= 0 {
		t.Errorf("disk = %v", disks)
	}

	// Without /proc the rest is still told, with a warning.
	_, resp, err := systemtest.Ask(t, systemtest.Router(Host{Root: t.TempDir()}.Routes), engines.Read, "host-info", "")
	if err != nil || len(resp.Warnings) != 3 {
		t.Errorf("without /proc: %v, %v; want three warnings", resp, err)
	}
}
