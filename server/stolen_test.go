package server_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// What somebody can do who has a secondary: its certificate, and all that it stores.

// forge makes a batch token with the key that all clusters of a set have, as no cluster of ours would.
func forge(t *testing.T, key []byte, policies ...string) string {
	t.Helper()
	const purpose = "coffer batch token 1"
	text, err := json.Marshal(map[string]any{"v": 1, "p": policies, "n": "root", "w": "auth/token/create", "c": time.Now().UnixNano(), "t": time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 24)
	rand.Read(random)
	derived, err := hkdf.Expand(sha256.New, key, purpose+"\x00"+string(random[:12]), 32)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return "hvb." + base64.RawURLEncoding.EncodeToString(aead.Seal(random, random[12:], text, []byte(purpose)))
}

// batchKey is the key as somebody reads it who has the whole of a secondary.
func (in *instance) batchKey() []byte {
	in.t.Helper()
	e, err := in.store.Get(context.Background(), "s/sys/set/keys")
	if err != nil {
		in.t.Fatal(err)
	}
	var keys struct {
		Batch []byte `json:"batch"`
	}
	if err := json.Unmarshal(e.Value, &keys); err != nil {
		in.t.Fatal(err)
	}
	return keys.Batch
}

// TestForgedBatchTokens: the key of batch tokens, which every secondary has, makes no root tokens.
func TestForgedBatchTokens(t *testing.T) {
	primary, secondary, _ := follow(t)
	key := secondary.batchKey()
	primary.must(forge(t, key, "default"), engines.Read, "auth/token/lookup-self", "") // the forgery is a good one
	for _, policies := range [][]string{{"root"}, {"default", "root"}, {"Root"}, {" root "}, {"response-wrapping"}} {
		if _, err := primary.do(forge(t, key, policies...), engines.Read, "sys/mounts", ""); kind(err) != engines.KindDenied {
			t.Errorf("a forged batch token with the policies %q: %v, want denied", policies, err)
		}
	}
}

// TestRevokedSecondaryHasNoKey: a secondary that is revoked, or a set that a cluster leaves, takes the key of its batch
// tokens along. It is worth nothing afterwards.
func TestRevokedSecondaryHasNoKey(t *testing.T) {
	primary := start(t)
	primary.must(primary.root, engines.Update, "sys/replication/performance/primary/enable", `{}`)
	enrolled := func(id string) {
		t.Helper()
		value := `{"format":1,"id":"` + id + `","state":"active","cluster_id":"cluster-` + id + `","enrolment":"e"}`
		primary.plant(storage.Key("l/replication/secondary/"+hex.EncodeToString([]byte(id))), value)
	}
	primary.must(primary.root, engines.Update, "sys/policies/acl/admin", `{"policy":"path \"*\" { capabilities = [\"read\",\"sudo\"] }"}`)
	for name, leave := range map[string]func(){
		"revoked": func() {
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/revoke-secondary", `{"id":"b"}`)
		},
		"disabled": func() {
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/disable", `{}`)
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/enable", `{}`)
		},
	} {
		enrolled("b")
		token := forge(t, primary.batchKey(), "admin")
		primary.must(token, engines.Read, "sys/mounts", "")
		leave()
		if _, err := primary.do(token, engines.Read, "sys/mounts", ""); kind(err) != engines.KindDenied {
			t.Errorf("%s: a batch token forged with the key of before: %v, want denied", name, err)
		}
	}
	// A token that nobody has used has taken nothing along.
	token := forge(t, primary.batchKey(), "admin")
	primary.plant(storage.Key("l/replication/secondary/"+hex.EncodeToString([]byte("c"))), `{"format":1,"id":"c","state":"issued"}`)
	primary.must(primary.root, engines.Update, "sys/replication/performance/primary/revoke-secondary", `{"id":"c"}`)
	primary.must(token, engines.Read, "sys/mounts", "")
}

// plant stores an entry past everything.
func (in *instance) plant(key storage.Key, value string) {
	in.t.Helper()
	if _, err := in.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}}); err != nil {
		in.t.Fatal(err)
	}
}
