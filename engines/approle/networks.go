package approle

import (
	"net/netip"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
)

// networks returns the stored form of a list of addresses and networks.
func networks(field string, list engines.StringList) (engines.StringList, error) {
	clean := make(engines.StringList, 0, len(list))
	for _, text := range list {
		network, err := input.ParseNetwork(text)
		if err != nil {
			return nil, engines.Invalid("field %q: must be a list of addresses or networks such as \"10.0.0.0/8\"", field)
		}
		clean = append(clean, network.String())
	}
	return clean, nil
}

// within reports whether each of the networks lies in one of the outer ones. An empty outer list has no bounds.
func within(list, outer engines.StringList) bool {
	if len(outer) == 0 {
		return true
	}
	for _, text := range list {
		network, err := input.ParseNetwork(text)
		if err != nil || !slices.ContainsFunc(outer, func(text string) bool {
			o, err := input.ParseNetwork(text)
			return err == nil && o.Bits() <= network.Bits() && o.Contains(network.Addr())
		}) {
			return false
		}
	}
	return true
}

// allows reports whether an address lies in one of the networks. An empty list has no bounds.
func allows(list engines.StringList, addr netip.Addr) bool {
	return (&engines.TokenFields{TokenBoundCIDRs: list}).Allows(addr)
}
