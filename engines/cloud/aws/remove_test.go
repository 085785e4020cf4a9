package aws_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

// furnish makes a user with two of everything that keeps it from being removed.
func furnish(t *testing.T, s *awstest.Server, name string) {
	t.Helper()
	c := connect(t, s, nil)
	s.AddUser(name)
	for i := range 2 {
		s.AddKey(name)
		s.Attach(name, s.AddPolicy(fmt.Sprint("policy", i)))
		do(t, c.PutUserPolicy(t.Context(), name, fmt.Sprint("inline", i), document))
		s.AddGroup(awstest.Group{Name: fmt.Sprint("group", i)})
		do(t, c.AddUserToGroup(t.Context(), name, fmt.Sprint("group", i)))
		s.AddMFADevice(name, fmt.Sprintf("arn:aws:iam::%s:mfa/%s%d", s.ID, name, i))
		s.AddMFADevice(name, fmt.Sprint("GAHT1234567", i))
		s.AddCertificate(name)
		s.AddSSHKey(name)
		s.AddServiceCredential(name)
	}
	s.AddLoginProfile(name)
	s.Forget()
}

// removals are the calls that take something away, in the order in which RemoveUser makes them.
var removals = []string{
	"DeleteAccessKey", "DetachUserPolicy", "DeleteUserPolicy", "RemoveUserFromGroup", "DeleteUser", "DeleteLoginProfile", "DeactivateMFADevice",
	"DeleteVirtualMFADevice", "DeleteSigningCertificate", "DeleteSSHPublicKey", "DeleteServiceSpecificCredential",
}

func TestRemoveUser(t *testing.T) {
	for _, size := range []int{1, 100} {
		t.Run(fmt.Sprintf("%d on a page", size), func(t *testing.T) {
			s := awstest.New(t, awstest.PageSize(size))
			furnish(t, s, "u")
			c := connect(t, s, nil)
			s.Forget()
			do(t, c.RemoveUser(t.Context(), "u"))
			if _, ok := s.User("u"); ok || len(s.VirtualDevices()) != 0 {
				t.Errorf("still there: %+v, devices %q", s.Users(), s.VirtualDevices())
			}
			at := -1
			for _, action := range s.Actions()[:len(s.Actions())-1] {
				if i := slices.Index(removals, action); i >= 0 {
					if i < at && action != "DeactivateMFADevice" { // which takes turns with DeleteVirtualMFADevice
						t.Errorf("%s is called after %s", action, removals[at])
					}
					at = i
				}
			}
			if calls := s.Calls(); calls[0].Action != "ListAccessKeys" || calls[len(calls)-1].Action != "DeleteUser" {
				t.Errorf("RemoveUser calls %q, want keys first and the user last", s.Actions())
			}
			s.Forget()
			do(t, c.RemoveUser(t.Context(), "u"))
			if len(s.Users()) != 1 {
				t.Errorf("%d users are left, want that of the root credentials", len(s.Users()))
			}
		})
	}
}

// A user like ours costs few calls, for there are many of them.
func TestRemoveUserOfOurs(t *testing.T) {
	s := awstest.New(t)
	c := connect(t, s, nil)
	s.AddUser("u")
	s.AddKey("u")
	s.Attach("u", readOnly)
	do(t, c.RemoveUser(t.Context(), "u"))
	want := []string{"ListAccessKeys", "DeleteAccessKey", "ListAttachedUserPolicies", "DetachUserPolicy", "ListUserPolicies", "ListGroupsForUser", "DeleteUser"}
	if got := s.Actions(); !slices.Equal(got, want) {
		t.Errorf("RemoveUser calls %q, want %q", got, want)
	}
}

// Without a name the provider would take it to be about the user of the root credentials.
func TestRemoveUserWithoutAName(t *testing.T) {
	s := awstest.New(t)
	err := connect(t, s, nil).RemoveUser(t.Context(), "")
	if aws.KindOf(err) != aws.Invalid || len(s.Calls()) != 0 {
		t.Errorf("RemoveUser fails with %v after %q, want Invalid before any call", err, s.Actions())
	}
	if len(s.Keys("root-user")) != 1 {
		t.Error("a key of the root credentials is gone")
	}
}

// Another client removes the same things at the same time.
func TestRemoveUserWhatIsGone(t *testing.T) {
	for _, action := range append([]string{"ListAccessKeys", "ListGroupsForUser", "ListMFADevices", "ListSSHPublicKeys"}, removals...) {
		t.Run(action, func(t *testing.T) {
			s := awstest.New(t)
			furnish(t, s, "u")
			c := connect(t, s, nil)
			// The call is carried out, and answered as if another client had been faster.
			s.FailNext(1, action, awstest.Fault{When: awstest.AfterCommit, Status: 404, Code: "NoSuchEntity"})
			err := c.RemoveUser(t.Context(), "u")
			if action == "DeleteUser" { // it was refused in truth
				if err != nil {
					t.Error(err)
				}
				return
			}
			if _, ok := s.User("u"); ok || err != nil {
				t.Errorf("RemoveUser: %v; still there: %v", err, ok)
			}
		})
	}
}

func TestRemoveUserConflicts(t *testing.T) {
	newClient := func(t *testing.T, s *awstest.Server) (*aws.Client, *[]int) {
		var waits []int
		return connect(t, s, func(o *aws.Options) {
			o.Backoff = func(attempt int) time.Duration { waits = append(waits, attempt); return 0 }
		}), &waits
	}
	t.Run("that pass", func(t *testing.T) {
		s := awstest.New(t)
		c, waits := newClient(t, s)
		furnish(t, s, "u")
		added := 0
		s.Fail(func(call awstest.Call) awstest.Fault {
			if call.Action == "DeleteUser" && added < 4 { // two in each round
				added++
				s.AddKey("u")
			}
			return awstest.Fault{}
		})
		do(t, c.RemoveUser(t.Context(), "u"))
		if _, ok := s.User("u"); ok || !slices.Equal(*waits, []int{1, 2}) {
			t.Errorf("still there: %v; waited after rounds %v, want 1, 2", ok, *waits)
		}
	})
	t.Run("of a step", func(t *testing.T) {
		s := awstest.New(t)
		c, waits := newClient(t, s)
		furnish(t, s, "u")
		s.FailNext(2, "DeleteLoginProfile", awstest.Fault{Code: "EntityTemporarilyUnmodifiable"})
		do(t, c.RemoveUser(t.Context(), "u"))
		if len(*waits) != 2 {
			t.Errorf("waited %d times, want 2", len(*waits))
		}
	})
	t.Run("that stay", func(t *testing.T) {
		s := awstest.New(t)
		c, waits := newClient(t, s)
		s.AddUser("u")
		s.FailNext(1000, "DeleteUser", awstest.Fault{Code: "DeleteConflict"})
		err := c.RemoveUser(t.Context(), "u")
		check(t, "DeleteUser", err, aws.Conflict, "DeleteConflict")
		if len(*waits) != 5 || count(s, "DeleteUser") != 12 {
			t.Errorf("waited %d times for %d calls, want 5 and 12", len(*waits), count(s, "DeleteUser"))
		}
	})
	t.Run("until the context ends", func(t *testing.T) {
		s := awstest.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		c := connect(t, s, func(o *aws.Options) {
			o.Backoff = func(int) time.Duration { cancel(); return time.Hour }
		})
		s.AddUser("u")
		s.FailNext(1000, "DeleteUser", awstest.Fault{Code: "DeleteConflict"})
		if err := c.RemoveUser(ctx, "u"); !errors.Is(err, context.Canceled) || aws.KindOf(err) != aws.Unavailable {
			t.Errorf("RemoveUser fails with %v, want that the context ended", err)
		}
	})
}

// Root credentials whose policy does not have every call.
func TestRemoveUserWhatIsNotAllowed(t *testing.T) {
	deny := func(s *awstest.Server, actions ...string) {
		s.Fail(func(c awstest.Call) awstest.Fault {
			if slices.Contains(actions, c.Action) {
				return awstest.Fault{Code: "AccessDenied"}
			}
			return awstest.Fault{}
		})
	}
	rare := []string{"DeleteLoginProfile", "ListMFADevices", "ListSigningCertificates", "ListSSHPublicKeys", "ListServiceSpecificCredentials"}

	t.Run("and not needed", func(t *testing.T) {
		s := awstest.New(t)
		c := connect(t, s, nil)
		s.AddUser("u")
		s.AddKey("u")
		deny(s, append(rare, "ListGroupsForUser")...)
		do(t, c.RemoveUser(t.Context(), "u"))
		if _, ok := s.User("u"); ok {
			t.Error("the user is still there")
		}
	})
	for _, action := range append([]string{"DeleteAccessKey", "RemoveUserFromGroup", "DeleteSSHPublicKey"}, rare...) {
		t.Run("and needed: "+action, func(t *testing.T) {
			s := awstest.New(t)
			furnish(t, s, "u")
			c := connect(t, s, nil)
			deny(s, action)
			s.Forget()
			check(t, action, c.RemoveUser(t.Context(), "u"), aws.Denied, "AccessDenied")
			if n := count(s, "DeleteUser"); n != 2 {
				t.Errorf("%d calls of DeleteUser, want 2: nothing to wait for", n)
			}
			if _, ok := s.User("u"); !ok {
				t.Error("the user is gone")
			}
			if action != "DeleteAccessKey" && len(s.Keys("u")) != 0 {
				t.Error("the keys are still there")
			}
		})
	}
	t.Run("because the credentials are not valid", func(t *testing.T) {
		s := awstest.New(t)
		s.AddUser("u")
		c := connect(t, s, func(o *aws.Options) { o.SecretKey = testSecret })
		err := c.RemoveUser(t.Context(), "u")
		check(t, "ListAccessKeys", err, aws.Denied, "SignatureDoesNotMatch")
		if got := s.Actions(); len(got) != 1 {
			t.Errorf("it goes on with %q", got[1:])
		}
	})
}

func TestRemoveUserStopsAtTrouble(t *testing.T) {
	for code, want := range map[string]aws.Kind{"Throttling": aws.Throttled, "ServiceFailure": aws.Unavailable} {
		t.Run(code, func(t *testing.T) {
			s := awstest.New(t)
			furnish(t, s, "u")
			c := connect(t, s, func(o *aws.Options) { o.MaxRetries = 1 })
			s.FailNext(1000, "ListUserPolicies", awstest.Fault{Code: code})
			s.Forget()
			check(t, "ListUserPolicies", c.RemoveUser(t.Context(), "u"), want, code)
			if n := count(s, "ListUserPolicies"); n != 2 || count(s, "DeleteUser") != 0 {
				t.Errorf("%d attempts, then %s", n, strings.Join(s.Actions(), " "))
			}
			s.Fail(nil)
			do(t, c.RemoveUser(t.Context(), "u"))
		})
	}
}

// Something else than the provider is at the endpoint. Nothing of what it says means that a user is gone.
func TestRemoveUserWhereNoProviderIs(t *testing.T) {
	for name, answer := range map[string]script{
		"not found":   func(w http.ResponseWriter, r *http.Request, _ url.Values) { http.NotFound(w, r) },
		"another 404": refusing(404, "NoSuchBucket", "no"),
		"a page": func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			fmt.Fprint(w, "<html><body>Hello</body></html>")
		},
		"nothing":    func(http.ResponseWriter, *http.Request, url.Values) {},
		"no content": func(w http.ResponseWriter, _ *http.Request, _ url.Values) { w.WriteHeader(http.StatusNoContent) },
		"other XML": func(w http.ResponseWriter, _ *http.Request, _ url.Values) {
			fmt.Fprint(w, "<?xml version='1.0'?><ok/>")
		},
		"half an answer": func(w http.ResponseWriter, _ *http.Request, form url.Values) {
			fmt.Fprintf(w, "<%sRes", form.Get("Action"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, newScripted(t, answer).URL, nil)
			if err := c.RemoveUser(t.Context(), "u"); err == nil || aws.KindOf(err) == aws.NotFound {
				t.Errorf("RemoveUser: %v", err)
			}
			if err := c.DeleteAccessKey(t.Context(), "u", "AKIAXXXXXXXXXXXXOTHR"); err == nil || aws.KindOf(err) == aws.NotFound {
				t.Errorf("DeleteAccessKey: %v", err)
			}
		})
	}
}

func TestListsWithoutEnd(t *testing.T) {
	s := newScripted(t, endlessPages)
	c := dial(t, s.URL, nil)
	if _, err := c.ListAccessKeys(t.Context(), "u"); err == nil {
		t.Error("ListAccessKeys succeeds")
	}
	if n := s.count("ListAccessKeys"); n > 100 {
		t.Errorf("%d pages were asked for", n)
	}
}
