// Package local is what the command line keeps on the machine of its user: variables of the environment, the token file, and files that no other
// user can read. It talks to no server.
package local

import "os"

// Env returns a variable of ours, or else one of OpenBao or Vault that is already set. Empty counts as absent.
func Env(name string) string {
	for _, prefix := range []string{"COFFER_", "BAO_", "VAULT_"} {
		if v := os.Getenv(prefix + name); v != "" {
			return v
		}
	}
	return ""
}
