package cloud1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	callTimeout    = 30 * time.Second
	maxAnswerBytes = 8 << 20         // of a page of 100 secrets with all their tags
	maxSkew        = 4 * time.Minute // that clocks may be apart; the services take signatures that are 5 minutes off
	sessionName    = "coffer-sync"
	expiryWindow   = 5 * time.Minute // temporary credentials are renewed as long before their end
)

// Service is what makes one service of AWS differ from another.
type Service struct {
	Name string // as texts have it
	JSON JSON   // for Call
	// Wordless are the calls that carry a value: nothing that the service says of them is repeated.
	Wordless []string
	// Meaning adds the codes that are the service's own.
	Meaning map[Code]Meaning
	// Advice says what a refusal of the service means and what to do, "" for the usual words.
	Advice func(call string, code Code) string
}

// Session calls one service in one region of one account. Safe for concurrent use.
type Session struct {
	Region      string
	Endpoint    *string // nil: the service's own
	HTTPClient  *Wire
	Credentials *sdk.CredentialsCache
	APIOptions  []func(*middleware.Stack) error

	account Account
	service *Service
	secrets []string // that no text may hold
}

// Open makes a Session, without a call. What the account leaves out comes from the environment, now.
func Open(a Account, service *Service, env destination.Env) (*Session, error) {
	getenv := env.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	region, err := regionOf(a.Region, getenv)
	if err != nil {
		return nil, err
	}
	s := &Session{
		account: a, service: service, Region: region, Endpoint: endpoint(env.URL), HTTPClient: &Wire{client: clientOf(env.Client)},
		APIOptions: []func(*middleware.Stack) error{awsmiddleware.AddUserAgentKey("coffer")},
	}
	var as sdk.CredentialsProvider = sdk.AnonymousCredentials{}
	if a.IdentityAudience == "" {
		as = s.credentials(getenv)
	}
	if a.RoleARN != "" {
		stsURL := env.AuthorityURL
		if stsURL == "" {
			stsURL = env.URL // where all services are, as on one's own premises
		}
		as = &assumed{s: s, env: env, next: sts.New(sts.Options{
			Region: region, BaseEndpoint: endpoint(stsURL), HTTPClient: &Wire{client: s.HTTPClient.client, telling: true}, Retryer: sdk.NopRetryer{},
			Credentials: as, APIOptions: s.APIOptions, Logger: logging.Nop{},
		})}
	}
	s.Credentials = sdk.NewCredentialsCache(as, func(o *sdk.CredentialsCacheOptions) { o.ExpiryWindow = expiryWindow })
	return s, nil
}

// Close closes idle connections.
func (s *Session) Close() error {
	s.HTTPClient.client.CloseIdleConnections()
	return nil
}

// ClockCheck compares the clock of the last response with this server's.
func (s *Session) ClockCheck() destination.Check {
	skew := s.HTTPClient.skew().Abs().Round(time.Second)
	c := destination.Check{Name: "clock", OK: skew <= maxSkew, Text: "it agrees with that of AWS"}
	if !c.OK {
		c.Text = fmt.Sprintf("the server's clock is off by %v: AWS rejects signatures that are 5 minutes old or young; set it right", skew)
	}
	return c
}

func endpoint(url string) *string {
	if url == "" {
		return nil
	}
	return &url
}

// regionOf says where the secrets are. A region becomes part of the host that is called, so that it is checked wherever it
// comes from.
func regionOf(configured string, getenv func(string) string) (string, error) {
	for _, source := range []struct {
		name   string
		region func() string
	}{
		{"region", func() string { return configured }},
		{"AWS_REGION", func() string { return getenv("AWS_REGION") }},
		{"AWS_DEFAULT_REGION", func() string { return getenv("AWS_DEFAULT_REGION") }},
		{"the shared configuration", sharedRegion},
	} {
		region := source.region()
		if region == "" {
			continue
		}
		if !RegionPattern().MatchString(region) {
			return "", Client(destination.BadRequest, source.name+": must be the code of a region, such as us-east-1")
		}
		return region, nil
	}
	return "", Client(destination.BadRequest, "region: is missing, and the server's environment has no AWS_REGION: set region")
}

// sharedRegion is what the operator's files say.
func sharedRegion() string {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cfg, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return ""
	}
	return cfg.Region
}

// credentials are those of the configuration, else of the environment, else whatever the provider's chain finds. The chain is
// asked when it is needed, and calls by itself: also the addresses of the machine's own role.
func (s *Session) credentials(getenv func(string) string) sdk.CredentialsProvider {
	if s.account.AccessKeyID != "" {
		return s.static(s.account.AccessKeyID.Reveal(), s.account.SecretAccessKey.Reveal(), "")
	}
	if id, secret := getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		return s.static(id, secret, getenv("AWS_SESSION_TOKEN"))
	}
	return sdk.CredentialsProviderFunc(func(ctx context.Context) (sdk.Credentials, error) {
		ctx, cancel := bounded(ctx)
		defer cancel()
		cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(s.Region), config.WithLogger(logging.Nop{}))
		if err == nil {
			var found sdk.Credentials
			if found, err = cfg.Credentials.Retrieve(ctx); err == nil {
				return found, nil
			}
		}
		if ctx.Err() != nil {
			return sdk.Credentials{}, stopped(ctx.Err(), "looking for credentials", false)
		}
		return sdk.Credentials{}, Client(destination.Denied,
			"there are no credentials: set access_key_id and secret_access_key, or give the server some in its environment")
	})
}

// static are credentials that are known. Those that could not be sent in a header are rejected without a word of them.
func (s *Session) static(id, secret, token string) sdk.CredentialsProvider {
	for _, text := range []string{id, secret, token} {
		if text != "" {
			s.secrets = append(s.secrets, text)
		}
	}
	if !keyPattern().MatchString(id) || strings.ContainsFunc(secret+token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return sdk.CredentialsProviderFunc(func(context.Context) (sdk.Credentials, error) {
			return sdk.Credentials{}, Client(destination.Denied, "the credentials of the server's environment are malformed")
		})
	}
	return credentials.NewStaticCredentialsProvider(id, secret, token)
}

// assumed are the credentials of a role.
type assumed struct {
	s    *Session
	env  destination.Env
	next *sts.Client
}

// Retrieve implements aws.CredentialsProvider.
func (a *assumed) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	got, call, err := a.assume(ctx)
	if err != nil {
		e := a.s.failed(err, call, false)
		e.Err = errors.Join(ErrCredentials, e.Err)
		return sdk.Credentials{}, e
	}
	if got == nil || got.AccessKeyId == nil || got.SecretAccessKey == nil || got.SessionToken == nil || got.Expiration == nil {
		return sdk.Credentials{}, UnexpectedResponse(call, false)
	}
	return sdk.Credentials{
		AccessKeyID: *got.AccessKeyId, SecretAccessKey: *got.SecretAccessKey, SessionToken: *got.SessionToken,
		CanExpire: true, Expires: *got.Expiration, Source: sessionName,
	}, nil
}

// assume asks for the credentials of the role: with an identity token of this server, or with the credentials that there are.
func (a *assumed) assume(ctx context.Context) (got *types.Credentials, call string, err error) {
	c := &a.s.account
	if c.IdentityAudience != "" {
		call = "AssumeRoleWithWebIdentity"
		token, err := a.env.Identity(ctx, c.IdentityAudience, c.IdentityTTL)
		if err != nil {
			return nil, call, err
		}
		out, err := a.next.AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
			RoleArn: &c.RoleARN, RoleSessionName: sdk.String(sessionName), WebIdentityToken: &token,
		})
		if err != nil {
			return nil, call, err
		}
		return out.Credentials, call, nil
	}
	call = "AssumeRole"
	in := &sts.AssumeRoleInput{RoleArn: &c.RoleARN, RoleSessionName: sdk.String(sessionName)}
	if c.ExternalID != "" {
		in.ExternalId = &c.ExternalID
	}
	out, err := a.next.AssumeRole(ctx, in)
	if err != nil {
		return nil, call, err
	}
	return out.Credentials, call, nil
}

// clientOf returns the client that was given, but for redirects, which the services do not send.
func clientOf(given *http.Client) *http.Client {
	own := http.Client{}
	if given != nil {
		own = *given
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// Wire is what the SDK sends requests with.
type Wire struct {
	client  *http.Client
	telling bool // every success has a response that the SDK reads
	last    atomic.Pointer[response]
}

// response is when a response came, by the provider's clock and by this server's.
type response struct {
	date string
	at   time.Time
}

// skew returns how far the provider's clock was ahead at the last response.
func (w *Wire) skew() time.Duration {
	last := w.last.Load()
	if last == nil {
		return 0
	}
	at, err := http.ParseTime(last.date)
	if err != nil {
		return 0
	}
	return at.Sub(last.at)
}

// Do implements the SDK's HTTPClient. The SDK closes what it sends as soon as there are headers of a response; if the
// transport has not looked for the end of it by then, it takes that for an error and the connection breaks in the middle of
// the response. So the transport gets a body of its own.
//
// It bounds answers, and ends successes that are not the provider's with an error: the
// SDK does not look into the responses of calls that return nothing, so that a page of whatever else is at the address would
// pass for a tag that has been set.
func (w *Wire) Do(r *http.Request) (*http.Response, error) {
	own := r.WithContext(r.Context())
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		own.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		own.Body, _ = own.GetBody()
	}
	answer, err := w.client.Do(own)
	if err != nil {
		return nil, err
	}
	w.last.Store(&response{answer.Header.Get("Date"), time.Now()})
	known := answer.Header.Get("X-Amzn-Requestid") != "" || strings.HasPrefix(answer.Header.Get("Content-Type"), "application/x-amz-json")
	if answer.StatusCode < http.StatusMultipleChoices && !known && !w.telling {
		_ = answer.Body.Close()
		return nil, errForeign
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{http.MaxBytesReader(nil, answer.Body, maxAnswerBytes), answer.Body}
	return answer, nil
}

// bounded gives a call an end that has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// Do makes one call. Those that change something are said so, for what a lost answer means.
func Do[In, Out, Options any](
	ctx context.Context, s *Session, name string, changes bool,
	call func(context.Context, *In, ...func(*Options)) (*Out, error), in *In,
) (*Out, error) {
	var out *Out
	err := s.attempt(ctx, name, changes, func(ctx context.Context) (err error) {
		out, err = call(ctx, in)
		return err
	})
	return out, err
}

// attempt makes a call, and makes its error one of a destination.
func (s *Session) attempt(ctx context.Context, name string, changes bool, call func(context.Context) error) error {
	if ctx.Err() != nil {
		return stopped(ctx.Err(), name, false)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := call(ctx)
	if err == nil {
		return nil
	}
	e := s.failed(err, name, changes)
	for _, secret := range s.secrets {
		e.Text = strings.ReplaceAll(e.Text, secret, hidden)
	}
	if e.Code == destination.Denied {
		s.Credentials.Invalidate() // those of a role may have been taken back
	}
	return e
}
