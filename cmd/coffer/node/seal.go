package node

import (
	"fmt"
	"log/slog"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/server/seal/awskms"
	"github.com/coffer-project/coffer/server/seal/azurekeyvault"
	"github.com/coffer-project/coffer/server/seal/gcpckms"
	"github.com/coffer-project/coffer/server/seal/transit"
)

// OpenSeals builds the seals of the configuration, without asking any service: auto is the one to use, nil for Shamir,
// old the one to leave, nil for none.
func OpenSeals(c *config.Config, log *slog.Logger) (auto, old seal.Wrapper, err error) {
	if auto, err = openSeal(c.Seal, log); err != nil {
		return nil, nil, err
	}
	old, err = openSeal(c.OldSeal, log)
	return auto, old, err
}

func openSeal(s config.Seal, log *slog.Logger) (seal.Wrapper, error) {
	switch s.Type {
	case "":
		return nil, nil
	case seal.TypeShamir:
		if len(s.Values) > 0 {
			return nil, fmt.Errorf("seal %q has no settings", s.Type)
		}
		return nil, nil
	case seal.TypeStatic:
		return seal.NewStatic(s.Values)
	case seal.TypeTransit:
		return transit.New(s.Values, log)
	case seal.TypeAWSKMS:
		return awskms.New(s.Values)
	case seal.TypeGCPCKMS:
		return gcpckms.New(s.Values)
	case seal.TypeAzureKeyVault:
		return azurekeyvault.New(s.Values)
	}
	return nil, fmt.Errorf("there is no seal %q", s.Type)
}
