package webhost

// Decode is what answers of the list and of creations go through; it returns the names in them.
func Decode(data []byte) ([]string, error) {
	a, err := decodeAnswer(data)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range append(a.Envs, a.Created...) {
		out = append(out, r.Key)
	}
	return out, nil
}

// CommentOf is the comment with an ownership tag, and MarkOf finds it.
var (
	CommentOf = comment
	MarkOf    = markOf
)
