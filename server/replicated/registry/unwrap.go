package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Limits of the one call to the primary's API.
const (
	unwrapTimeout   = 30 * time.Second
	maxRedirects    = 5
	maxAnswerBytes  = 1 << 20
	maxCAFileBytes  = 1 << 20
	maxCAPathFiles  = 1000
	unwrapPath      = "/v1/sys/wrapping/unwrap"
	wrongTokenCause = "the activation token was already used, has expired or is of another cluster, or this is not a complete and unchanged copy of it (then nothing was used up: copy it again)"
)

// primaryURL returns the base URL of the primary's API: what the operator has given, or else what the token says.
func primaryURL(given, claimed string) (string, error) {
	addr := given
	if addr == "" {
		addr = claimed
	}
	if addr == "" {
		return "", engines.Invalid(`field "primary_api_addr": is required, because the token does not say where the primary's API is`)
	}
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.ContainsAny(addr, "?#") {
		return "", engines.Invalid(`field "primary_api_addr": must be a URL such as https://primary.example.com:8200`)
	}
	return strings.TrimRight(addr, "/"), nil
}

// readPool returns the certificates of a file and of the files of a directory; nil if neither is given.
func readPool(file, path string) (*x509.CertPool, error) {
	if file == "" && path == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if file != "" {
		text, err := readBounded(file)
		if err != nil {
			return nil, engines.Invalid(`field "ca_file": cannot be read on this node: %s`, fileCause(err))
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, engines.Invalid(`field "ca_file": holds no certificate in PEM`)
		}
	}
	if path == "" {
		return pool, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, engines.Invalid(`field "ca_path": cannot be read on this node: %s`, fileCause(err))
	}
	if len(entries) > maxCAPathFiles {
		return nil, engines.Invalid(`field "ca_path": holds more than %d files`, maxCAPathFiles)
	}
	found := false
	for _, e := range entries {
		// What is not a readable file, or holds no certificate, may lie there too.
		if text, err := readBounded(filepath.Join(path, e.Name())); err == nil && pool.AppendCertsFromPEM(text) {
			found = true
		}
	}
	if !found {
		return nil, engines.Invalid(`field "ca_path": no file of the directory holds a certificate in PEM`)
	}
	return pool, nil
}

// readBounded reads a regular file. Anything else, such as a device or a pipe, might never end.
func readBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxCAFileBytes:
		return nil, fmt.Errorf("it is larger than %d bytes", maxCAFileBytes)
	}
	f, err := os.Open(name) //nolint:gosec // named by an operator with sudo, and nothing of it is shown
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return io.ReadAll(io.LimitReader(f, maxCAFileBytes))
}

// fileCause is what a client is told of a file that cannot be read.
func fileCause(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	return err.Error()
}

// unwrap takes what a wrapping token holds out of the primary at addr. With a pool, the server's certificate must be of
// it; without, the system's roots count. Its errors are for the operator.
func unwrap(ctx context.Context, addr, token string, pool *x509.CertPool) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, unwrapTimeout)
	defer cancel()
	transport := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: checkRedirect}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, addr+unwrapPath, nil)
	if err != nil {
		return nil, engines.Invalid(`field "primary_api_addr": must be a URL such as https://primary.example.com:8200`)
	}
	req.Header.Set("X-Vault-Token", token)
	req.Header.Set("X-Vault-Request", "true")
	resp, err := client.Do(req)
	if err != nil {
		return nil, unreachable(addr, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, unreachable(addr, err)
	}
	return answerOf(addr, resp.StatusCode, body)
}

// checkRedirect follows one node of the primary to another, with the same call, and never out of TLS.
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("it was redirected more than %d times", maxRedirects)
	case req.Method != http.MethodPost:
		return errors.New("it is redirected in a way that does not keep the call: give the address that it leads to")
	case req.URL.Scheme != "https" && via[0].URL.Scheme == "https":
		return errors.New("it is redirected to an address without TLS")
	}
	return nil
}

// unreachable says why there was no answer.
func unreachable(addr string, err error) error {
	cause := err
	if u, ok := errors.AsType[*url.Error](err); ok {
		cause = u.Err
	}
	hint := ""
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		hint = `; set "ca_file" or "ca_path" to the CA of the primary's API`
	}
	if errors.Is(err, context.DeadlineExceeded) {
		cause = fmt.Errorf("no answer within %s", unwrapTimeout)
	}
	return engines.Invalid("the primary's API at %s cannot be reached: %v%s", addr, cause, hint)
}

// answerOf returns the data of the primary's answer.
func answerOf(addr string, status int, body []byte) (json.RawMessage, error) {
	switch {
	case status == http.StatusBadRequest || status == http.StatusForbidden:
		return nil, engines.Invalid("%s has refused it: %s", addr, wrongTokenCause)
	case status >= 300 && status < 400:
		return nil, engines.Invalid("%s answers with a redirect (%d) that leads nowhere: give the address of the primary's active node", addr, status)
	case status == http.StatusServiceUnavailable:
		return nil, engines.Invalid("%s is sealed or not available at present (503): nothing was changed, try again", addr)
	case status != http.StatusOK:
		return nil, engines.Invalid("%s does not answer like the API of a primary: status %d", addr, status)
	case len(body) > maxAnswerBytes:
		return nil, engines.Invalid("%s has answered more than %d bytes", addr, maxAnswerBytes)
	}
	var answer struct {
		Data json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Data) == 0 {
		return nil, engines.Invalid("%s does not answer like the API of a primary", addr)
	}
	return answer.Data, nil
}
