package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// maxSuccessions is how many changes of the CA a node can have missed and still know the newest by its predecessors.
const maxSuccessions = 16

// Trust is what the nodes of a cluster go by on the cluster port: which key each member has, and which CA issues
// certificates. It holds no secret. The leader changes it as a whole, each time under a higher generation.
type Trust struct {
	Format     int               `json:"format"` // 1
	Generation uint64            `json:"generation"`
	CA         []byte            `json:"ca"`         // certificate, DER
	Successors [][]byte          `json:"successors"` // CA certificates, DER, oldest first, each issued by the CA before
	Members    map[NodeID]Member `json:"members"`
	Removed    []NodeID          `json:"removed,omitempty"` // members that knew the CA's key and are none any more

	ca *x509.Certificate
}

// Member is what is registered of one node.
type Member struct {
	Key         []byte    `json:"key"`         // public, SubjectPublicKeyInfo
	Certificate []byte    `json:"certificate"` // by CA, DER
	Since       time.Time `json:"since"`       // registered, by the leader's clock
}

// NewTrust returns what a node without a registry goes by: the CA.
func NewTrust(ca CA) (*Trust, error) {
	block, _ := pem.Decode(ca.Cert)
	if block == nil {
		return nil, errors.New("the cluster CA holds no certificate")
	}
	t := &Trust{Format: 1, CA: block.Bytes, Members: map[NodeID]Member{}}
	return t, t.parse()
}

// DecodeTrust reads what Encode wrote.
func DecodeTrust(text []byte) (*Trust, error) {
	t := &Trust{}
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("decoding the cluster's register of members: %w", err)
	}
	if t.Format != 1 {
		return nil, fmt.Errorf("decoding the cluster's register of members: its format is %d", t.Format)
	}
	if t.Members == nil {
		t.Members = map[NodeID]Member{}
	}
	return t, t.parse()
}

// Encode returns the text that DecodeTrust reads.
func (t *Trust) Encode() ([]byte, error) { return json.Marshal(t) }

// Authority returns the CA's certificate.
func (t *Trust) Authority() *x509.Certificate { return t.ca }

func (t *Trust) parse() (err error) {
	if t.ca, err = x509.ParseCertificate(t.CA); err != nil {
		return fmt.Errorf("the cluster CA: %w", err)
	}
	return nil
}

// Clone returns a copy that can be changed.
func (t *Trust) Clone() *Trust {
	c := *t
	c.Members, c.Removed, c.Successors = maps.Clone(t.Members), slices.Clone(t.Removed), slices.Clone(t.Successors)
	return &c
}

// Has reports whether the key is the one registered for the node.
func (t *Trust) Has(id NodeID, key []byte) bool {
	m, ok := t.Members[id]
	return ok && bytes.Equal(m.Key, key)
}

// Register gives a node a certificate for its key.
func (t *Trust) Register(ca CA, id NodeID, key []byte) error {
	public, err := x509.ParsePKIXPublicKey(key)
	if err != nil {
		return fmt.Errorf("the public key of %q: %w", id, err)
	}
	cert, err := ca.sign(id, public, LastingName)
	if err != nil {
		return err
	}
	since := time.Now()
	if old, ok := t.Members[id]; ok && bytes.Equal(old.Key, key) {
		since = old.Since
	}
	t.Members[id] = Member{Key: key, Certificate: cert, Since: since}
	t.Removed = slices.DeleteFunc(t.Removed, func(r NodeID) bool { return r == id })
	return nil
}

// Remove ends a member's certificate.
func (t *Trust) Remove(id NodeID) {
	delete(t.Members, id)
	if !slices.Contains(t.Removed, id) {
		t.Removed = append(t.Removed, id)
	}
}

// IsOf reports whether ca is the one whose certificates count.
func (t *Trust) IsOf(ca CA) bool {
	block, _ := pem.Decode(ca.Cert)
	return block != nil && bytes.Equal(block.Bytes, t.CA)
}

// Rotate replaces the CA, and with it every certificate. old vouches for the new one, if it is
// the one that counted.
func (t *Trust) Rotate(old CA) (CA, error) {
	ca, err := NewCA()
	if err != nil {
		return CA{}, err
	}
	block, _ := pem.Decode(ca.Cert)
	vouches := t.IsOf(old)
	t.CA = block.Bytes
	if err := t.parse(); err != nil {
		return CA{}, err
	}
	if vouches {
		successor, err := old.vouch(t.ca)
		if err != nil {
			return CA{}, err
		}
		t.Successors = append(t.Successors, successor)
		t.Successors = t.Successors[max(0, len(t.Successors)-maxSuccessions):]
	} else {
		t.Successors = nil
	}
	for id, m := range t.Members {
		if err := t.Register(ca, id, m.Key); err != nil {
			return CA{}, err
		}
	}
	t.Removed = nil
	return ca, nil
}

// Renew issues new certificates in place of those that end soon, or are of another CA. It reports whether there were any.
func (t *Trust) Renew(ca CA) (changed bool, err error) {
	for id, m := range t.Members {
		if !t.due(m) {
			continue
		}
		if err := t.Register(ca, id, m.Key); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

func (t *Trust) due(m Member) bool {
	cert, err := x509.ParseCertificate(m.Certificate)
	return err != nil || time.Until(cert.NotAfter) < LeafRenewal || cert.CheckSignatureFrom(t.ca) != nil
}

// Issuer checks that the first certificate, of a node, was issued by the CA, or by one that succeeded it: the others that
// the node showed are looked at for that. It returns how many successions lie between.
func (t *Trust) Issuer(shown []*x509.Certificate, now time.Time) (successions int, err error) {
	leaf := shown[0]
	if leaf.IsCA || now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return 0, errors.New("the certificate is not valid now")
	}
	known := []*x509.Certificate{t.ca}
	for _, c := range shown[1:min(len(shown), maxSuccessions+1)] {
		for _, k := range known {
			if c.CheckSignatureFrom(k) == nil {
				known = append(known, c)
				break
			}
		}
	}
	for n, k := range known {
		if leaf.CheckSignatureFrom(k) == nil && now.Before(k.NotAfter) {
			return n, nil
		}
	}
	return 0, errors.New("the certificate is not of this cluster's CA")
}
