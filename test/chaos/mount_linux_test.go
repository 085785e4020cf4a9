package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// mount puts a small file system of its own at dir, until the test ends.
func mount(t *testing.T, dir, size string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("NOT TESTED: a full disk. Mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
}

func remount(t *testing.T, dir, size string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size="+size); err != nil {
		t.Fatal(err)
	}
}

// mountFreezable mounts a file system of its own, whose writes hang from freeze to thaw.
func mountFreezable(t *testing.T, dir string) (freeze, thaw func()) {
	t.Helper()
	const fiFreeze, fiThaw = 0xC0045877, 0xC0045878 // ioctls of linux/fs.h
	image := filepath.Join(t.TempDir(), "image")
	for _, command := range [][]string{
		{"truncate", "-s", "256M", image}, {"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: a stalled disk. %s needs root and loop devices: %v %s", command[0], err, out)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	control := func(request uintptr) error {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, d.Fd(), request, 0); errno != 0 {
			return errno
		}
		return nil
	}
	t.Cleanup(func() {
		_ = control(fiThaw)
		_ = d.Close()
		if err := syscall.Unmount(dir, 0); err != nil {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
	return func() {
			if err := control(fiFreeze); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = control(fiThaw) }) // before the processes are ended, which would wait for it
		}, func() {
			if err := control(fiThaw); err != nil {
				t.Fatal(err)
			}
		}
}
