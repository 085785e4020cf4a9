package process

import (
	"os/user"
	"testing"
)

func TestPermittedUser(t *testing.T) {
	other := &user.User{Uid: "1234", Username: "plugins"}
	for euid, want := range map[int]bool{0: true, 1234: true, 1000: false} {
		if err := permitted(euid, other); (err == nil) != want {
			t.Errorf("a server of user %d: %v", euid, err)
		}
	}
}
