package webhost

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Redeploy implements destination.Redeployer: it calls the deploy hook. No error has a part of its address.
func (d *dest) Redeploy(ctx context.Context) error {
	if d.hook == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.hook, nil)
	if err != nil {
		return internal("a request could not be made")
	}
	req.Header.Set("User-Agent", "coffer")
	resp, err := d.client.http.Do(req)
	if err != nil {
		return destination.NoResponse("the deploy hook", err, true)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusTooManyRequests:
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, retryAfter(resp.Header, 0)
		e.Text = "the deploy hook takes no more requests for now"
	case code >= 500:
		e.Class, e.Code, e.Unknown, e.RetryAfter = destination.External, destination.Unavailable, true, retryAfter(resp.Header, 0)
		e.Text = "the deploy hook has trouble: it answers with status " + strconv.Itoa(code)
	case code == http.StatusNotFound, code == http.StatusGone, code == http.StatusUnauthorized, code == http.StatusForbidden:
		e.Text = "the deploy hook is not there any more (status " + strconv.Itoa(code) + "): create another one in the settings of the project, and write it to deploy_hook_url"
	default:
		e.Text = "the deploy hook does not take the request: status " + strconv.Itoa(code)
	}
	return e
}
