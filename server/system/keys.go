package system

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

func (s *System) keyPaths() {
	r := s.router
	engines.On(r, engines.Read, "key-status", "Describe the active encryption key.", engines.RootNamespace, s.keyStatus)
	for _, pattern := range []string{"rotate", "rotate/keyring"} {
		engines.On(r, engines.Update, pattern, "Add an encryption key and use it from now on. What older keys encrypted stays readable.", engines.Sudo|engines.RootNamespace, s.rotate)
	}
}

func (s *System) keyStatus(context.Context, *engines.Request, *none) (*engines.Response, error) {
	info := s.opts.Barrier.KeyInfo()
	return both(map[string]any{
		"term": info.Term, "install_time": rfc3339(info.InstalledAt), "encryptions": info.Encryptions,
	}), nil
}

func (s *System) rotate(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	info, err := s.opts.Barrier.Rotate(ctx)
	if err != nil {
		return nil, err
	}
	s.opts.Logger.Info("encryption key rotated", "key_term", info.Term)
	return nil, nil
}
