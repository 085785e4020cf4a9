package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup":             {nil, 0},
		"version 2":             {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "536870912\n"}, 512 << 20},
		"version 2, no limit":   {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"version 2, the parent": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1048576\n"}, 1 << 20},
		"version 2, container":  {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20},
		"version 1": {map[string]string{
			"proc/self/cgroup":                                  "9:cpu,cpuacct:/x\n4:memory:/docker/id\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":        "1048576\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":      "1\n",
			"sys/fs/cgroup/cpu,cpuacct/x/memory.limit_in_bytes": "1\n",
		}, 1 << 20},
		"version 1, no limit": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range test.files {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := cgroupMemory(root); got != test.want {
				t.Errorf("cgroupMemory = %d, want %d", got, test.want)
			}
		})
	}
}
