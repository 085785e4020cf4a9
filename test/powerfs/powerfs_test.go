//go:build linux

package powerfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/test/powerfs"
)

func mounted(t *testing.T, from *powerfs.Image) (*powerfs.Power, *powerfs.Disk, string) {
	t.Helper()
	power, dir := &powerfs.Power{}, t.TempDir()
	disk := powerfs.NewDisk(power, from)
	unmount, err := disk.Mount(dir)
	if err != nil {
		t.Skipf("NOT TESTED: a file system that loses power: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return power, disk, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, name, text string, sync bool, flags int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|flags, 0o600)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func syncDir(t *testing.T, name string) {
	t.Helper()
	d, err := os.Open(name)
	must(t, err)
	must(t, errors.Join(d.Sync(), d.Close()))
}

// files returns what an image has, as "name=content" in order.
func files(i *powerfs.Image) string {
	all := map[string]string{}
	i.Walk(func(name string, content func() []byte) { all[name] = string(content()) })
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name])
	}
	return strings.Join(out, " ")
}

// What each kind of sync makes durable, and nothing else.
func TestSyncs(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, dir string)
		want string // after everything unsynced was lost
		all  string // after nothing was
	}{
		{"neither synced", func(t *testing.T, dir string) { create(t, dir+"/a", "1", false, 0) }, "", "a=1"},
		{"the content only", func(t *testing.T, dir string) { create(t, dir+"/a", "1", true, 0) }, "", "a=1"},
		{"the name only", func(t *testing.T, dir string) { create(t, dir+"/a", "1", false, 0); syncDir(t, dir) }, "a=", "a=1"},
		{"both", func(t *testing.T, dir string) { create(t, dir+"/a", "1", true, 0); syncDir(t, dir) }, "a=1", "a=1"},
		{"O_SYNC", func(t *testing.T, dir string) { create(t, dir+"/a", "1", false, syscall.O_SYNC); syncDir(t, dir) }, "a=1", "a=1"},
		{"O_DSYNC", func(t *testing.T, dir string) { create(t, dir+"/a", "1", false, syscall.O_DSYNC); syncDir(t, dir) }, "a=1", "a=1"},
		{"fdatasync", func(t *testing.T, dir string) {
			create(t, dir+"/a", "1", false, 0)
			syncDir(t, dir)
			f, err := os.OpenFile(dir+"/a", os.O_WRONLY, 0)
			must(t, err)
			must(t, errors.Join(syscall.Fdatasync(int(f.Fd())), f.Close()))
		}, "a=1", "a=1"},
		{"overwritten", func(t *testing.T, dir string) {
			create(t, dir+"/a", "123", true, 0)
			syncDir(t, dir)
			create(t, dir+"/a", "4", false, 0)
		}, "a=123", "a=423"},
		{"truncated", func(t *testing.T, dir string) {
			create(t, dir+"/a", "123", true, 0)
			syncDir(t, dir)
			create(t, dir+"/a", "4", false, os.O_TRUNC)
		}, "a=123", "a=4"},
		{"appended", func(t *testing.T, dir string) {
			create(t, dir+"/a", "123", true, 0)
			syncDir(t, dir)
			create(t, dir+"/a", "4", false, os.O_APPEND)
		}, "a=123", "a=1234"},
		{"renamed", func(t *testing.T, dir string) {
			create(t, dir+"/a", "1", true, 0)
			create(t, dir+"/b", "2", true, 0)
			syncDir(t, dir)
			must(t, os.Rename(dir+"/a", dir+"/b"))
		}, "a=1 b=2", "b=1"},
		{"renamed to another directory, which is synced", func(t *testing.T, dir string) {
			create(t, dir+"/a", "1", true, 0)
			must(t, os.Mkdir(dir+"/d", 0o700))
			syncDir(t, dir)
			must(t, os.Rename(dir+"/a", dir+"/d/a"))
			syncDir(t, dir+"/d")
		}, "d/a=1", "d/a=1"},
		{"in a directory without a durable name", func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			create(t, dir+"/d/a", "1", true, 0)
			syncDir(t, dir+"/d")
		}, "", "d/a=1"},
		{"removed", func(t *testing.T, dir string) {
			create(t, dir+"/a", "1", true, 0)
			syncDir(t, dir)
			must(t, os.Remove(dir+"/a"))
		}, "a=1", ""},
		{"fallocated", func(t *testing.T, dir string) {
			create(t, dir+"/a", "1", true, 0)
			syncDir(t, dir)
			f, err := os.OpenFile(dir+"/a", os.O_RDWR, 0)
			must(t, err)
			must(t, errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, 3), f.Close()))
		}, "a=1", "a=1\x00\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			power, disk, dir := mounted(t, nil)
			tt.do(t, dir)
			for loss, want := range map[powerfs.Loss]string{powerfs.LoseAll: tt.want, powerfs.LoseNothing: tt.all} {
				image := disk.Crash(power.Now(), loss, 1, nil)
				if got := files(image); got != want {
					t.Errorf("having lost %v, the disk has %q, want %q", loss, got, want)
				}
				// A disk that begins with the image serves it.
				_, _, again := mounted(t, image)
				var found []string
				must(t, filepath.WalkDir(again, func(name string, e fs.DirEntry, err error) error {
					if err == nil && e.Type().IsRegular() {
						var b []byte
						b, err = os.ReadFile(name)
						found = append(found, fmt.Sprintf("%s=%s", strings.TrimPrefix(name, again+"/"), b))
					}
					return err
				}))
				if got := strings.Join(found, " "); got != want {
					t.Errorf("mounted again, the disk has %q, want %q", got, want)
				}
			}
			ignored := disk.Crash(power.Now(), powerfs.LoseAll, 1, func(powerfs.Sync) bool { return true })
			if got := files(ignored); got != "" {
				t.Errorf("with every sync left out the disk has %q", got)
			}
		})
	}
}

// A shared memory map shows what is written, as bbolt needs it. Another process maps the file: a fault in a map of ours would stop the Go
// scheduler, which has to serve it.
func TestMemoryMap(t *testing.T) {
	if file := os.Getenv("POWERFS_MAP"); file != "" {
		mapFile(t, file)
		return
	}
	_, _, dir := mounted(t, nil)
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemoryMap$")
	cmd.Env = append(os.Environ(), "POWERFS_MAP="+dir+"/a")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

func mapFile(t *testing.T, name string) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(4*4096))
	m, err := syscall.Mmap(int(f.Fd()), 0, 64<<20, syscall.PROT_READ, syscall.MAP_SHARED)
	must(t, err)
	defer func() { must(t, syscall.Munmap(m)) }()
	for i := range 50 {
		want := fmt.Appendf(nil, "write %d", i)
		at := int64(i%3)*5000 + 10
		_, err := f.WriteAt(want, at)
		must(t, err)
		if got := m[at : at+int64(len(want))]; !bytes.Equal(got, want) {
			t.Fatalf("the map has %q, want %q", got, want)
		}
		if i == 30 {
			must(t, f.Truncate(5000)) // shorter
			must(t, f.Truncate(32<<20))
			if got := m[10010:10018]; !bytes.Equal(got, make([]byte, 8)) {
				t.Fatalf("the map has %q of what was cut off", got)
			}
		}
	}
}

// What was synced survives every loss, what was not in parts; the same seed gives the same parts; and no sector is torn.
func TestLosses(t *testing.T) {
	power, disk, dir := mounted(t, nil)
	create(t, dir+"/a", strings.Repeat("a", 4096), true, 0)
	syncDir(t, dir)
	synced := power.Now()
	f, err := os.OpenFile(dir+"/a", os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	for i := range 8 {
		_, err := f.WriteAt(bytes.Repeat([]byte{byte('0' + i)}, 1024), int64(i)*1024)
		must(t, err)
	}
	seen := map[string]bool{}
	for seed := range uint64(100) {
		for loss := range powerfs.Losses {
			got := files(disk.Crash(power.Now(), loss, seed, nil))
			if again := files(disk.Crash(power.Now(), loss, seed, nil)); again != got {
				t.Fatalf("the same seed gives %q and %q", got, again)
			}
			seen[got] = true
			content := strings.TrimPrefix(got, "a=")
			for at := 0; at < len(content); at += 512 {
				sector := content[at:min(at+512, len(content))]
				if strings.Trim(sector, sector[:1]) != "" {
					t.Fatalf("the sector at %d is torn: %q", at, sector)
				}
				if c := sector[0]; c != 0 && c != byte('0'+at/1024) && (c != 'a' || at >= 4096) || c == 0 && at < 4096 {
					t.Fatalf("the sector at %d has %q", at, c)
				}
			}
			if got := files(disk.Crash(synced, loss, seed, nil)); got != "a="+strings.Repeat("a", 4096) {
				t.Fatalf("what was synced is lost: %q", got)
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("400 losses of power left %d different disks", len(seen))
	}
}

// Disks with one power supply lose it at the same moment.
func TestOneSupply(t *testing.T) {
	power := &powerfs.Power{}
	var dirs [2]string
	var disks [2]*powerfs.Disk
	for i := range disks {
		dirs[i], disks[i] = t.TempDir(), powerfs.NewDisk(power, nil)
		unmount, err := disks[i].Mount(dirs[i])
		if err != nil {
			t.Skipf("NOT TESTED: a file system that loses power: %v", err)
		}
		t.Cleanup(func() { _ = unmount() })
	}
	create(t, dirs[0]+"/a", "1", false, 0)
	between := power.Now()
	create(t, dirs[1]+"/b", "2", false, 0)
	create(t, dirs[0]+"/c", "3", false, 0)
	for i, want := range []string{"a=1", ""} {
		if got := files(disks[i].Crash(between, powerfs.LoseNothing, 0, nil)); got != want {
			t.Errorf("disk %d has %q, want %q", i, got, want)
		}
	}
}

// Edit changes one file of a copy.
func TestEdit(t *testing.T) {
	power, disk, dir := mounted(t, nil)
	must(t, os.Mkdir(dir+"/d", 0o700))
	create(t, dir+"/d/a", "12", false, 0)
	image := disk.Crash(power.Now(), powerfs.LoseNothing, 0, nil)
	edited := image.Edit("d/a", func(b []byte) { b[0] = 'x' })
	if got, old := files(edited), files(image); got != "d/a=x2" || old != "d/a=12" {
		t.Errorf("edited: %q, before: %q", got, old)
	}
	if got := files(image.Edit("d/b", func([]byte) {})); got != "d/a=12" {
		t.Errorf("having edited a file that is not there: %q", got)
	}
}
