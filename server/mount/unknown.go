package mount

import "github.com/coffer-project/coffer/server/mount/unknown"

// known returns why this version cannot change the mount, or nil.
func (m *Mounted) known() error {
	if u, ok := m.Engine.(*unknown.Engine); ok {
		return u.Err()
	}
	return nil
}

func allKnown(mounts []*Mounted) error {
	for _, m := range mounts {
		if err := m.known(); err != nil {
			return err
		}
	}
	return nil
}
