// Package state has the stored records of secret sync, and their keys. All are of class s, so that another cluster that becomes the
// primary continues from them. Below "sys/<namespace id>/sync/":
//
//	d/<type>/<name>                                    a Destination
//	a/<destination id>/<association id>                an Association
//	l/<destination id>/<association id>/<secret name>  the Link of one associated secret
//	g/<name>                                           a githubapp.App
//	r/<type>/<name>                                    the Redeploy of a destination
//	n/<destination id>                                 Newest: when the last association was created
//	k/<destination id>                                 the DriftCheck of a destination
//	o/<type>/<name>                                    Orphans: names that were let go at the destination
//
// and in the root namespace, because locations are the same for all namespaces:
//
//	config                                             the Config
//	installation                                       the id that ownership tags begin with
//	c/<hash of location>/<hash of name>                the Claim of a name at a location
//
// Records only grow. One that cannot be decoded is an engines.UnreadableError: its callers leave it, and what it is about, unchanged.
// Start reading at Association, then Link.
package state

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
)

// Area returns the key prefix of a namespace.
func Area(ns, rest string) storage.Key {
	return storage.NewKey(storage.Shared, "sys", ns+"/sync/"+rest)
}

const RootNS = "root"

func DestinationKey(ns, kind, name string) storage.Key { return Area(ns, "d/"+kind+"/"+name) }

// NewestKey is written whenever an association is made. A transaction that wants none to be there, which a scan does not make sure
// of, reads it.
func NewestKey(ns, dest string) storage.Key { return Area(ns, "n/"+dest) }

func DriftCheckKey(ns, dest string) storage.Key { return Area(ns, "k/"+dest) }

func AssociationKey(ns, dest, id string) storage.Key { return Area(ns, "a/"+dest+"/"+id) }

func LinkKey(ns, dest, association, secret string) storage.Key {
	return Area(ns, "l/"+dest+"/"+association+"/"+secret)
}

// ClaimKey is where the claim of a name is. name is folded.
func ClaimKey(kind, place, name string) storage.Key {
	return Area(RootNS, "c/"+Hash(kind, place)+"/"+Hash(name))
}

// Hash is 32 digits that stand for texts.
func Hash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// SplitKey takes a key below "sys/<namespace id>/sync/" apart; kind is "" for others.
func SplitKey(key storage.Key) (ns, kind, rest string) {
	ns, path, ok := strings.Cut(key.Path(), "/sync/")
	if !ok || strings.Contains(ns, "/") {
		return "", "", ""
	}
	kind, rest, _ = strings.Cut(path, "/")
	return ns, kind, rest
}

// DescribeKey returns the kind of a record, and the destination or association that it belongs to.
func DescribeKey(key storage.Key) (kind, owner string) {
	ns, kind, owner := SplitKey(key)
	kinds := map[string]string{"d": "destination", "a": "association", "l": "link", "c": "claim", "n": "newest association"}
	switch name, ok := kinds[kind]; {
	case ok:
		kind = name
	case kind == "":
		return "other", key.Area()
	}
	if parts := strings.SplitN(owner, "/", 3); len(parts) > 2 { // what follows is the name of a secret
		owner = parts[0] + "/" + parts[1]
	}
	return kind, ns + "/" + owner
}

func Fold(r destination.Rules, name string) string {
	if r.Fold == nil {
		return name
	}
	return r.Fold(name)
}
