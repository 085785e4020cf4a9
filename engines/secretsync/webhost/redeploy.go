package webhost

import (
	"context"
	"net/http"
	"strconv"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

// Redeploy implements destination.Redeployer: it calls the deploy hook. No error has a part of its address.
func (d *dest) Redeploy(ctx context.Context) error {
	if d.hook == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wire.CallTimeout)
	defer cancel()
	hook := &wire.Client{Vendor: "the deploy hook", Header: http.Header{"User-Agent": {"coffer"}}, HTTP: d.client.HTTP}
	resp, err := hook.Do(ctx, wire.Call{Method: http.MethodPost, URL: d.hook, Writes: true})
	if err != nil || resp.OK() {
		return err
	}
	e := hook.Refusal(resp)
	switch code := resp.Status; {
	case code == http.StatusTooManyRequests, code >= 500:
		e.RetryAfter = retryAfter(resp.Header, 0)
	case code == http.StatusNotFound, code == http.StatusGone, code == http.StatusUnauthorized, code == http.StatusForbidden:
		e.Code = destination.BadRequest
		e.Text = "the deploy hook is not there any more (status " + strconv.Itoa(code) + "): create another one in the settings of the project, and write it to deploy_hook_url"
	}
	return e
}
