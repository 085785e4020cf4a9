// Package transit is the seal whose key another server of the family keeps, in its transit engine.
//
// It speaks the wire contract itself: encrypt, decrypt, and the two calls that keep its token alive. A token that comes
// from a file is read again at each call, so that an agent may replace it. Start reading at New.
package transit

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/seal"
)

// client is a seal.KMS.
type client struct {
	address   string // URL without a slash at the end
	namespace string
	mount     string
	key       string
	token     func() (string, error)
	renew     bool
	http      *http.Client
	log       *slog.Logger
}

// New returns the seal from its stanza: address, token, mount_path, key_name, namespace, disable_renewal, tls_ca_cert,
// tls_client_cert, tls_client_key, tls_server_name, tls_skip_verify. It makes no call. log may be nil.
func New(values map[string]string, log *slog.Logger) (seal.Wrapper, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := seal.NewSettings(seal.TypeTransit, values)
	c := &client{
		address:   strings.TrimRight(s.Required("address", "VAULT_ADDR"), "/"),
		namespace: strings.Trim(s.Text("namespace", "VAULT_NAMESPACE"), "/"),
		mount:     strings.Trim(s.Text("mount_path", "VAULT_TRANSIT_SEAL_MOUNT_PATH"), "/"),
		key:       s.Required("key_name", "VAULT_TRANSIT_SEAL_KEY_NAME"),
		renew:     !s.Bool("disable_renewal", "VAULT_TRANSIT_SEAL_DISABLE_RENEWAL"),
		log:       log,
	}
	if c.mount == "" {
		c.mount = "transit"
	}
	if u, err := url.Parse(c.address); c.address != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
		s.Problem("address must be a URL such as https://10.0.0.9:8200")
	} else if u != nil && (u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		s.Problem("address must hold no user, password, query or fragment: it is shown in logs")
	}
	source := s.Required("token", "VAULT_TOKEN")
	c.token = func() (string, error) { return seal.ReadSecret(source) }
	c.http = newHTTP(s)
	if err := s.Err(); err != nil {
		return nil, err
	}
	return seal.NewKMSWrapper(seal.TypeTransit, c.keyID(), c)
}

// keyID names the key with its server: the same names at two servers are two keys. Calling a server by another name
// makes it another key too, which costs no more than wrapping the root key once more.
func (c *client) keyID() string {
	u, _ := url.Parse(c.address) // New has seen that it is a URL
	host := strings.ToLower(u.Host) + u.Path
	return strings.Join([]string{host, c.namespace, c.mount, c.key}, "/")
}

// newHTTP returns a client with the TLS settings.
func newHTTP(s *seal.Settings) *http.Client {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: s.Text("tls_server_name", "VAULT_TLS_SERVER_NAME"),
		InsecureSkipVerify: s.Bool("tls_skip_verify", "VAULT_SKIP_VERIFY"), //nolint:gosec // the operator asks for it
	}
	if file := s.Text("tls_ca_cert", "VAULT_CACERT"); file != "" {
		pem, err := os.ReadFile(file)
		config.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			s.Problem("tls_ca_cert: %v", err)
		case !config.RootCAs.AppendCertsFromPEM(pem):
			s.Problem("tls_ca_cert: the file holds no PEM certificate")
		}
	}
	cert, key := s.Text("tls_client_cert", "VAULT_CLIENT_CERT"), s.Text("tls_client_key", "VAULT_CLIENT_KEY")
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			s.Problem("tls_client_cert and tls_client_key: %v", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{
		Timeout:   seal.KMSTimeout,
		Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true},
		// A token must not go where a redirect leads.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the server answers with a redirect: name its own address")
		},
	}
}

// Encrypt implements seal.KMS.
func (c *client) Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	var out struct {
		Data struct {
			Ciphertext string `json:"ciphertext"`
		} `json:"data"`
	}
	err := c.call(ctx, c.path("encrypt"), map[string]any{"plaintext": plain, "associated_data": []byte(purpose)}, &out)
	if err == nil && out.Data.Ciphertext == "" {
		err = errors.New("the answer has no ciphertext")
	}
	return []byte(out.Data.Ciphertext), err
}

// Decrypt implements seal.KMS.
func (c *client) Decrypt(ctx context.Context, ciphertext []byte, purpose string) ([]byte, error) {
	var out struct {
		Data struct {
			Plaintext string `json:"plaintext"`
		} `json:"data"`
	}
	err := c.call(ctx, c.path("decrypt"), map[string]any{"ciphertext": string(ciphertext), "associated_data": []byte(purpose)}, &out)
	if status, ok := errors.AsType[*statusError](err); ok && status.code == http.StatusBadRequest {
		return nil, fmt.Errorf("%w: %w", seal.ErrWrongKey, err)
	}
	if err != nil {
		return nil, err
	}
	plain, err := base64.StdEncoding.DecodeString(out.Data.Plaintext)
	if err != nil {
		return nil, errors.New("the answer's plaintext is not base64")
	}
	return plain, nil
}

func (c *client) path(op string) string { return c.mount + "/" + op + "/" + url.PathEscape(c.key) }

// Run keeps the token alive while it is renewable, until ctx ends.
func (c *client) Run(ctx context.Context) {
	if !c.renew {
		return
	}
	for {
		wait, err := c.tend(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("seal \"transit\": the token could not be looked up or renewed", "err", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

const (
	lookAgain = 10 * time.Minute // at a token that needs nothing: another may have taken its place
	tryAgain  = 30 * time.Second
)

// tend looks at the token, renews it if half its time has passed, and returns how long to wait before the next look.
func (c *client) tend(ctx context.Context) (time.Duration, error) {
	var about struct {
		Data struct {
			TTL, Period int64
			CreationTTL int64 `json:"creation_ttl"`
			Renewable   bool
		} `json:"data"`
	}
	if err := c.call(ctx, "auth/token/lookup-self", nil, &about); err != nil {
		return tryAgain, err
	}
	whole := max(about.Data.CreationTTL, about.Data.Period)
	switch {
	case about.Data.TTL == 0: // it never ends
		return lookAgain, nil
	case !about.Data.Renewable:
		c.log.Warn("seal \"transit\": the token ends and is not renewable", "ttl_seconds", about.Data.TTL)
		return lookAgain, nil
	case about.Data.TTL > whole/2:
		return wait(about.Data.TTL - whole/2), nil
	}
	var renewed struct {
		Auth struct {
			LeaseDuration int64 `json:"lease_duration"`
		} `json:"auth"`
	}
	if err := c.call(ctx, "auth/token/renew-self", map[string]any{}, &renewed); err != nil {
		return min(tryAgain, wait(about.Data.TTL/4)), err
	}
	return wait(renewed.Auth.LeaseDuration / 2), nil
}

// wait is so many seconds, within reason.
func wait(seconds int64) time.Duration {
	return min(max(time.Duration(seconds)*time.Second, time.Second), lookAgain)
}

// statusError is an answer other than success.
type statusError struct {
	code int
	path string
	text string
}

func (e *statusError) Error() string {
	hint := ""
	if e.code == http.StatusForbidden {
		hint = " (is the setting token valid, and may it update this path?)"
	}
	return fmt.Sprintf("%s: status %d%s: %s", e.path, e.code, hint, e.text)
}

// call reads path, or writes body to it, and decodes the answer.
func (c *client) call(ctx context.Context, path string, body, out any) error {
	token, err := c.token()
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	method, content := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPut
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.address+"/v1/"+path, bytes.NewReader(content))
	if err != nil {
		return errors.New("address and key_name make no URL")
	}
	req.Header.Set("X-Vault-Token", token)
	req.Header.Set("X-Vault-Request", "true")
	req.Header.Set("Content-Type", "application/json")
	if c.namespace != "" {
		req.Header.Set("X-Vault-Namespace", c.namespace)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("asking %s: %w", c.address, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	defer clear(answer)
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return &statusError{resp.StatusCode, path, errorText(answer)}
	}
	if json.Unmarshal(answer, out) != nil {
		return fmt.Errorf("%s does not answer as a server of the family does", c.address)
	}
	return nil
}

// errorText returns what an answer says is wrong, cut to a line.
func errorText(answer []byte) string {
	var body struct{ Errors []string }
	if json.Unmarshal(answer, &body) != nil || len(body.Errors) == 0 {
		return "no reason given"
	}
	text := strings.Join(strings.Fields(strings.Join(body.Errors, "; ")), " ")
	return text[:min(len(text), 300)]
}
