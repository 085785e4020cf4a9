// Package suggest finds what a user may have meant by a name that does not exist. Start with Name; Elsewhere has the words of other products.
package suggest

import "strings"

// Elsewhere are commands of Vault and OpenBao that have another name here, or do not exist. The text follows "there is no command …".
var Elsewhere = map[string]string{
	"agent":     `any agent of Vault or OpenBao works with this server; "coffer run" gives secrets to a program`,
	"proxy":     `any proxy of Vault or OpenBao works with this server`,
	"get":       `secrets are read with "coffer kv get"`,
	"put":       `secrets are written with "coffer kv put"`,
	"ls":        `names are listed with "coffer list" and "coffer kv list"`,
	"scan":      `names are listed with "coffer list" and "coffer kv list"`,
	"set":       `secrets are written with "coffer kv put"`,
	"exec":      `programs are run with secrets by "coffer run"`,
	"env":       `programs are run with secrets by "coffer run", and "coffer export dotenv" prints them`,
	"logout":    `a token is given up with "coffer token revoke -self"`,
	"profile":   `several clusters are kept with "coffer context"`,
	"diagnose":  `see "coffer operator diagnose"`,
	"init":      `see "coffer operator init"`,
	"unseal":    `see "coffer operator unseal"`,
	"raft":      `see "coffer operator raft"`,
	"snapshot":  `see "coffer operator raft snapshot"`,
	"unlock":    `see "coffer namespace unlock"`,
	"lock":      `see "coffer namespace lock"`,
	"events":    `the server has no events; "coffer monitor" prints its log`,
	"pki":       `the server has no PKI engine`,
	"ssh":       `the server has no SSH engine`,
	"transit":   `the server has no transit engine`,
	"transform": `the server has no transform engine`,
	"hcp":       `there is no hosted Coffer`,

	"kv scan":                    `names are listed with "coffer kv list"`,
	"kv move":                    `engines are moved with "coffer secrets move"`,
	"token list":                 `accessors are listed with "coffer list auth/token/accessors"`,
	"token list-accessors":       `accessors are listed with "coffer list auth/token/accessors"`,
	"operator usage":             `numbers are in the metrics: "coffer read sys/metrics"`,
	"operator utilization":       `numbers are in the metrics: "coffer read sys/metrics"`,
	"operator migrate":           `data of another server is brought here with "coffer import vault"`,
	"operator import":            `data of another server is brought here with "coffer import vault"`,
	"operator status":            `see "coffer status"`,
	"operator monitor":           `see "coffer monitor"`,
	"operator raft peers":        `see "coffer operator raft list-peers"`,
	"operator raft list-nodes":   `see "coffer operator raft list-peers"`,
	"operator raft demote-peer":  `see "coffer operator raft demote"`,
	"operator raft promote-peer": `see "coffer operator raft promote"`,
	"operator snapshot":          `see "coffer operator raft snapshot"`,
	"sync destinations create":   `see "coffer sync destinations write"`,
	"sync destinations update":   `see "coffer sync destinations write"`,
}

// destructive are names that are never suggested: a user who repeats the suggestion loses something.
var destructive = []string{
	"delete", "destroy", "revoke", "disable", "remove", "seal", "restore", "force", "forget", "demote", "step-down", "rotate", "rekey", "dissociate", "purge", "tidy", "overwrite",
}

func isDestructive(name string) bool {
	for _, word := range destructive {
		if strings.HasPrefix(name, word) {
			return true
		}
	}
	return false
}

// Name returns the name nearest to a mistyped one, or "". A name is near within two edits, or one for names of less than six letters.
func Name(names []string, typed string) string {
	best, least := "", 1+min(2, len(typed)/3)
	for _, name := range names {
		if d := edits(name, typed); d < least && len(name) > 1 {
			best, least = name, d
		}
	}
	return best
}

// Command is Name, without names of commands that destroy something.
func Command(names []string, typed string) string {
	var harmless []string
	for _, name := range names {
		if !isDestructive(name) {
			harmless = append(harmless, name)
		}
	}
	return Name(harmless, typed)
}

// edits counts the insertions, removals, replacements and swaps of neighbours that lead from a to b.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
