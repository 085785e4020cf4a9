package cloud1

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// JSON names a service whose calls are made without its SDK, which would be linked with all of its calls.
type JSON struct {
	Signing string // the service in signatures and in the names of hosts
	Target  string // what the header X-Amz-Target begins with
}

// url returns where the service is in a region. STS is everywhere, so that its SDK knows the domain.
func (j JSON) url(ctx context.Context, region string) (string, error) {
	at, err := sts.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, sts.EndpointParameters{Region: &region})
	if err != nil {
		return "", err
	}
	_, domain, _ := strings.Cut(at.URI.Host, ".")
	return "https://" + j.Signing + "." + domain, nil
}

// Call makes one call of a service without an SDK. It fails as Do does.
func Call[Out any](ctx context.Context, s *Session, action string, changes bool, in any) (*Out, error) {
	out := new(Out)
	if err := s.attempt(ctx, action, changes, func(ctx context.Context) error { return s.send(ctx, action, in, out) }); err != nil {
		return nil, err
	}
	return out, nil
}

// send makes a call. Its errors are those of an SDK.
func (s *Session) send(ctx context.Context, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	url := ""
	if s.Endpoint != nil {
		url = *s.Endpoint
	} else if url, err = s.service.JSON.url(ctx, s.Region); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.1")
	r.Header.Set("X-Amz-Target", s.service.JSON.Target+"."+action)
	r.Header.Set("User-Agent", "coffer")
	as, err := s.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, as, r, hex.EncodeToString(sum[:]), s.service.JSON.Signing, s.Region, time.Now()); err != nil {
		return err
	}
	resp, err := s.HTTPClient.Do(r)
	if err != nil {
		return &smithyhttp.RequestSendError{Err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	text, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode >= http.StatusMultipleChoices:
		return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: resp}, Err: rejection(resp.Header, text)}
	case errors.As(err, new(*http.MaxBytesError)):
		return errForeign
	case err != nil:
		return &smithyhttp.RequestSendError{Err: err}
	case json.Unmarshal(text, out) != nil:
		return errForeign
	}
	return nil
}

// rejection returns what a response of an error says.
func rejection(h http.Header, text []byte) error {
	var said struct {
		Type    string `json:"__type"`
		Message string // or message
	}
	_ = json.Unmarshal(text, &said) // without it, the status has to do
	code, _, _ := strings.Cut(cmp.Or(h.Get("X-Amzn-Errortype"), said.Type), ":")
	return &smithy.GenericAPIError{Code: code[strings.LastIndex(code, "#")+1:], Message: said.Message}
}
