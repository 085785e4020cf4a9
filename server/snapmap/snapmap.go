// Package snapmap has an immutable hash map. With and Without return a changed map that shares the rest with the one before, so that a change costs
// the same however large the map is, up to some 100,000 entries. Readers need no lock. Looking up costs what it does in a Go map.
package snapmap

import (
	"hash/maphash"
	"iter"
)

// fan is the number of branches at each of the three levels: 32,768 chains, which hold a few entries each in the largest maps.
const fan = 32

// Map is empty as its zero value. Its methods are safe for concurrent use.
type Map[K comparable, V any] struct {
	root *[fan]*[fan]*[fan]*entry[K, V]
	size int
}

type entry[K comparable, V any] struct {
	key   K
	value V
	next  *entry[K, V]
}

var seed = maphash.MakeSeed()

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.size }

// Get returns the value of a key, and whether there is one.
func (m Map[K, V]) Get(key K) (value V, ok bool) {
	if m.root == nil {
		return value, false
	}
	h := maphash.Comparable(seed, key)
	if middle := m.root[h%fan]; middle != nil {
		if low := middle[h/fan%fan]; low != nil {
			for e := low[h/fan/fan%fan]; e != nil; e = e.next {
				if e.key == key {
					return e.value, true
				}
			}
		}
	}
	return value, false
}

// With returns the map with this value for the key.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	out, chain := m.take(key)
	*chain, out.size = &entry[K, V]{key, value, *chain}, out.size+1
	return out
}

// Without returns the map without the key.
func (m Map[K, V]) Without(key K) Map[K, V] {
	if _, ok := m.Get(key); !ok {
		return m
	}
	out, _ := m.take(key)
	return out
}

// take returns a map without the key, and the chain that the key would be in, which only this map has.
func (m Map[K, V]) take(key K) (Map[K, V], **entry[K, V]) {
	h := maphash.Comparable(seed, key)
	m.root = clone(m.root)
	middle := &m.root[h%fan]
	*middle = clone(*middle)
	low := &(*middle)[h/fan%fan]
	*low = clone(*low)
	chain := &(*low)[h/fan/fan%fan]
	var rest *entry[K, V]
	for e := *chain; e != nil; e = e.next {
		if e.key == key {
			m.size--
		} else {
			rest = &entry[K, V]{e.key, e.value, rest}
		}
	}
	*chain = rest
	return m, chain
}

func clone[T any](p *[fan]T) *[fan]T {
	var c [fan]T
	if p != nil {
		c = *p
	}
	return &c
}

// Values returns the values in no order.
func (m Map[K, V]) Values() []V {
	out := make([]V, 0, m.size)
	for _, v := range m.All() {
		out = append(out, v)
	}
	return out
}

// All yields the entries in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.root == nil {
			return
		}
		for _, middle := range m.root {
			if middle == nil {
				continue
			}
			for _, low := range middle {
				if low == nil {
					continue
				}
				for _, e := range low {
					for ; e != nil; e = e.next {
						if !yield(e.key, e.value) {
							return
						}
					}
				}
			}
		}
	}
}
