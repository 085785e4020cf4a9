package cloud1ssmtest

import (
	"maps"
	"time"
)

// Put writes a value as another client would: a new parameter of the type SecureString, or a new version.
func (s *Server) Put(name, value string) {
	s.Lock()
	defer s.Unlock()
	p := s.find(name)
	if p == nil {
		p = &parameter{Parameter: Parameter{Name: name, Type: "SecureString", Tier: "Standard", KeyID: ownKey, Tags: map[string]string{}, Modified: map[int]time.Time{}}}
		s.parameters = append(s.parameters, p)
	}
	p.Value = value
	s.write(p, s.NowLocked())
}

// Get returns what another client reads under a name.
func (s *Server) Get(name string) (value string, ok bool) {
	p, ok := s.Parameter(name)
	return p.Value, ok
}

// Parameter returns the parameter of a name, and whether there is one.
func (s *Server) Parameter(name string) (Parameter, bool) {
	s.Lock()
	defer s.Unlock()
	p := s.find(name)
	if p == nil {
		return Parameter{}, false
	}
	is := p.Parameter
	is.Tags, is.Modified = maps.Clone(p.Tags), maps.Clone(p.Modified)
	return is, true
}

// Change changes a parameter of another client's; without a limit.
func (s *Server) Change(name string, f func(p *Parameter)) {
	s.Lock()
	defer s.Unlock()
	f(&s.find(name).Parameter)
}

// Label labels the current version of a parameter.
func (s *Server) Label(name string) {
	s.Lock()
	defer s.Unlock()
	p := s.find(name)
	p.label = p.Version
}

// Drop removes a parameter.
func (s *Server) Drop(name string) {
	s.Lock()
	defer s.Unlock()
	s.drop(s.find(name))
}

// Seal keeps clients from decrypting values.
func (s *Server) Seal(sealed bool) {
	s.Lock()
	defer s.Unlock()
	s.sealed = sealed
}

// Fill makes the account take no more parameters.
func (s *Server) Fill(full bool) {
	s.Lock()
	defer s.Unlock()
	s.full = full
}
