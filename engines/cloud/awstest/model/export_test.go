package model

import "slices"

// UnsaidPatterns returns the names of the shapes whose patterns are not checked.
func UnsaidPatterns() (names []string, err error) {
	models, err := Load()
	if err != nil {
		return nil, err
	}
	for _, m := range models.services {
		for name, s := range m.Shapes {
			if s.Pattern != "" && s.compiled == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
