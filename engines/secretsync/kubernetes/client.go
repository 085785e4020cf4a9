package kubernetes

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const (
	pageSize = 500
	maxPages = 1000

	// acceptMetadata has the API server leave the values out of a list.
	acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	mergePatch     = "application/merge-patch+json"
	plainJSON      = "application/json"
)

// client makes the calls that one namespace needs.
type client struct {
	*wire.Client
	server  string // URL without a slash at the end
	secrets string // URL of the Secrets
}

func newClient(c *Config, env destination.Env) (*client, error) {
	if c.CACert != "" && env.URL == "" {
		own, err := trusting(c.CACert, env)
		if err != nil {
			return nil, err
		}
		env.Client = own
	}
	w, err := wire.New("Kubernetes", "token", env)
	if err != nil {
		return nil, err
	}
	w.Header.Set("Authorization", "Bearer "+c.Token.Reveal())
	w.Header.Set("Accept", "application/json")
	server := c.APIServer
	if env.URL != "" {
		server = strings.TrimRight(env.URL, "/")
	}
	return &client{Client: w, server: server, secrets: server + "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/secrets"}, nil
}

// trusting returns a client that connects as the operator allows, and trusts only the certificates of ca_cert.
func trusting(pem string, env destination.Env) (*http.Client, error) {
	if env.Dial == nil || env.TLS == nil {
		return nil, destination.InternalError("kubernetes: there is nothing to connect with")
	}
	trust := env.TLS.Clone()
	trust.RootCAs = x509.NewCertPool()
	trust.RootCAs.AppendCertsFromPEM([]byte(pem))
	return &http.Client{Transport: &http.Transport{
		DialContext: env.Dial, TLSClientConfig: trust, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}}, nil
}

// status is the body of a response that is no success.
type status struct {
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Kind   string `json:"kind"`
		Causes []struct {
			Reason string `json:"reason"`
		} `json:"causes"`
	} `json:"details"`
}

// missing is the error of a Secret that is not there.
var missing = &destination.Error{Class: destination.Client, Code: destination.Changed, Text: "the Secret has been deleted by another client"}

// send makes a call; into, if not nil, gets the body of a response of 2xx.
func (c *client) send(ctx context.Context, what wire.Call, body, into any) (http.Header, error) {
	if err := c.Encode(&what, body); err != nil {
		return nil, err
	}
	resp, err := c.Do(ctx, what)
	switch {
	case err != nil:
		return nil, err
	case !resp.OK():
		return resp.Header, c.refusal(resp)
	case into == nil:
		return resp.Header, nil
	}
	return resp.Header, c.Decode(resp, into)
}

// refusal is the error of a response that is not 2xx.
func (c *client) refusal(resp *wire.Response) error {
	var s status
	if json.Unmarshal(resp.Body, &s) != nil || s.Kind != "Status" {
		return c.Refusal(resp)
	}
	e := c.Refusal(resp)
	terminating := slices.ContainsFunc(s.Details.Causes, func(c struct {
		Reason string `json:"reason"`
	}) bool {
		return c.Reason == "NamespaceTerminating"
	})
	switch {
	case resp.Status == http.StatusForbidden && terminating:
		e.Code, e.Text = destination.NoLocation, "the namespace is being deleted"
	case resp.Status == http.StatusForbidden && strings.Contains(s.Message, "exceeded quota"):
		e.Code, e.Text = destination.Quota, "a ResourceQuota of the namespace leaves no room for the Secret"
	case resp.Status == http.StatusForbidden:
		e.Text = "Kubernetes denies the call: the service account of token does not have the permission for Secrets of the namespace, or an admission policy denies it"
	case resp.Status == http.StatusNotFound && s.Details.Kind == "secrets":
		return missing
	case resp.Status == http.StatusNotFound:
		e.Text = "the namespace does not exist"
	case resp.Status == http.StatusConflict && s.Reason == "AlreadyExists":
		e.Code, e.Text = destination.Exists, "a Secret of this name exists"
	case resp.Status == http.StatusConflict:
		e.Code, e.Text = destination.Changed, "the Secret has been changed or deleted by another client"
	case resp.Status == http.StatusGone:
		e.Class, e.Code, e.Text = destination.External, destination.Unavailable, "the Secrets have changed while they were listed"
	case resp.Status == http.StatusUnprocessableEntity:
		e.Text = "Kubernetes finds the Secret invalid: its type may need other data keys, or cannot be changed"
	}
	return e
}

func (c *client) get(ctx context.Context, name string) (*secret, error) {
	s := new(secret)
	if _, err := c.send(ctx, wire.Call{Method: http.MethodGet, URL: c.secrets + "/" + url.PathEscape(name)}, nil, s); err != nil {
		return nil, err
	}
	if !s.Metadata.complete(name) {
		return nil, destination.UnexpectedResponse(c.Vendor, false)
	}
	return s, nil
}

// create makes a Secret; a dry run goes through all checks and leaves nothing.
func (c *client) create(ctx context.Context, s *secret, dryRun bool) (*secret, http.Header, error) {
	u := c.secrets
	if dryRun {
		u += "?dryRun=All"
	}
	made := new(secret)
	h, err := c.send(ctx, wire.Call{Method: http.MethodPost, URL: u, Writes: !dryRun}, s, made)
	if err == nil && !dryRun && !made.Metadata.complete(s.Metadata.Name) {
		err = destination.UnexpectedResponse(c.Vendor, true)
	}
	return made, h, err
}

func (c *client) patch(ctx context.Context, name string, p *patch) (*secret, error) {
	now := new(secret)
	what := wire.Call{Method: http.MethodPatch, URL: c.secrets + "/" + url.PathEscape(name), Header: http.Header{"Content-Type": {mergePatch}}, Writes: true}
	if _, err := c.send(ctx, what, p, now); err != nil {
		return nil, err
	}
	if !now.Metadata.complete(name) || now.Metadata.UID != p.Metadata.UID {
		return nil, destination.UnexpectedResponse(c.Vendor, true)
	}
	return now, nil
}

// remove deletes a Secret as it was read. One that has gone is fine.
func (c *client) remove(ctx context.Context, name, uid, version string) error {
	body := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": uid, "resourceVersion": version}}
	_, err := c.send(ctx, wire.Call{Method: http.MethodDelete, URL: c.secrets + "/" + url.PathEscape(name), Writes: true}, body, nil)
	if errors.Is(err, missing) {
		return nil
	}
	return err
}

// list calls do with the metadata of each Secret, until it returns false.
func (c *client) list(ctx context.Context, do func(*metadata) bool) error {
	next := ""
	for range maxPages {
		query := url.Values{"limit": {fmt.Sprint(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		var page struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []secret `json:"items"`
		}
		if _, err := c.send(ctx, wire.Call{Method: http.MethodGet, URL: c.secrets + "?" + query.Encode(), Header: http.Header{"Accept": {acceptMetadata}}}, nil, &page); err != nil {
			return err
		}
		if !strings.HasSuffix(page.Kind, "List") { // items are null where there are none
			return destination.UnexpectedResponse(c.Vendor, false)
		}
		for i := range page.Items {
			m := &page.Items[i].Metadata
			if !m.complete(m.Name) || m.Name == "" {
				return destination.UnexpectedResponse(c.Vendor, false)
			}
			if !do(m) {
				return nil
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
	return destination.UnexpectedResponse(c.Vendor, false)
}

// may asks the API server whether the token has a permission.
func (c *client) may(ctx context.Context, namespace, verb string) (bool, http.Header, error) {
	body := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{"namespace": namespace, "verb": verb, "resource": "secrets"}},
	}
	var out struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	h, err := c.send(ctx, wire.Call{Method: http.MethodPost, URL: c.server + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}, body, &out)
	return out.Status.Allowed, h, err
}
