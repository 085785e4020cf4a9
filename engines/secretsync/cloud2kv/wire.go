package cloud2kv

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// maxAnswerBytes is the longest answer that is read; a page of 25 secrets is a tenth of it.
const maxAnswerBytes = 4 << 20

// wire carries the SDK's requests. It calls only the vault and those who issue tokens for it, and notes in the exchange of
// a call what the SDK's errors do not say.
type wire struct {
	client      *http.Client
	vault       string       // host and port
	authorities []string     // hosts and ports
	rejected    func() error // the vault does not take a token any more
}

// exchange is what is known of one call. One goroutine uses it.
type exchange struct {
	sent        bool               // a request that changes something has gone to the vault
	atAuthority bool               // the last request went for a token
	broken      error              // why there is no response, or not all of it
	rejected    *destination.Error // why it was given up by us
	date        time.Time          // of the last answer, by its sender's clock
}

type exchangeKey struct{}

// exchangeOf returns the exchange of a call's context; an unused one if it has none.
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

// reject notes why a call is given up: not all of the SDK hands errors on.
func reject(ctx context.Context, e *destination.Error) error {
	exchangeOf(ctx).rejected = e
	return e
}

// Do implements policy.Transporter.
func (w *wire) Do(r *http.Request) (*http.Response, error) {
	x, host := exchangeOf(r.Context()), hostOf(r.URL.String())
	x.atAuthority = slices.Contains(w.authorities, host)
	if r.URL.Scheme != "https" || host != w.vault && !x.atAuthority {
		return nil, reject(r.Context(), &destination.Error{
			Class: destination.Client, Code: destination.Blocked,
			Text: "Key Vault points to another host, which is not called",
		})
	}
	changes := !x.atAuthority && r.Method != http.MethodGet && r.Header.Get("Authorization") != ""
	resp, err := w.client.Do(r)
	if err != nil {
		x.broken = err
		x.sent = x.sent || changes && !neverSent(err)
		return nil, err
	}
	x.sent = x.sent || changes
	x.date, _ = http.ParseTime(resp.Header.Get("Date"))
	resp.Body = &answer{ReadCloser: resp.Body, left: maxAnswerBytes, ctx: r.Context()}
	if resp.StatusCode == http.StatusUnauthorized && !soundChallenge(resp.Header.Get("WWW-Authenticate")) {
		resp.Body.Close()
		return nil, reject(r.Context(), unexpected("Key Vault asks for a token in an unexpected way"))
	}
	if resp.StatusCode == http.StatusUnauthorized && !x.atAuthority && r.Header.Get("Authorization") != "" {
		_ = w.rejected() // it could be made before; without another token the vault rejects this one once more
	}
	return resp, nil
}

// soundChallenge reports whether the SDK can be given a challenge: it takes for granted that an authority is a whole URL.
func soundChallenge(header string) bool {
	for part := range strings.SplitSeq(strings.ReplaceAll(header, "Bearer ", ""), " ") {
		if _, authority, ok := strings.Cut(part, "authorization="); ok && strings.Count(authority, "/") < 3 {
			return false
		}
	}
	return true
}

// neverSent reports whether a request failed before any of it could have arrived.
func neverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	_, unresolved := errors.AsType[*net.DNSError](err)
	_, ours := errors.AsType[*destination.Error](err)
	return ok && op.Op == "dial" || unresolved || ours
}

// answer is the body of a response.
type answer struct {
	io.ReadCloser
	left int
	ctx  context.Context // of the request that is answered
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.left -= n; a.left < 0 {
		return 0, reject(a.ctx, unexpected("the answer is too long to be one of Key Vault's"))
	}
	if err != nil && err != io.EOF {
		exchangeOf(a.ctx).broken = err
	}
	return n, err
}
