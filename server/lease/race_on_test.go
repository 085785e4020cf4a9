//go:build race

package lease_test

const many = 15_000
