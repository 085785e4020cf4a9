package policy

// NewACL joins policies of the root namespace. One that is Root makes all others irrelevant. Rules past their
// expiration and templates are left out.
func NewACL(policies ...*Policy) *ACL {
	var b builder
	b.add(Scope{Namespace: rootNS}, nil, policies)
	return b.acl()
}
