//go:build !race

package lease_test

const many = 30_000
