//go:build race

package lease_test

const many = 8_000
