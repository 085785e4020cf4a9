package system

import (
	"context"
	"encoding/base64"
	"encoding/hex"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/pgp"
)

// Key ceremonies need a token with sudo besides the shares: without one, a client could begin, occupy and cancel attempts. The
// first names of each need none through a listener that opens them, for holders of shares who have no token left.
const (
	bySudo   = engines.Sudo | engines.Active | engines.RootNamespace
	byShares = bySudo | engines.Ceremony
)

// needsNonce reports, as an error, that a request through a listener that opens ceremonies does not name the attempt that it
// would end.
func needsNonce(req *engines.Request, nonce string) error {
	if nonce == "" && req.Header.Get(engines.CeremonyHeader) != "" {
		return engines.Invalid("field \"nonce\" is required on this listener: it names the attempt to cancel")
	}
	return nil
}

func (s *System) rekeyPaths() {
	s.rekeyBackupPaths()
	for _, p := range []struct {
		prefix string
		target ceremony.Target
		flags  engines.Flags
	}{
		{"rekey/", ceremony.Unseal, byShares}, {"rekey-recovery-key/", ceremony.Recovery, byShares},
		{"rotate/root/", ceremony.Unseal, bySudo}, {"rotate/recovery/", ceremony.Recovery, bySudo},
	} {
		k := rekeying{s, p.target, !p.flags.Has(engines.Ceremony)}
		r := s.router
		keys := string(p.target) + " keys"
		engines.On(r, engines.Read, p.prefix+"init", "Report how far the change of the "+keys+" is.", p.flags, k.status).Returns(initShape)
		engines.On(r, engines.Update, p.prefix+"init", "Begin to change the "+keys+".", p.flags, k.start).Returns(initShape)
		engines.On(r, engines.Delete, p.prefix+"init", "Cancel the change of the "+keys+".", p.flags, k.cancel)
		engines.On(r, engines.Update, p.prefix+"update", "Give one share of the present "+keys+". The last one that is needed answers the new shares, once.", p.flags, k.update).
			Returns(`top; backup: boolean, complete: boolean, keys: [string], keys_base64: [string], n: integer, nonce, pgp_fingerprints: [string]?,
				progress: integer, required: integer, started: boolean, t: integer, verification_nonce, verification_required: boolean`)
		engines.On(r, engines.Read, p.prefix+"verify", "Report how far the verification of the new "+keys+" is.", p.flags, k.verifyStatus).
			Returns(verifyShape)
		engines.On(r, engines.Update, p.prefix+"verify", "Give one share of the new "+keys+". With the last one that is needed they take effect.", p.flags, k.verify).
			Returns(verifyShape)
		engines.On(r, engines.Delete, p.prefix+"verify", "Start the verification of the new "+keys+" again.", p.flags, k.restartVerify)
	}
}

func (s *System) rekeyBackupPaths() {
	for path, t := range map[string]ceremony.Target{
		"rekey/backup": ceremony.Unseal, "rekey/recovery-key-backup": ceremony.Recovery,
		"rotate/root/backup": ceremony.Unseal, "rotate/recovery/backup": ceremony.Recovery,
	} {
		keys := string(t) + " keys"
		engines.On(s.router, engines.Read, path, "Read the shares of the "+keys+" that were kept, encrypted to PGP keys.", bySudo,
			func(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
				b, err := s.opts.Node.Backup(ctx, t)
				if err != nil {
					return nil, err
				}
				inHex, inBase64 := map[string][]string{}, map[string][]string{}
				for print, shares := range b.Keys {
					inHex[print], inBase64[print] = texts(shares)
				}
				return both(map[string]any{"nonce": b.Nonce, "keys": inHex, "keys_base64": inBase64}), nil
			}).Returns("top; keys: {*: [string]}, keys_base64: {*: [string]}, nonce")
		engines.On(s.router, engines.Delete, path, "Delete the shares of the "+keys+" that were kept.", bySudo,
			func(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
				return nil, s.opts.Node.DeleteBackup(ctx, t)
			})
	}
}

// rekeying answers the paths of one key.
type rekeying struct {
	*System
	target     ceremony.Target
	authorised bool // the caller always has sudo
}

type rekeyInput struct {
	Shares              int                `json:"secret_shares" required:"true" help:"Number of shares of the new key."`
	Threshold           int                `json:"secret_threshold" required:"true" help:"Number of shares of the new key that are enough."`
	RequireVerification bool               `json:"require_verification" help:"The new shares take effect only after enough of them were given back."`
	Backup              bool               `json:"backup" help:"Keep the shares, encrypted to pgp_keys, to be read again."`
	StoredShares        int                `json:"stored_shares" help:"Accepted for compatibility."`
	PGPKeys             engines.StringList `json:"pgp_keys" max:"16384" help:"Public OpenPGP keys in base64 or armored, one for each share: each share is encrypted to the key at its place."`
}

type nonceInput struct {
	Nonce string `json:"nonce" max:"64" help:"Nonce of the attempt; if given, it must be right."`
}

type shareInput struct {
	Key   engines.Sensitive `json:"key" required:"true" max:"1024" help:"One key share, in hex or base64."`
	Nonce string            `json:"nonce" required:"true" max:"64" help:"Nonce of the attempt."`
}

func (k rekeying) status(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	st, err := k.opts.Node.RekeyStatus(ctx, k.target)
	return rekeyed(st, err)
}

func (k rekeying) start(ctx context.Context, _ *engines.Request, in *rekeyInput) (*engines.Response, error) {
	holders, err := pgp.Parse("pgp_keys", in.PGPKeys, in.Shares)
	if err != nil {
		return nil, err
	}
	st, err := k.opts.Node.StartRekey(ctx, k.target, ceremony.RekeyOptions{
		Shares: in.Shares, Threshold: in.Threshold, Verify: in.RequireVerification, Authorised: k.authorised,
		Holders: holders, Backup: in.Backup,
	})
	return rekeyed(st, err)
}

func (k rekeying) cancel(ctx context.Context, req *engines.Request, in *nonceInput) (*engines.Response, error) {
	if err := needsNonce(req, in.Nonce); err != nil {
		return nil, err
	}
	return nil, k.opts.Node.CancelRekey(ctx, k.target, in.Nonce)
}

func (k rekeying) update(ctx context.Context, _ *engines.Request, in *shareInput) (*engines.Response, error) {
	st, err := k.opts.Node.Rekey(ctx, k.target, in.Key.Reveal(), in.Nonce)
	return rekeyed(st, err)
}

// rekeyed answers a status, or the new shares.
func rekeyed(st ceremony.RekeyStatus, err error) (*engines.Response, error) {
	if err != nil {
		return nil, err
	}
	data := map[string]any{
		"nonce": st.Nonce, "started": st.Started, "t": st.Threshold, "n": st.Shares,
		"progress": st.Progress, "required": st.Required, "pgp_fingerprints": st.Fingerprints, "backup": st.Backup,
		"verification_required": st.Verify, "verification_nonce": st.VerifyNonce, "complete": st.Complete,
	}
	if len(st.Keys) > 0 {
		data["keys"], data["keys_base64"] = texts(st.Keys)
	}
	return unknown(both(data), st), nil
}

// unknown warns of a commit with an unknown outcome.
func unknown(r *engines.Response, st ceremony.RekeyStatus) *engines.Response {
	if st.Unknown {
		r.Warnings = append(r.Warnings, "It is not known whether the new keys have taken effect, because the node lost its place in the cluster: "+
			"keep the former shares and the new ones until you have seen which of them work.")
	}
	return r
}

// texts are shares in hex and base64.
func texts(shares [][]byte) (inHex, inBase64 []string) {
	inHex, inBase64 = []string{}, []string{}
	for _, share := range shares {
		inHex = append(inHex, hex.EncodeToString(share))
		inBase64 = append(inBase64, base64.StdEncoding.EncodeToString(share))
	}
	return inHex, inBase64
}

func (k rekeying) verifyStatus(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	st, err := k.opts.Node.VerifyStatus(ctx, k.target)
	return verified(st, err)
}

func (k rekeying) verify(ctx context.Context, _ *engines.Request, in *shareInput) (*engines.Response, error) {
	st, err := k.opts.Node.VerifyRekey(ctx, k.target, in.Key.Reveal(), in.Nonce)
	return verified(st, err)
}

func (k rekeying) restartVerify(ctx context.Context, req *engines.Request, in *nonceInput) (*engines.Response, error) {
	if err := needsNonce(req, in.Nonce); err != nil {
		return nil, err
	}
	if err := k.opts.Node.RestartVerify(ctx, k.target, in.Nonce); err != nil {
		return nil, err
	}
	return k.verifyStatus(ctx, req, nil)
}

func verified(st ceremony.RekeyStatus, err error) (*engines.Response, error) {
	if err != nil {
		return nil, err
	}
	return unknown(both(map[string]any{
		"nonce": st.VerifyNonce, "started": st.Started, "t": st.Threshold, "n": st.Shares,
		"progress": st.VerifyProgress, "complete": st.Complete,
	}), st), nil
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	initShape = `top; backup: boolean, complete: boolean, n: integer, nonce, pgp_fingerprints: [string]?, progress: integer, required:
		integer, started: boolean, t: integer, verification_nonce, verification_required: boolean`
	verifyShape = "top; complete: boolean, n: integer, nonce, progress: integer, started: boolean, t: integer"
)
