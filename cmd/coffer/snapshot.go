package main

import (
	"context"
	"io"
	"net/http"
	"os"

	"github.com/urfave/cli/v3"
)

func snapshotCommand() *cli.Command {
	return group("snapshot", "save, check and restore the data of the whole cluster", `Backups of all data of the cluster, taken while it serves. A snapshot is encrypted: restoring one needs the unseal keys in force when
it was saved.

Examples:

  $ coffer operator raft snapshot save backup.snap
  $ coffer operator raft snapshot inspect backup.snap`,
		command(spec{
			name: "save", args: "FILE", min: 1, max: 1, usage: "save a snapshot to a file",
			help: `Saves a snapshot to FILE, mode 0600. The file appears only once it is complete and its checksums are right.

Examples:

  $ coffer operator raft snapshot save backup.snap
  $ coffer operator raft snapshot save "backup-$(date +%F).snap"`,
		}, snapshotSave),
		command(spec{
			name: "restore", args: "FILE", min: 1, max: 1, usage: "replace all data by that of a snapshot",
			help: `Replaces all data of the cluster by that of the snapshot in FILE, whose checksums are verified before anything is sent. A snapshot of
another cluster is refused without -force.

Examples:

  $ coffer operator raft snapshot restore backup.snap
  $ coffer operator raft snapshot restore -force other-cluster.snap`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "accept a snapshot of another cluster"}},
		}, snapshotRestore),
		command(spec{
			name: "inspect", args: "FILE", min: 1, max: 1, usage: "check a snapshot's sums and show what it holds",
			help: `Reads a snapshot, compares each part with its checksum and shows what the snapshot says about itself. Needs no server and no keys.

Examples:

  $ coffer operator raft snapshot inspect backup.snap
  $ coffer operator raft snapshot inspect -format=json backup.snap`,
			local: true,
			flags: []cli.Flag{&cli.StringFlag{Name: "format", Usage: "print the answer as `table|json|yaml`"}},
		}, snapshotInspect))
}

const snapshotPath = "sys/storage/raft/snapshot"

func snapshotSave(ctx context.Context, c *call) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	client.SetClientTimeout(0) // it takes as long as there is data
	req := client.NewRequest(http.MethodGet, "/v1/"+snapshotPath)
	resp, err := client.RawRequestWithContext(ctx, req)
	if err != nil {
		return c.failed(http.MethodGet, snapshotPath, err)
	}
	defer resp.Body.Close()
	p := c.progress("Saved")
	var stream error
	err = writePrivate(c.arg(0), func(f *os.File) error {
		if _, err := io.Copy(io.MultiWriter(f, p), resp.Body); err != nil {
			stream = c.failed(http.MethodGet, snapshotPath, err)
			return stream
		}
		p.done()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := inspectSnapshot(f); err != nil {
			stream = serverErrorf("the snapshot received is damaged, nothing was saved: %w", err)
		}
		return stream
	})
	if err != nil {
		return err
	}
	c.sayf("Success! Saved %s to %s.", sizeText(p.bytes), c.arg(0))
	return nil
}

func snapshotRestore(ctx context.Context, c *call) error {
	f, err := os.Open(c.arg(0))
	if err != nil {
		return usagef("%w", err)
	}
	defer f.Close()
	if _, err := inspectSnapshot(f); err != nil {
		return usagef("%s: %w; nothing was sent", c.arg(0), err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := c.upload(ctx, f); err != nil {
		return err
	}
	c.sayf("Success! The cluster holds the data of %s now.", c.arg(0))
	return nil
}

func (c *call) upload(ctx context.Context, f *os.File) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	client.SetClientTimeout(0)
	client.SetMaxRetries(0)
	path := snapshotPath
	if c.Bool("force") {
		path += "-force"
	}
	body := &upload{File: f, progress: c.progress("Sent")}
	if info, err := f.Stat(); err == nil {
		body.size = int(info.Size())
	}
	// Not the library's RaftSnapshotRestore: sent on by a standby, it reports success without having sent the file again.
	req := client.NewRequest(http.MethodPost, "/v1/"+path)
	req.Body = body
	resp, err := client.RawRequestWithContext(ctx, req)
	body.progress.done()
	if err != nil {
		return c.failed(http.MethodPost, path, err)
	}
	return resp.Body.Close()
}

// upload is a file on its way to the server. It can be sent twice, because a standby may name another address.
type upload struct {
	*os.File
	progress *progress
	size     int
}

// Len is how many bytes there are in all; the client sends it as Content-Length.
func (u *upload) Len() int { return u.size }

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.File.Read(b)
	_, _ = u.progress.Write(b[:n])
	return n, err
}

func (u *upload) Seek(offset int64, whence int) (int64, error) {
	u.progress.bytes, u.progress.shown = 0, 0
	return u.File.Seek(offset, whence)
}

// WriteTo hides the file's own, which would go past Read.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{u})
}
