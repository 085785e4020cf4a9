package command

import (
	"context"
	"net/http"
)

// UsedHint is said when a wrapping token does not open: perhaps it was stolen on its way.
const UsedHint = `It was used before, has expired, or was cut while copied. If you did not use it, another party may have opened it:
treat what it held as known to them, replace that, and ask the sender for a new one.`

// OpenWrapped uses a wrapping token as the caller's own, so that one needs no other. Where it has no say, because it was
// made in another namespace, the token in use speaks for it; such a refusal uses nothing up.
func (c *Call) OpenWrapped(ctx context.Context, path, token string) (*Response, error) {
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	own := client.Token()
	client.SetToken(token)
	defer client.SetToken(own)
	a, err := c.Send(ctx, Request{Method: http.MethodPut, Path: path, Unwrapped: true})
	if StatusOf(err) != http.StatusForbidden || own == "" || own == token {
		return a, err
	}
	client.SetToken(own)
	return c.Send(ctx, Request{Method: http.MethodPut, Path: path, Unwrapped: true, Body: map[string]string{"token": token}})
}
