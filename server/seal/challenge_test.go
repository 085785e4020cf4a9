package seal_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/seal"
)

func TestChallenge(t *testing.T) {
	w := seal.NewKEKWrapper(keyA)
	answer := func(t *testing.T, w seal.Wrapper, c *seal.Challenges, id string) []byte {
		t.Helper()
		blob, err := c.Issue(w, id)
		if err != nil {
			t.Fatal(err)
		}
		nonce, err := seal.AnswerChallenge(w, id, blob)
		if err != nil {
			t.Fatal(err)
		}
		return nonce
	}
	refused := func(t *testing.T, c *seal.Challenges, id string, answer []byte) {
		t.Helper()
		if err := c.Verify(id, answer); !errors.Is(err, seal.ErrChallenge) {
			t.Errorf("Verify = %v, want ErrChallenge", err)
		}
	}
	t.Run("answered once", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		if err := c.Verify("n1", nonce); err != nil {
			t.Fatal(err)
		}
		refused(t, &c, "n1", nonce)
	})
	t.Run("wrong answer uses it up", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		refused(t, &c, "n1", nonce[:31])
		refused(t, &c, "n1", nonce)
	})
	t.Run("empty answer to no challenge", func(t *testing.T) {
		var c seal.Challenges
		refused(t, &c, "n1", nil)
	})
	t.Run("other server", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		answer(t, w, &c, "n2")
		refused(t, &c, "n2", nonce)
		blob, _ := c.Issue(w, "n3")
		if _, err := seal.AnswerChallenge(w, "n4", blob); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("answering another server's challenge: %v, want ErrWrongKey", err)
		}
	})
	t.Run("replaced", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		answer(t, w, &c, "n1")
		refused(t, &c, "n1", nonce)
	})
	t.Run("cleared", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		c.Clear()
		refused(t, &c, "n1", nonce)
	})
	t.Run("wrong seal", func(t *testing.T) {
		blob, _, err := seal.NewChallenge(w, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.AnswerChallenge(seal.NewKEKWrapper(keyB), "n1", blob); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("AnswerChallenge = %v, want ErrWrongKey", err)
		}
	})
	t.Run("not an oracle", func(t *testing.T) {
		blob, err := seal.WrapRoot(w, rootKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.AnswerChallenge(w, "n1", blob); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("a wrapped root key as a challenge: %v, want ErrWrongKey", err)
		}
	})
	t.Run("expires", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c seal.Challenges
			early, late := answer(t, w, &c, "early"), answer(t, w, &c, "late")
			time.Sleep(seal.ChallengeTTL - time.Second)
			if err := c.Verify("early", early); err != nil {
				t.Errorf("just in time: %v", err)
			}
			time.Sleep(time.Second)
			refused(t, &c, "late", late)
		})
	})
	t.Run("bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c seal.Challenges
			nonces := map[string][]byte{}
			for i := range 300 {
				id := fmt.Sprint("n", i)
				nonces[id] = answer(t, w, &c, id)
				time.Sleep(time.Millisecond)
			}
			refused(t, &c, "n43", nonces["n43"])
			for _, id := range []string{"n44", "n299"} {
				if err := c.Verify(id, nonces[id]); err != nil {
					t.Errorf("%s, one of the newest 256: %v", id, err)
				}
			}
		})
	})
}
