// Package passpolicy says what generated passwords look like: how long they are, and which characters they have
// at least how many of. Policies are kept in storage, by namespace and name.
//
// Every password that fulfils its policy is equally likely: characters are drawn from all charsets together, and
// what breaks a rule is thrown away. A policy whose rules throw nearly everything away is refused when it is
// written. Start reading at Parse, then Policy.Generate, then Store.
package passpolicy

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Limits of a policy.
const (
	MaxTextBytes = 8 << 10
	minLength    = 4
	maxLength    = 100
	maxRules     = 32
	maxDepth     = 4 // nesting of braces and brackets
)

// Policy is one parsed policy. It does not change.
type Policy struct {
	text   string // in HCL, as written
	length int    // in characters
	rules  []rule
	chars  []rune   // of all charsets, each once
	member []uint32 // of each of chars: bit i is set if it is in the charset of rules[i]
}

// rule asks for a number of characters of a charset.
type rule struct {
	charset string
	min     int
	line    int
}

// Parse reads a policy in HCL, or in base64 of it:
//
//	length = 20
//	rule "charset" {
//	  charset   = "abcdefghijklmnopqrstuvwxyz"
//	  min-chars = 1
//	}
//
// Errors say which line to change, and never repeat the text. Parse refuses rules that cannot be fulfilled together
// or that chance fulfils too rarely.
func Parse(text string) (*Policy, error) {
	p, err := restore(text)
	if err == nil {
		err = p.tryOut()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// restore is Parse for a policy that has been tried out.
func restore(text string) (*Policy, error) {
	p, err := prepare(text)
	if err == nil {
		return p, nil
	}
	raw, decodeErr := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if decodeErr != nil {
		return nil, err
	}
	return prepare(string(raw))
}

func prepare(text string) (*Policy, error) {
	p, err := readHCL(text)
	if err != nil {
		return nil, err
	}
	p.text = text
	return p, p.join()
}

// join checks the rules and joins their charsets.
func (p *Policy) join() error {
	switch {
	case p.length == 0:
		return errors.New("length is missing: add \"length = 20\"")
	case p.length < minLength || p.length > maxLength:
		return fmt.Errorf("length must be between %d and %d", minLength, maxLength)
	case len(p.rules) == 0:
		return errors.New("there is no rule: add at least one rule \"charset\" { charset = \"…\" }")
	case len(p.rules) > maxRules:
		return fmt.Errorf("there are more than %d rules", maxRules)
	}
	at := map[rune]int{}
	sizes, needed := 0, 0
	for i, r := range p.rules {
		if r.min > p.length {
			return fmt.Errorf("line %d: min-chars is greater than length", r.line)
		}
		needed += r.min
		for _, c := range r.charset {
			if !unicode.IsPrint(c) {
				return fmt.Errorf("line %d: charset contains a character that cannot be printed", r.line)
			}
			n, ok := at[c]
			if !ok {
				n = len(p.chars)
				at[c] = n
				p.chars, p.member = append(p.chars, c), append(p.member, 0)
			}
			if p.member[n]&(1<<i) == 0 {
				p.member[n] |= 1 << i
				sizes++
			}
		}
	}
	if disjoint := sizes == len(p.chars); disjoint && needed > p.length {
		return fmt.Errorf("the rules ask for %d characters together, but length is %d: lower min-chars or raise length", needed, p.length)
	}
	return nil
}

// A policy is accepted if it yields some passwords within so many tries. What was accepted then has a chance of
// about one in ten thousand or better, and generating can rely on many more tries.
const (
	samples     = 20
	sampleTries = samples * 10_000
	maxTries    = 2_000_000
)

func (p *Policy) tryOut() error {
	var d dice
	made := 0
	for n := range sampleTries {
		if made == 0 && n == sampleTries/4 {
			break // hopeless
		}
		if _, ok := p.try(&d); ok {
			if made++; made == samples {
				return nil
			}
		}
	}
	return errors.New("the rules cannot be fulfilled, or too rarely by chance: lower min-chars, raise length, or leave out charsets that no rule needs")
}

// Generate returns a new password. It fails if ctx ends.
func (p *Policy) Generate(ctx context.Context) (string, error) {
	var d dice
	for n := range maxTries {
		if n%1000 == 0 && ctx.Err() != nil {
			return "", ctx.Err()
		}
		if password, ok := p.try(&d); ok {
			return password, nil
		}
	}
	return "", errors.New("generating a password: the rules are hardly ever fulfilled")
}

// try draws one password and reports whether it fulfils the rules.
func (p *Policy) try(d *dice) (string, bool) {
	var has [maxRules]int
	password := make([]rune, p.length)
	for i := range password {
		n := d.below(len(p.chars))
		password[i] = p.chars[n]
		for r := range p.rules {
			has[r] += int(p.member[n] >> r & 1)
		}
	}
	for r := range p.rules {
		if has[r] < p.rules[r].min {
			return "", false
		}
	}
	return string(password), true
}

// dice draws from the system's source of randomness, a buffer at a time. The zero value is ready.
type dice struct {
	buf  [256]byte
	left int
}

// below returns a number in [0, n), each equally likely. n is at most 1<<16.
func (d *dice) below(n int) int {
	for {
		if d.left == 0 {
			rand.Read(d.buf[:]) // never fails
			d.left = len(d.buf)
		}
		v := int(binary.LittleEndian.Uint16(d.buf[d.left-2:]))
		d.left -= 2
		// The last, incomplete run of n would make its numbers likelier than others.
		if v < 1<<16-(1<<16)%n {
			return v % n
		}
	}
}
