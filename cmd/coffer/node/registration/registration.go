// Package registration tells Kubernetes the state of the node: as labels of its pod, which services select by.
package registration

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// serviceAccount is where a pod finds who it is. It is a variable for tests only.
var serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	checkInterval = time.Second     // between two looks at the state
	retryInterval = 5 * time.Second // after a failure
	requestTime   = 5 * time.Second
)

// State is what labels tell.
type State struct{ Active, Initialized, Sealed, Standby bool }

// Pod labels one pod.
type Pod struct {
	url     string
	version string
	client  *http.Client
	log     *slog.Logger
}

// New returns the pod that this process runs in. namespace "" is that of the service account.
func New(namespace, name, version string, log *slog.Logger) (*Pod, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("service_registration: this is no pod of Kubernetes, as KUBERNETES_SERVICE_HOST is not set: remove the stanza")
	}
	if namespace == "" {
		text, err := os.ReadFile(filepath.Join(serviceAccount, "namespace"))
		if err != nil {
			return nil, fmt.Errorf("service_registration: set namespace or COFFER_K8S_NAMESPACE: %w", err)
		}
		namespace = strings.TrimSpace(string(text))
	}
	if name == "" {
		return nil, errors.New("service_registration: set pod_name or COFFER_K8S_POD_NAME")
	}
	pem, err := os.ReadFile(filepath.Join(serviceAccount, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("service_registration: the pod has no service account: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("service_registration: ca.crt of the service account holds no PEM certificate")
	}
	return &Pod{
		url:     "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name),
		version: strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(version, "-"), "-._"), log: log,
		client: &http.Client{
			Timeout:       requestTime,
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Run keeps the labels in step with the state until ctx ends, when they say that the node is sealed and not active.
func (p *Pod) Run(ctx context.Context, state func(context.Context) State) {
	defer p.client.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told *State
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
			defer cancel()
			if err := p.label(last, State{Sealed: true}); err != nil {
				p.log.Warn("labelling the pod at the end failed", "err", err)
			}
			return
		case <-timer.C:
		}
		next := checkInterval
		if now := state(ctx); told == nil || *told != now {
			if err := p.label(ctx, now); err != nil {
				p.log.Warn("labelling the pod failed, trying again", "err", err, "in", retryInterval)
				next = retryInterval
			} else {
				told = &now
			}
		}
		timer.Reset(next)
	}
}

// label sets the labels, under the names that services of Vault's and OpenBao's charts select by, and ours.
func (p *Pod) label(ctx context.Context, s State) error {
	labels := map[string]string{}
	for _, product := range []string{"coffer", "openbao", "vault"} {
		labels[product+"-active"] = strconv.FormatBool(s.Active)
		labels[product+"-initialized"] = strconv.FormatBool(s.Initialized)
		labels[product+"-sealed"] = strconv.FormatBool(s.Sealed)
		labels[product+"-perf-standby"] = strconv.FormatBool(s.Standby)
		labels[product+"-version"] = p.version
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(serviceAccount, "token")) // it is replaced from time to time
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("kubernetes responds %d: the service account needs the verb patch on pods", resp.StatusCode)
	}
	return nil
}
