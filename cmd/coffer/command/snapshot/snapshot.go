// Package snapshot has the commands for snapshots of a cluster: save, restore, the schedules, and inspect, which checks a file without a server.
package snapshot

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func Command() *cli.Command {
	return command.Group("snapshot", "save, check and restore the data of the whole cluster", `Backups of all data of the cluster, taken while it serves. A snapshot is encrypted: restoring one needs the unseal keys in force when
it was saved.

Examples:

  $ coffer operator raft snapshot save backup.snap
  $ coffer operator raft snapshot inspect backup.snap`,
		command.New(command.Spec{
			Name: "save", Args: "FILE", Min: 1, Max: 1, Usage: "save a snapshot to a file",
			Help: `Saves a snapshot to FILE, mode 0600. The file appears only once it is complete and its checksums are right. A file that is there already is
replaced with -force only, and stays as it is if no new one can be saved.

Examples:

  $ coffer operator raft snapshot save backup.snap
  $ coffer operator raft snapshot save "backup-$(date +%F).snap"`,
			Flags: []cli.Flag{command.ForceFlag()},
		}, save),
		command.New(command.Spec{
			Name: "restore", Args: "FILE", Min: 1, Max: 1, Usage: "replace all data by that of a snapshot",
			Help: `Replaces all data of the cluster by that of the snapshot in FILE, whose checksums are verified before anything is sent. A snapshot of
another cluster, and one that is older than the last change of this cluster's role in replication, are rejected without -force.

Examples:

  $ coffer operator raft snapshot restore backup.snap
  $ coffer operator raft snapshot restore -force other-cluster.snap`,
			Flags: []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "accept a snapshot of another cluster, or one from before a change of the role in replication"}},
		}, restore),
		command.New(command.Spec{
			Name: "inspect", Args: "FILE", Min: 1, Max: 1, Usage: "check a snapshot's sums and show what it holds",
			Help: `Reads a snapshot, compares each part with its checksum and shows what the snapshot says about itself. Needs no server and no keys.

Examples:

  $ coffer operator raft snapshot inspect backup.snap
  $ coffer operator raft snapshot inspect -format=json backup.snap`,
			Local: true,
			Flags: []cli.Flag{&cli.StringFlag{Name: "format", Usage: "print the answer as `table|json|yaml`"}},
		}, inspectFile))
}

const apiPath = "sys/storage/raft/snapshot"

func save(ctx context.Context, c *command.Call) error {
	client, err := c.SendingClient()
	if err != nil {
		return err
	}
	if err := local.Free(c.Arg(0), c.Bool("force")); err != nil { // before anything is sent
		return command.Usagef("%w", err)
	}
	client.SetClientTimeout(0) // it takes as long as there is data
	req := client.NewRequest(http.MethodGet, "/v1/"+apiPath)
	resp, err := client.RawRequestWithContext(ctx, req)
	if err != nil {
		return c.Failed(http.MethodGet, apiPath, err)
	}
	defer resp.Body.Close()
	bar := c.Progress()
	defer bar.End()
	bar.BeginBytes("saving the snapshot", 0) // its size is not known before its end
	size := int64(0)
	var stream error
	err = local.WriteNew(c.Arg(0), c.Bool("force"), func(f *os.File) error {
		if _, err := io.Copy(io.MultiWriter(f, bar), resp.Body); err != nil {
			stream = c.Failed(http.MethodGet, apiPath, err)
			return stream
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		size = bar.Done()
		bar.BeginBytes("checking the snapshot", size)
		if _, err := inspectSnapshot(io.TeeReader(f, bar)); err != nil {
			stream = command.ServerErrorf("the snapshot received is damaged, nothing was saved: %w", err)
		}
		return stream
	})
	bar.End()
	if err != nil {
		return err
	}
	c.Sayf("Success! Saved %s to %s.", table.Size(size), c.Arg(0))
	return nil
}

func restore(ctx context.Context, c *command.Call) error {
	f, err := os.Open(c.Arg(0))
	if err != nil {
		return command.Usagef("%w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return command.Usagef("%w", err)
	}
	bar := c.Progress()
	defer bar.End()
	bar.BeginBytes("checking the snapshot", info.Size())
	if _, err := inspectSnapshot(io.TeeReader(f, bar)); err != nil {
		return command.Usagef("%s: %w; nothing was sent", c.Arg(0), err)
	}
	err = uploadSnapshot(ctx, c, c.Arg(0), info.Size(), bar)
	bar.End()
	if err != nil {
		return err
	}
	c.Sayf("Success! The cluster holds the data of %s now.", c.Arg(0))
	return nil
}

// uploadSnapshot sends the file to whichever node is active. A standby names that one while it is still being sent the file, and
// the sender may go on reading for a moment: each attempt therefore has a reader of its own, which the client library
// cannot do.
func uploadSnapshot(ctx context.Context, c *command.Call, file string, size int64, bar *progress.Bar) error {
	client, err := c.SendingClient()
	if err != nil {
		return err
	}
	path := apiPath
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
	req.ContentLength = size
	req.GetBody = func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		bar.BeginBytes("sending the snapshot", size)
		return &upload{File: f, bar: bar, size: size}, err
	}
	if req.Body, err = req.GetBody(); err != nil {
		return command.Usagef("%w", err)
	}
	sender := *client.CloneConfig().HttpClient
	sender.Timeout = 0 // it takes as long as there is data
	sender.CheckRedirect = followOnce
	resp, err := sender.Do(req)
	if err == nil {
		defer resp.Body.Close()
		err = (&api.Response{Response: resp}).Error()
	}
	if err != nil {
		return c.Failed(http.MethodPost, path, err)
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
	bar  *progress.Bar
	size int64
	sent int64
}

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.File.Read(b)
	u.sent += int64(n)
	if u.bar.Add(n); u.sent == u.size {
		u.bar.Begin("the server checks the snapshot and replaces its data", 0)
	}
	return n, err
}

// WriteTo hides the file's own, which would go past Read.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{u})
}
