//go:build !race

package lease_test

const many = 100_000
