package system

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/pgp"
)

func (s *System) generateRootPaths() {
	r := s.router
	for prefix, flags := range map[string]engines.Flags{"generate-root/": byShares, "generate-root-token/": bySudo} {
		engines.On(r, engines.Read, prefix+"attempt", "Report how far the generation of a root token is.", flags, s.rootStatus).
			Returns(attemptShape)
		engines.On(r, engines.Update, prefix+"attempt", "Begin to generate a root token.", flags, s.startRoot).Returns(attemptShape)
		engines.On(r, engines.Delete, prefix+"attempt", "Cancel the generation of a root token.", flags, s.cancelRoot)
		engines.On(r, engines.Update, prefix+"update", "Give one key share. The last one that is needed answers the root token, hidden by the one-time password or encrypted to the PGP key.", flags, s.generateRoot).
			Returns(attemptShape)
	}
}

func (s *System) rootStatus(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	return rootAnswer(s.opts.Node.RootStatus(ctx))
}

type startRootInput struct {
	OTP    engines.Sensitive `json:"otp" max:"1024" help:"One-time password that hides the token; if absent, one is made and answered."`
	PGPKey string            `json:"pgp_key" max:"16384" help:"Public OpenPGP key in base64 or armored that the token is encrypted to, instead of a one-time password."`
}

func (s *System) startRoot(ctx context.Context, _ *engines.Request, in *startRootInput) (*engines.Response, error) {
	to, err := pgp.ParseOne("pgp_key", in.PGPKey)
	if err != nil {
		return nil, err
	}
	return rootAnswer(s.opts.Node.StartRoot(ctx, in.OTP.Reveal(), to))
}

func (s *System) cancelRoot(ctx context.Context, req *engines.Request, in *nonceInput) (*engines.Response, error) {
	if err := needsNonce(req, in.Nonce); err != nil {
		return nil, err
	}
	return nil, s.opts.Node.CancelRoot(ctx, in.Nonce)
}

func (s *System) generateRoot(ctx context.Context, _ *engines.Request, in *shareInput) (*engines.Response, error) {
	return rootAnswer(s.opts.Node.GenerateRoot(ctx, in.Key.Reveal(), in.Nonce))
}

func rootAnswer(st ceremony.RootStatus, err error) (*engines.Response, error) {
	if err != nil {
		return nil, err
	}
	return both(map[string]any{
		"nonce": st.Nonce, "started": st.Started, "progress": st.Progress, "required": st.Required, "complete": st.Complete,
		"encoded_token": st.Encoded.Reveal(), "encoded_root_token": st.Encoded.Reveal(), "pgp_fingerprint": st.Fingerprint,
		"otp": st.OTP.Reveal(), "otp_length": ceremony.OTPLength,
	}), nil
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	attemptShape = `top; complete: boolean, encoded_root_token, encoded_token, nonce, otp, otp_length: integer, pgp_fingerprint,
		progress: integer, required: integer, started: boolean`
)
