package engines

import "slices"

// Older are those older names of fields that were used last when an object was written: its reads answer them, too.
type Older []string

// Take calls set if the request gives a field under its older name only, and remembers which of the names was used last.
func (o *Older) Take(req *Request, older, newer string, set func()) {
	renamed := req.Given(newer)
	if !renamed && !req.Given(older) {
		return
	}
	*o = slices.DeleteFunc(*o, func(name string) bool { return name == older })
	if !renamed {
		set()
		*o = append(*o, older)
	}
}
