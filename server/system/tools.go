package system

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// maxRandomBytes is how many bytes sys/tools/random gives at once.
const maxRandomBytes = 128 << 10

func (s *System) toolPaths() {
	r := s.router
	for _, path := range []string{"tools/random", "tools/random/{of}", "tools/random/{of}/{count}"} {
		engines.On(r, engines.Update, path, "Return random bytes. The path may name the source and the number of bytes.", 0, random).
			Returns("random_bytes")
	}
	for _, path := range []string{"tools/hash", "tools/hash/{name}"} {
		engines.On(r, engines.Update, path, "Return the hash of an input.", 0, hashOf).Returns("sum")
	}
}

type randomInput struct {
	Of     string `json:"of" max:"64" help:"Of the path: the number of bytes, or the source."`
	Count  string `json:"count" max:"64" help:"Of the path: the number of bytes, behind the source."`
	Bytes  int    `json:"bytes" default:"32" help:"Number of bytes, at most 131072."`
	Source string `json:"source" default:"platform" max:"64" help:"Where they come from: \"platform\", the operating system, is all there is."`
	Format string `json:"format" default:"base64" enum:"base64,hex" help:"\"base64\" or \"hex\"."`
}

func random(_ context.Context, _ *engines.Request, in *randomInput) (*engines.Response, error) {
	if n, err := strconv.Atoi(in.Of); err == nil {
		in.Bytes = n
	} else if in.Of != "" {
		in.Source = in.Of
	}
	if in.Count != "" {
		in.Bytes, _ = strconv.Atoi(in.Count) // 0, which is refused, if it is no number
	}
	switch {
	case in.Source != "platform":
		return nil, engines.Invalid("field \"source\": unsupported entropy source %q: leave it out, or give \"platform\"", in.Source)
	case in.Bytes < 1 || in.Bytes > maxRandomBytes:
		return nil, engines.Invalid("field \"bytes\": must be 1 to %d", maxRandomBytes)
	}
	b := make([]byte, in.Bytes)
	rand.Read(b)
	return &engines.Response{Data: map[string]any{"random_bytes": encodeBytes(b, in.Format)}}, nil
}

type hashInput struct {
	Name      string            `json:"name" max:"64" help:"Of the path: the hash."`
	Algorithm string            `json:"algorithm" default:"sha2-256" enum:"sha2-224,sha2-256,sha2-384,sha2-512,sha3-224,sha3-256,sha3-384,sha3-512" help:"The hash, such as \"sha2-256\"."`
	Input     engines.Sensitive `json:"input" required:"true" help:"What is hashed, base64."`
	Format    string            `json:"format" default:"hex" enum:"base64,hex" help:"\"hex\" or \"base64\"."`
}

var hashes = map[string]func() hash.Hash{
	"sha2-224": sha256.New224, "sha2-256": sha256.New, "sha2-384": sha512.New384, "sha2-512": sha512.New,
	"sha3-224": func() hash.Hash { return sha3.New224() }, "sha3-256": func() hash.Hash { return sha3.New256() },
	"sha3-384": func() hash.Hash { return sha3.New384() }, "sha3-512": func() hash.Hash { return sha3.New512() },
}

func hashOf(_ context.Context, _ *engines.Request, in *hashInput) (*engines.Response, error) {
	input, err := base64.StdEncoding.DecodeString(in.Input.Reveal())
	if err != nil {
		return nil, engines.Invalid("field \"input\": must be base64")
	}
	begin := hashes[cmp.Or(in.Name, in.Algorithm)]
	if begin == nil {
		return nil, engines.Invalid("unsupported algorithm %q: use one of %s", in.Name, strings.Join(slices.Sorted(maps.Keys(hashes)), ", "))
	}
	h := begin()
	h.Write(input)
	return &engines.Response{Data: map[string]any{"sum": encodeBytes(h.Sum(nil), in.Format)}}, nil
}

func encodeBytes(b []byte, format string) string {
	if format == "hex" {
		return hex.EncodeToString(b)
	}
	return base64.StdEncoding.EncodeToString(b)
}
