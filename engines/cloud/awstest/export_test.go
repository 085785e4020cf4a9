package awstest

import "slices"

// UnsaidPatterns returns the names of the shapes whose patterns are not checked.
func UnsaidPatterns() (names []string, err error) {
	models, err := LoadModels()
	if err != nil {
		return nil, err
	}
	for _, m := range models.services {
		for name, s := range m.Shapes {
			if s.Pattern != "" && s.pattern == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
