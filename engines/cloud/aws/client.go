package aws

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	defaultRegion  = "us-east-1"
	defaultTimeout = 20 * time.Second
	// defaultCallTime is more than the SDK's own three attempts take at most.
	defaultCallTime = 2 * time.Minute
	// The services close connections that idle; a request on one that is just being closed has an unknown outcome.
	idleTime       = 15 * time.Second
	maxAnswerBytes = 1 << 20
	headBytes      = 512
	userAgent      = "coffer"
)

// Client is the API on the provider's SDK.
type Client struct {
	iam     *iam.Client
	retryer sdk.RetryerV2 // of iam
	// sts has one client for each endpoint of STS, the configured one first.
	sts     []*sts.Client
	as      sdk.CredentialsProvider // of all calls of sts
	timeout time.Duration
	backoff func(attempt int) time.Duration
	secrets []string // that no error may show

	mu       sync.Mutex
	fallback int       // index in sts of the endpoint that responded when those before it did not
	until    time.Time // when to ask the first one again
}

var _ API = (*Client)(nil)

// New returns the Client of some credentials. It reads the environment and the shared files, and makes no request: whether the
// credentials are valid shows with the first call.
func New(ctx context.Context, o Options) (*Client, error) {
	cfg, err := load(ctx, o)
	if err != nil {
		return nil, &Error{Kind: Invalid, Action: "configuring the SDK", Text: bounded(err.Error())}
	}
	c := &Client{timeout: o.Timeout, backoff: o.Backoff}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.backoff == nil {
		c.backoff = removeBackoff
	}
	for _, s := range []string{o.AccessKey, o.SecretKey.Reveal()} {
		if s != "" {
			c.secrets = append(c.secrets, s)
		}
	}
	endpoints := append([]Endpoint{{URL: o.STSEndpoint, Region: o.STSRegion}}, o.STSFallbacks...)
	doer := httpClient(cfg, c.timeout)
	for _, endpoint := range endpoints {
		c.sts = append(c.sts, sts.NewFromConfig(cfg, func(s *sts.Options) {
			s.HTTPClient, s.Retryer, s.RetryMaxAttempts = doer, newRetryer(cfg, o), 0
			if endpoint.URL != "" {
				s.BaseEndpoint = sdk.String(endpoint.URL)
			}
			if endpoint.Region != "" {
				s.Region = endpoint.Region
			}
		}))
	}
	c.as = found{cfg.Credentials, c}
	if o.WebIdentity != nil {
		c.as = sdk.NewCredentialsCache(webIdentity{c, *o.WebIdentity}, func(o *sdk.CredentialsCacheOptions) { o.ExpiryWindow = expiryWindow })
	}
	for _, role := range o.AssumeRoles {
		c.as = sdk.NewCredentialsCache(assumed{c, c.as, role}, func(o *sdk.CredentialsCacheOptions) { o.ExpiryWindow = expiryWindow })
	}
	c.retryer = newRetryer(cfg, o)
	c.iam = iam.NewFromConfig(cfg, func(i *iam.Options) {
		i.HTTPClient, i.Retryer, i.RetryMaxAttempts, i.Credentials = doer, c.retryer, 0, c.as
		if o.IAMEndpoint != "" {
			i.BaseEndpoint = sdk.String(o.IAMEndpoint)
		}
	})
	return c, nil
}

// load reads what the SDK needs to know. Static credentials come before all that are found; what else the environment and
// the shared files say of endpoints and authorities counts for them, too.
func load(ctx context.Context, o Options) (sdk.Config, error) {
	options := []func(*config.LoadOptions) error{
		config.WithRegion(Region(o.Region)),
		config.WithLogger(logging.Nop{}),
		config.WithAPIOptions([]func(*middleware.Stack) error{awsmiddleware.AddUserAgentKey(userAgent), bound(o.CallTime)}),
	}
	switch {
	case o.WebIdentity != nil: // and nothing that is found
		options = append(options, config.WithCredentialsProvider(sdk.AnonymousCredentials{}))
	case o.AccessKey != "":
		keys := credentials.NewStaticCredentialsProvider(o.AccessKey, o.SecretKey.Reveal(), "")
		options = append(options, config.WithCredentialsProvider(keys))
	}
	return config.LoadDefaultConfig(ctx, options...)
}

// bound ends calls that take longer, with all their attempts: max_retries alone would let them go on for hours.
func bound(most time.Duration) func(*middleware.Stack) error {
	if most == 0 {
		most = defaultCallTime
	}
	deadline := func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel() // by then the response is read
		return next.HandleInitialize(ctx, in)
	}
	return func(s *middleware.Stack) error {
		return s.Initialize.Add(middleware.InitializeMiddlewareFunc("CallTime", deadline), middleware.Before)
	}
}

// Region returns the region that counts if one, or none, is configured; shared files have no say in it.
func Region(configured string) string {
	for _, r := range []string{configured, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if r != "" {
			return r
		}
	}
	return defaultRegion
}

// httpClient returns what sends the requests: with the SDK's own transport, so with the authorities and proxies of the
// environment, but with bounded responses and without redirects, which the services do not send.
func httpClient(cfg sdk.Config, timeout time.Duration) *http.Client {
	b, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		b = awshttp.NewBuildableClient()
	}
	t := b.GetTransport()
	t.IdleConnTimeout = idleTime
	return &http.Client{
		Transport:     responseChecker{t},
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// responseChecker turns responses that are not the service's into errors: too long ones, and successes that are not in the
// protocol's format. The SDK does not parse the responses of calls that return nothing, so the page of any other server at the
// endpoint would be accepted as the removal of a user.
type responseChecker struct{ next http.RoundTripper }

// rootElement is the first element of every response of IAM and STS, such as DeleteUserResponse.
var rootElement = regexp.MustCompile(`^\s*(?:<\?xml[^>]*>\s*)?<[A-Za-z]+Response[\s>]`)

// RoundTrip implements http.RoundTripper.
func (a responseChecker) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := http.MaxBytesReader(nil, answer.Body, maxAnswerBytes)
	begin := bufio.NewReaderSize(body, headBytes)
	if answer.StatusCode < http.StatusMultipleChoices {
		head, err := begin.Peek(headBytes)
		if !rootElement.Match(head) {
			if err == nil || errors.Is(err, io.EOF) {
				err = errors.New("unexpected response: it is not the provider's")
			}
			_ = body.Close()
			return nil, err
		}
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{begin, body}
	return answer, nil
}

// retryable reports failures that the SDK does not retry: nothing has been done, and a retry may succeed soon.
func retryable(err error) sdk.Ternary {
	said, ok := errors.AsType[smithy.APIError](err)
	answer, hasStatus := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok && !hasStatus {
		return sdk.UnknownTernary
	}
	code, status := "", 0
	if ok {
		code = codeOf(said)
	}
	if hasStatus {
		status = answer.HTTPStatusCode()
	}
	switch kindOf(code, status) {
	case Throttled:
		return sdk.TrueTernary
	case Conflict:
		return sdk.BoolTernary(code == "ConcurrentModification" || code == "EntityTemporarilyUnmodifiable")
	}
	return sdk.UnknownTernary
}

func newRetryer(cfg sdk.Config, o Options) sdk.RetryerV2 {
	return retry.NewStandard(func(s *retry.StandardOptions) {
		s.MaxAttempts = cfg.RetryMaxAttempts // of the environment; 0 is the default
		if o.MaxRetries >= 0 {
			s.MaxAttempts = o.MaxRetries + 1
		}
		s.Retryables = append(slices.Clone(s.Retryables), retry.IsErrorRetryableFunc(retryable))
		if o.Backoff != nil {
			s.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) { return o.Backoff(attempt), nil })
		}
	})
}

// watched is a retryer of one call that notices when an attempt may have been carried out although it failed.
type watched struct {
	sdk.RetryerV2
	once   bool // such an attempt is not repeated
	unsure bool // there was one
}

// IsErrorRetryable implements aws.Retryer.
func (w *watched) IsErrorRetryable(err error) bool {
	if maybeDone(err) {
		w.unsure = true
		if w.once {
			return false
		}
	}
	return w.RetryerV2.IsErrorRetryable(err)
}

func (w *watched) option(o *iam.Options) { o.Retryer = w }

// found is the SDK's chain of credentials, or the static ones; its errors say that it is about credentials.
type found struct {
	in sdk.CredentialsProvider
	c  *Client
}

// Retrieve implements aws.CredentialsProvider.
func (f found) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	got, err := f.in.Retrieve(ctx)
	if err == nil {
		return got, nil
	}
	e := f.c.failed(err)
	if e.Kind == Other {
		e.Kind = Denied
	}
	e.Action = "finding root credentials"
	return sdk.Credentials{}, e
}

// hide takes what is known to be secret out of a text.
func (c *Client) hide(text string) string {
	for _, s := range c.secrets {
		text = strings.ReplaceAll(text, s, hidden)
	}
	return text
}
