//go:build race

package lease_test

const many = 4_500
