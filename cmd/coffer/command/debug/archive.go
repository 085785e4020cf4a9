package debug

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// archive is a compressed tar file with one directory.
type archive struct {
	zip *gzip.Writer
	tar *tar.Writer
}

func newArchive(w io.Writer) *archive {
	zip := gzip.NewWriter(w)
	return &archive{zip, tar.NewWriter(zip)}
}

func (a *archive) add(name string, text []byte) error {
	h := &tar.Header{Name: "coffer-debug/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now(), Typeflag: tar.TypeReg}
	err := a.tar.WriteHeader(h)
	if err == nil {
		_, err = a.tar.Write(text)
	}
	if err != nil {
		return fmt.Errorf("writing %s to the archive: %w", name, err)
	}
	return nil
}

func (a *archive) close() error { return errors.Join(a.tar.Close(), a.zip.Close()) }

// follow reads the server's log until ctx ends. The result returns what was read, once.
func (k *collector) follow(ctx context.Context) func() ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	client, err := k.API.Clone()
	if err != nil {
		return func() ([]byte, error) { return nil, err }
	}
	client.SetToken(k.API.Token())
	client.SetClientTimeout(0)
	go func() {
		req := client.NewRequest(http.MethodGet, "/v1/sys/monitor")
		req.Params.Set("log_level", k.String("log-level"))
		resp, err := client.RawRequestWithContext(ctx, req)
		if err != nil {
			done <- result{err: k.Failed(http.MethodGet, "sys/monitor", err)}
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if ctx.Err() != nil {
			err = nil // it ends with ctx
		}
		done <- result{text, err}
	}()
	return func() ([]byte, error) {
		r := <-done
		return r.text, r.err
	}
}
