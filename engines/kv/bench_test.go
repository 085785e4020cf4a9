package kv_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

func benchmarkMount(b *testing.B) *enginetest.Mount {
	m := newV2(b)
	for range 10 {
		put(m, "team/app/database", `{"user":"u","password":"`+strings.Repeat("p", 1000)+`"}`)
	}
	return m
}

func BenchmarkV2Read(b *testing.B) {
	m := benchmarkMount(b)
	req := m.Request(engines.Read, "data/team/app/database", nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Handle(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkV2Write(b *testing.B) {
	m := benchmarkMount(b)
	req := m.Request(engines.Update, "data/team/app/database", `{"data":{"user":"u","password":"`+strings.Repeat("p", 1000)+`"}}`)
	b.ReportAllocs()
	for b.Loop() {
		req.Op = engines.Update
		if _, err := m.Handle(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
