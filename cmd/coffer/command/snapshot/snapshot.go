// Package snapshot has the commands for snapshots of a cluster: save, restore, the schedules, and inspect, which checks a file without a server.
package snapshot

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/coffer-project/coffer/cmd/coffer/command"
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
			Help: `Saves a snapshot to FILE, mode 0600. The file appears only once it is complete and its checksums are right.

Examples:

  $ coffer operator raft snapshot save backup.snap
  $ coffer operator raft snapshot save "backup-$(date +%F).snap"`,
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
	client.SetClientTimeout(0) // it takes as long as there is data
	req := client.NewRequest(http.MethodGet, "/v1/"+apiPath)
	resp, err := client.RawRequestWithContext(ctx, req)
	if err != nil {
		return c.Failed(http.MethodGet, apiPath, err)
	}
	defer resp.Body.Close()
	p := c.Progress("Saved")
	var stream error
	err = local.WritePrivate(c.Arg(0), func(f *os.File) error {
		if _, err := io.Copy(io.MultiWriter(f, p), resp.Body); err != nil {
			stream = c.Failed(http.MethodGet, apiPath, err)
			return stream
		}
		p.Done()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := inspectSnapshot(f); err != nil {
			stream = command.ServerErrorf("the snapshot received is damaged, nothing was saved: %w", err)
		}
		return stream
	})
	if err != nil {
		return err
	}
	c.Sayf("Success! Saved %s to %s.", table.Size(p.Bytes), c.Arg(0))
	return nil
}

func restore(ctx context.Context, c *command.Call) error {
	f, err := os.Open(c.Arg(0))
	if err != nil {
		return command.Usagef("%w", err)
	}
	defer f.Close()
	if _, err := inspectSnapshot(f); err != nil {
		return command.Usagef("%s: %w; nothing was sent", c.Arg(0), err)
	}
	if err := uploadSnapshot(ctx, c, c.Arg(0)); err != nil {
		return err
	}
	c.Sayf("Success! The cluster holds the data of %s now.", c.Arg(0))
	return nil
}

// uploadSnapshot sends the file to whichever node is active. A standby names that one while it is still being sent the file, and
// the sender may go on reading for a moment: each attempt therefore has a reader of its own, which the client library
// cannot do.
func uploadSnapshot(ctx context.Context, c *command.Call, file string) error {
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
	info, err := os.Stat(file)
	if err != nil {
		return command.Usagef("%w", err)
	}
	var shown *command.Progress
	req.ContentLength = info.Size()
	req.GetBody = func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		shown = c.Progress("Sent")
		return &upload{File: f, progress: shown}, err
	}
	if req.Body, err = req.GetBody(); err != nil {
		return command.Usagef("%w", err)
	}
	sender := *client.CloneConfig().HttpClient
	sender.Timeout = 0 // it takes as long as there is data
	sender.CheckRedirect = followOnce
	resp, err := sender.Do(req)
	shown.Done()
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
	progress *command.Progress
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
