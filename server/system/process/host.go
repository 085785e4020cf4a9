package process

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Host describes the machine that the node runs on, from what the kernel tells in /proc. Where there is no
// /proc the parts that would come from it are empty, and the answer says so.
type Host struct {
	DataDir string // whose file system is described, besides the root's
	Root    string // where proc/ and etc/ are, "/" if empty; for tests
}

// Routes declares sys/host-info.
func (h Host) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "host-info", "Describe the machine that this node runs on.", engines.AnyNode|engines.RootNamespace, h.read).
		Returns(hostShape)
}

// hostShape is that of the response: see engines.Route.Returns.
const hostShape = `timestamp, cpu: [{cpu: integer "Number of the processor.", cores: integer, vendorId, modelName, mhz: number, physicalId, coreId}],
	cpu_times: [{cpu, user: number "Seconds since the machine started, like the others.", nice: number, system: number, idle: number, iowait: number,
		irq: number, softirq: number, steal: number, guest: number, guestNice: number}],
	memory: {total: integer "Bytes, like the others.", available: integer, used: integer, free: integer, buffers: integer, cached: integer,
		active: integer, inactive: integer, swapTotal: integer, swapFree: integer, usedPercent: number},
	host: {hostname, os, kernelArch, kernelVersion, procs: integer "Processes.", uptime: integer "Seconds since the machine started.",
		bootTime: integer "Unix time.", platform, platformFamily, platformVersion},
	disk: [{path "The root, and the data directory.", total: integer "Bytes, like the others.", free: integer, used: integer, usedPercent: number,
		inodesTotal: integer, inodesFree: integer, inodesUsed: integer, inodesUsedPercent: number}]`

func (h Host) read(context.Context, *engines.Request, *none) (*engines.Response, error) {
	out := map[string]any{"timestamp": rfc3339(time.Now())}
	var warnings []string
	for _, part := range []struct {
		name string
		read func() (any, error)
	}{
		{"cpu", h.cpus}, {"cpu_times", h.cpuTimes}, {"memory", h.memory}, {"host", h.host}, {"disk", h.disks},
	} {
		value, err := part.read()
		if err != nil {
			warnings = append(warnings, part.name+" could not be read: "+err.Error())
			continue
		}
		out[part.name] = value
	}
	return &engines.Response{Data: out, Warnings: warnings}, nil
}

func (h Host) path(name string) string { return filepath.Join("/", h.Root, name) }

// lines calls each for every line of a file.
func (h Host) lines(name string, each func(line string)) error {
	f, err := os.Open(h.path(name))
	if err != nil {
		return errors.New("the kernel's file " + name + " is not readable")
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20) // a line of /proc/stat counts every interrupt
	for s.Scan() {
		each(s.Text())
	}
	return s.Err()
}

func (h Host) cpus() (any, error) {
	list := []map[string]any{}
	err := h.lines("proc/cpuinfo", func(line string) {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return
		}
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if name == "processor" {
			n, _ := strconv.Atoi(value)
			list = append(list, map[string]any{"cpu": n, "cores": 1})
		}
		if len(list) == 0 {
			return
		}
		cpu := list[len(list)-1]
		switch name {
		case "vendor_id":
			cpu["vendorId"] = value
		case "model name":
			cpu["modelName"] = value
		case "cpu MHz":
			cpu["mhz"], _ = strconv.ParseFloat(value, 64)
		case "physical id":
			cpu["physicalId"] = value
		case "core id":
			cpu["coreId"] = value
		}
	})
	return list, err
}

// ticksPerSecond is the unit of /proc/stat; the kernel shows it to programs as 100 on every platform.
const ticksPerSecond = 100

func (h Host) cpuTimes() (any, error) {
	list := []map[string]any{}
	names := []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guestNice"}
	err := h.lines("proc/stat", func(line string) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			return
		}
		times := map[string]any{"cpu": fields[0]}
		for i, name := range names {
			if i+1 < len(fields) {
				ticks, _ := strconv.ParseFloat(fields[i+1], 64)
				times[name] = ticks / ticksPerSecond
			}
		}
		list = append(list, times)
	})
	return list, err
}

func (h Host) memory() (any, error) {
	kib := map[string]uint64{}
	err := h.lines("proc/meminfo", func(line string) {
		name, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) > 0 {
			kib[name], _ = strconv.ParseUint(fields[0], 10, 64)
		}
	})
	total, available := kib["MemTotal"]<<10, kib["MemAvailable"]<<10
	out := map[string]any{
		"total": total, "available": available, "used": total - min(total, available),
		"free": kib["MemFree"] << 10, "buffers": kib["Buffers"] << 10, "cached": kib["Cached"] << 10,
		"active": kib["Active"] << 10, "inactive": kib["Inactive"] << 10,
		"swapTotal": kib["SwapTotal"] << 10, "swapFree": kib["SwapFree"] << 10, "usedPercent": 0.0,
	}
	if total > 0 {
		out["usedPercent"] = 100 * float64(total-min(total, available)) / float64(total)
	}
	return out, err
}

func (h Host) host() (any, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	out := map[string]any{"hostname": name, "os": runtime.GOOS, "kernelArch": runtime.GOARCH, "procs": h.processes()}
	if text, err := os.ReadFile(h.path("proc/sys/kernel/osrelease")); err == nil {
		out["kernelVersion"] = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile(h.path("proc/uptime")); err == nil {
		seconds, _, _ := strings.Cut(string(text), " ")
		up, _ := strconv.ParseFloat(seconds, 64)
		out["uptime"], out["bootTime"] = int64(up), time.Now().Unix()-int64(up)
	}
	_ = h.lines("etc/os-release", func(line string) { // there may be none
		key, value, _ := strings.Cut(line, "=")
		switch value = strings.Trim(value, `"`); key {
		case "ID":
			out["platform"] = value
		case "ID_LIKE":
			out["platformFamily"] = value
		case "VERSION_ID":
			out["platformVersion"] = value
		}
	})
	return out, nil
}

// processes counts the directories of /proc that are processes.
func (h Host) processes() int {
	names, err := filepath.Glob(h.path("proc/[0-9]*"))
	if err != nil {
		return 0
	}
	return len(names)
}

func (h Host) disks() (any, error) {
	list := []map[string]any{}
	for _, path := range []string{"/", h.DataDir} {
		if path == "" {
			continue
		}
		disk, err := fileSystem(path)
		if err != nil {
			return list, err
		}
		disk["path"] = path
		list = append(list, disk)
	}
	return list, nil
}
