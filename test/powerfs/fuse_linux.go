package powerfs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Mount serves the disk at dir, which must exist, until the returned function is called. Nothing else changes the files, so the
// kernel may keep in its cache what it knows: that also makes shared memory maps of files consistent with what is written.
// The process that calls Mount must not use the files itself.
func (d *Disk) Mount(dir string) (unmount func() error, err error) {
	server, err := fuse.NewServer(&filesystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), disk: d}, dir, &fuse.MountOptions{
		DirectMountStrict: true, FsName: "powerfs", Name: "powerfs", MaxWrite: 1 << 20,
		DisableXAttrs: true, DisableReadDirPlus: true, ExplicitDataCacheControl: true,
	})
	if err != nil {
		return nil, fmt.Errorf("mounting powerfs at %s: %w", dir, err)
	}
	go server.Serve()
	unmount = func() error {
		if err := server.Unmount(); err != nil {
			return syscall.Unmount(dir, syscall.MNT_DETACH)
		}
		return nil
	}
	if err := server.WaitMount(); err != nil {
		return nil, fmt.Errorf("mounting powerfs at %s: %w", dir, err)
	}
	return unmount, nil
}

const forever = 24 * time.Hour // the kernel's view is the only one

// filesystem serves a disk.
type filesystem struct {
	fuse.RawFileSystem

	disk *Disk
}

// lock locks the disk and returns a node, nil if there is none.
func (f *filesystem) lock(id uint64) (*node, func()) {
	f.disk.power.mu.Lock()
	return f.disk.nodes[id], f.disk.power.mu.Unlock
}

func (f *filesystem) attrLocked(id uint64, out *fuse.Attr) {
	n := f.disk.nodes[id]
	kind := uint32(syscall.S_IFREG)
	if n.mode.IsDir() {
		kind = syscall.S_IFDIR
	}
	now := uint64(time.Now().Unix())
	*out = fuse.Attr{
		Ino: id, Size: uint64(n.content.size), Blocks: uint64(len(n.content.pages)) * pageBytes / 512, Blksize: pageBytes,
		Mode: kind | uint32(n.mode.Perm()), Nlink: 1, Atime: now, Mtime: now, Ctime: now,
		Owner: fuse.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())},
	}
}

func (f *filesystem) entryLocked(id uint64, out *fuse.EntryOut) {
	out.NodeId, out.Generation = id, 1
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	f.attrLocked(id, &out.Attr)
}

func (f *filesystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, unlock := f.lock(in.NodeId)
	defer unlock()
	id := dir.entries[name]
	if id == 0 {
		return fuse.ENOENT
	}
	f.entryLocked(id, out)
	return fuse.OK
}

func (f *filesystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	_, unlock := f.lock(in.NodeId)
	defer unlock()
	f.attrLocked(in.NodeId, &out.Attr)
	out.SetTimeout(forever)
	return fuse.OK
}

func (f *filesystem) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if size, ok := in.GetSize(); ok {
		f.disk.writeLocked(in.NodeId, write{off: int64(size)})
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = n.mode&fs.ModeDir | fs.FileMode(mode).Perm()
	}
	f.attrLocked(in.NodeId, &out.Attr)
	out.SetTimeout(forever)
	return fuse.OK
}

func (f *filesystem) create(parent uint64, name string, mode fs.FileMode, out *fuse.EntryOut) fuse.Status {
	dir, unlock := f.lock(parent)
	defer unlock()
	if dir.entries[name] != 0 {
		return fuse.Status(syscall.EEXIST)
	}
	f.entryLocked(f.disk.createLocked(parent, name, mode), out)
	return fuse.OK
}

func (f *filesystem) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.create(in.NodeId, name, fs.ModeDir|fs.FileMode(in.Mode).Perm(), out)
}

func (f *filesystem) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return f.create(in.NodeId, name, fs.FileMode(in.Mode).Perm(), &out.EntryOut)
}

func (f *filesystem) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return f.remove(in.NodeId, name)
}

func (f *filesystem) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return f.remove(in.NodeId, name)
}

func (f *filesystem) remove(parent uint64, name string) fuse.Status {
	dir, unlock := f.lock(parent)
	defer unlock()
	id := dir.entries[name]
	switch {
	case id == 0:
		return fuse.ENOENT
	case len(f.disk.nodes[id].entries) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	f.disk.changeLocked(change{dir: parent, name: name})
	return fuse.OK
}

func (f *filesystem) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	dir, unlock := f.lock(in.NodeId)
	defer unlock()
	id := dir.entries[from]
	there := f.disk.nodes[in.Newdir].entries[to]
	switch {
	case id == 0:
		return fuse.ENOENT
	case in.Flags != 0: // RENAME_NOREPLACE and its like
		return fuse.EINVAL
	case there != 0 && len(f.disk.nodes[there].entries) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	f.disk.changeLocked(change{dir: in.NodeId, name: from}, change{in.Newdir, to, id, f.disk.nodes[id].mode})
	return fuse.OK
}

func (f *filesystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE // the kernel truncates by SetAttr
	return fuse.OK
}

func (f *filesystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	return fuse.ReadResultData(buf[:n.content.read(buf, int64(in.Offset))]), fuse.OK
}

func (f *filesystem) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	_, unlock := f.lock(in.NodeId)
	defer unlock()
	f.disk.writeLocked(in.NodeId, write{off: int64(in.Offset), data: slices.Clone(data)})
	if in.Flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0 && !f.disk.syncLocked(in.NodeId) {
		return 0, fuse.EIO
	}
	return uint32(len(data)), fuse.OK
}

// Fallocate makes room, and the file longer unless FALLOC_FL_KEEP_SIZE says not to. Other modes are rejected.
func (f *filesystem) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	const keepSize = 1
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	end := int64(in.Offset + in.Length)
	switch {
	case in.Mode&^keepSize != 0:
		return fuse.Status(syscall.EOPNOTSUPP)
	case in.Mode == 0 && end > n.content.size:
		f.disk.writeLocked(in.NodeId, write{off: end})
	}
	return fuse.OK
}

func (f *filesystem) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	_, unlock := f.lock(in.NodeId)
	defer unlock()
	if !f.disk.syncLocked(in.NodeId) {
		return fuse.EIO
	}
	return fuse.OK
}

func (f *filesystem) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return f.Fsync(c, in) }

func (f *filesystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

func (f *filesystem) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

// ReadDir returns the entries in the order of their nodes: what is removed meanwhile moves no other one.
func (f *filesystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, unlock := f.lock(in.NodeId)
	defer unlock()
	names := map[uint64]string{}
	for name, id := range dir.entries {
		names[id] = name
	}
	for _, id := range slices.Sorted(maps.Keys(names)) {
		if id <= in.Offset {
			continue
		}
		mode := uint32(syscall.S_IFREG)
		if f.disk.nodes[id].mode.IsDir() {
			mode = syscall.S_IFDIR
		}
		if !out.AddDirEntry(fuse.DirEntry{Name: names[id], Ino: id, Mode: mode, Off: id}) {
			break
		}
	}
	return fuse.OK
}

// StatFs says that there is room.
func (f *filesystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks = 1 << 28
	*out = fuse.StatfsOut{Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: 1 << 20, Ffree: 1 << 20, Bsize: pageBytes, NameLen: 255, Frsize: pageBytes}
	return fuse.OK
}
