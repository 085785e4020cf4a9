package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

const (
	syncSlow  = 20 * time.Millisecond
	syncTests = 32
)

func diagnoseStorage(_ context.Context, d *diagnosis) {
	path := d.config.Storage.Path
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.newDirectory(path)
		return
	case err != nil:
		d.fail("directory", "%v", err)
		return
	case !info.IsDir():
		d.fail("directory", "%s is not a directory", path)
		return
	case info.Mode().Perm()&0o077 != 0:
		d.warn("directory", "%s has mode %#o: others than its owner may look in; use 0700", path, info.Mode().Perm())
	default:
		d.ok("directory", "%s, mode %#o", path, info.Mode().Perm())
	}
	d.space("space", path)
	d.ballast(path)
	d.syncs(path)
	d.data(path)
	if _, err := os.Stat(filepath.Join(path, cluster.PeersFile)); err == nil {
		d.warn("recovery", "%s is there: at the next unseal it replaces the members of the cluster", cluster.PeersFile)
	}
	if left, _ := filepath.Glob(filepath.Join(path, "corrupt-*")); len(left) > 0 {
		d.warn("quarantine", "%d directories with damaged data were moved aside: remove them when they are of no more use", len(left))
	}
}

// newDirectory checks that the directory can be made.
func (d *diagnosis) newDirectory(path string) {
	parent := filepath.Dir(filepath.Clean(path))
	for parent != filepath.Dir(parent) {
		if info, err := os.Stat(parent); err == nil && info.IsDir() {
			break
		}
		parent = filepath.Dir(parent)
	}
	f, err := os.CreateTemp(parent, ".coffer-diagnose-*")
	if err != nil {
		d.fail("directory", "%s is not there and cannot be made: %v", path, err)
		return
	}
	err = errors.Join(f.Close(), os.Remove(f.Name()))
	if err != nil {
		d.fail("directory", "%v", err)
		return
	}
	d.ok("directory", "%s is not there yet: the server will make it", path)
	d.space("space", parent)
	d.syncs(parent)
}

func (d *diagnosis) space(name, path string) {
	free, total, err := diskSpace(path)
	minimum := freespace.Reserve(d.config.Storage.FreeSpaceMinimum, total)
	switch {
	case err != nil:
		d.add(name, checkSkip, "%v", err)
	case free < minimum && path != d.config.Storage.Path:
		d.fail(name, "%s are free on the disk of %s: writes will fail soon", table.Size(free), path)
	case free < minimum:
		d.fail(name, "%s are free on the disk of %s, less than free_space_minimum (%s): writes are rejected; free space, or make the disk larger", table.Size(free), path, table.Size(minimum))
	case free < d.config.FreeSpaceWarning || free < total/100*d.config.FreeSpacePercent:
		d.warn(name, "%s of %s are free on the disk of %s", table.Size(free), table.Size(total), path)
	default:
		d.ok(name, "%s of %s are free", table.Size(free), table.Size(total))
	}
}

// ballast tells whether the file is there that keeps room for deletes.
func (d *diagnosis) ballast(path string) {
	_, total, err := diskSpace(path)
	if err != nil {
		return
	}
	want := freespace.Reserve(d.config.Storage.BallastSize, total)
	info, err := os.Lstat(filepath.Join(path, freespace.BallastFile))
	_, noData := os.Lstat(filepath.Join(path, "fsm.db"))
	switch {
	case want == 0:
		d.warn("ballast", "ballast_size is 0: on a full disk even deletes may fail")
	case errors.Is(err, fs.ErrNotExist) && noData != nil:
		d.ok("ballast", "the server will make it, %s", table.Size(want))
	case errors.Is(err, fs.ErrNotExist):
		d.warn("ballast", "it is not there: the server makes it (%s) when there is room", table.Size(want))
	case err != nil:
		d.fail("ballast", "%v", err)
	default:
		d.ok("ballast", "%s are kept for deletes on a full disk", table.Size(info.Size()))
	}
}

// syncs measures how long the disk takes to make a small write durable: each commit waits for that.
func (d *diagnosis) syncs(path string) {
	took, err := measureSyncs(path)
	if err != nil {
		d.fail("sync", "%v", err)
		return
	}
	slices.Sort(took)
	median, slowest := took[len(took)/2], took[len(took)-1]
	text := fmt.Sprintf("a synced write takes %v, the slowest of %d %v", median.Round(time.Microsecond), len(took), slowest.Round(time.Microsecond))
	if median > syncSlow {
		d.warn("sync", "%s: every write waits for it; use a faster disk", text)
		return
	}
	d.ok("sync", "%s", text)
}

func measureSyncs(path string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(path, ".coffer-diagnose-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	for range syncTests {
		begin := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

// data verifies all of state and log.
func (d *diagnosis) data(path string) {
	if _, err := os.Stat(filepath.Join(path, "fsm.db")); errors.Is(err, fs.ErrNotExist) {
		d.ok("data", "there is none yet: the node is new")
		return
	}
	machine, err := fsm.Open(path, fsm.Options{Logger: slog.New(slog.DiscardHandler), WholeBytes: math.MaxInt64})
	if err != nil {
		d.unreadable(err)
		return
	}
	err = cluster.VerifyLog(path, machine, storage.FileIdentity{})
	index, later := machine.AppliedIndex(), cluster.CheckFormats(context.Background(), machine)
	if err = errors.Join(err, machine.Close()); err != nil {
		d.unreadable(err)
		return
	}
	if later != nil {
		d.fail("data", "%v", later)
		return
	}
	d.ok("data", "state and log are whole, up to entry %d", index)
}

func (d *diagnosis) unreadable(err error) {
	var corrupt *storage.CorruptError
	switch {
	case errors.As(err, &corrupt):
		d.fail("data", "%v: the server moves it aside if retry_join names other nodes, and else does not start", err)
	case strings.Contains(err.Error(), "in use by another process"):
		d.add("data", checkSkip, "a server is running on it, and has verified it when it started")
	default:
		d.fail("data", "%v", err)
	}
}

// diagnoseFiles checks the places that the configuration names besides.
func diagnoseFiles(_ context.Context, d *diagnosis) {
	type named struct{ name, dir string }
	places := []named{
		{"log_file", parentOf(d.config.LogFile)}, {"pid_file", parentOf(d.config.PIDFile)}, {"snapshots.local_root", d.config.Snapshots.LocalRoot},
	}
	for _, root := range d.config.Audit.FileRoots {
		places = append(places, named{"audit.file_roots", root})
	}
	for _, place := range places {
		if place.dir == "" {
			continue
		}
		f, err := os.CreateTemp(place.dir, ".coffer-diagnose-*")
		if err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
		if err != nil {
			d.fail(place.name, "nothing can be written there: %v", err)
			continue
		}
		d.ok(place.name, "%s can be written to", place.dir)
		if place.name == "snapshots.local_root" || place.name == "audit.file_roots" {
			d.space(place.name, place.dir)
		}
	}
}

func parentOf(file string) string {
	if file == "" {
		return ""
	}
	return filepath.Dir(file)
}
