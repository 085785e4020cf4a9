package seal_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/seal"
)

func TestChallenge(t *testing.T) {
	w := seal.NewKEKWrapper(keyA)
	answer := func(t *testing.T, w seal.Wrapper, c *seal.Challenges, id string) []byte {
		t.Helper()
		blob, err := c.Issue(t.Context(), w, id)
		if err != nil {
			t.Fatal(err)
		}
		nonce, err := seal.AnswerChallenge(t.Context(), w, id, blob)
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
	t.Run("wrong answers", func(t *testing.T) {
		var c, other seal.Challenges
		nonce := answer(t, w, &c, "n1")
		refused(t, &c, "n1", nonce[:31])
		refused(t, &c, "n1", append(nonce, 0))
		refused(t, &c, "n1", answer(t, w, &other, "n1"))
		for i := range nonce {
			nonce[i] ^= 1
			refused(t, &c, "n1", nonce)
			nonce[i] ^= 1
		}
		if err := c.Verify("n1", nonce); err != nil {
			t.Errorf("the right answer after wrong ones: %v", err)
		}
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
		blob, _ := c.Issue(t.Context(), w, "n3")
		if _, err := seal.AnswerChallenge(t.Context(), w, "n4", blob); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("answering another server's challenge: %v, want ErrWrongKey", err)
		}
	})
	t.Run("strangers cannot make it void", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		for i := range 1000 {
			for _, id := range []string{"n1", fmt.Sprint("m", i)} {
				if _, err := c.Issue(t.Context(), w, id); err != nil {
					t.Fatal(err)
				}
				refused(t, &c, id, nonce[:i%len(nonce)])
			}
		}
		if err := c.Verify("n1", nonce); err != nil {
			t.Errorf("after a thousand challenges to others: %v", err)
		}
	})
	t.Run("wrong seal", func(t *testing.T) {
		blob, err := new(seal.Challenges).Issue(t.Context(), w, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.AnswerChallenge(t.Context(), seal.NewKEKWrapper(keyB), "n1", blob); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("AnswerChallenge = %v, want ErrWrongKey", err)
		}
	})
	t.Run("not an oracle", func(t *testing.T) {
		blob, err := seal.WrapRoot(t.Context(), w, rootKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.AnswerChallenge(t.Context(), w, "n1", blob); !errors.Is(err, seal.ErrWrongKey) {
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
	t.Run("answered once, also by many at a time", func(t *testing.T) {
		var c seal.Challenges
		nonce := answer(t, w, &c, "n1")
		var wg sync.WaitGroup
		var accepted atomic.Int32
		for range 8 {
			wg.Go(func() {
				if c.Verify("n1", nonce) == nil {
					accepted.Add(1)
				}
			})
		}
		wg.Wait()
		if n := accepted.Load(); n != 1 {
			t.Errorf("accepted %d times, want once", n)
		}
	})
}
