package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/openbao/openbao/api/v2"
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
another cluster, and one that is older than the last change of this cluster's role in replication, are rejected without -force.

Examples:

  $ coffer operator raft snapshot restore backup.snap
  $ coffer operator raft snapshot restore -force other-cluster.snap`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "accept a snapshot of another cluster, or one from before a change of the role in replication"}},
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
	if err := c.upload(ctx, c.arg(0)); err != nil {
		return err
	}
	c.sayf("Success! The cluster holds the data of %s now.", c.arg(0))
	return nil
}

// upload sends the file to whichever node is active. A standby names that one while it is still being sent the file, and
// the sender may go on reading for a moment: each attempt therefore has a reader of its own, which the client library
// cannot do.
func (c *call) upload(ctx context.Context, file string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	path := snapshotPath
	if c.Bool("force") {
		path += "-force"
	}
	like := client.NewRequest(http.MethodPost, "/v1/"+path)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, like.URL.String(), nil)
	if err != nil {
		return err
	}
	req.Header = like.Headers.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("X-Vault-Token", like.ClientToken)
	info, err := os.Stat(file)
	if err != nil {
		return usagef("%w", err)
	}
	var shown *progress
	req.ContentLength = info.Size()
	req.GetBody = func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		shown = c.progress("Sent")
		return &upload{File: f, progress: shown}, err
	}
	if req.Body, err = req.GetBody(); err != nil {
		return usagef("%w", err)
	}
	sender := *client.CloneConfig().HttpClient
	sender.Timeout = 0 // it takes as long as there is data
	sender.CheckRedirect = followOnce
	resp, err := sender.Do(req)
	shown.done()
	if err == nil {
		defer resp.Body.Close()
		err = (&api.Response{Response: resp}).Error()
	}
	if err != nil {
		return c.failed(http.MethodPost, path, err)
	}
	return nil
}

// followOnce allows one redirect, from a standby to the active node, and none from TLS to plain text.
func followOnce(req *http.Request, via []*http.Request) error {
	if len(via) > 1 {
		return errors.New("the server redirects more than once")
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("the server redirects from https to " + req.URL.Scheme)
	}
	return nil
}

// upload is a file on its way to the server.
type upload struct {
	*os.File
	progress *progress
}

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.File.Read(b)
	_, _ = u.progress.Write(b[:n])
	return n, err
}

// WriteTo hides the file's own, which would go past Read.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{u})
}
