package users

import "testing"

// The overflow user stands for many, so it is no user's own unless the namespace
// maps them all.
func TestUsers(t *testing.T) {
	const overflow = 65534
	for name, each := range map[string]struct {
		own, peer       uint32
		whole           bool
		allowed         []uint32
		admits, foreign bool
	}{
		"the own user":                                {own: 1000, peer: 1000, admits: true},
		"the own user on the host itself":             {own: 1000, peer: 1000, whole: true, admits: true},
		"another user":                                {own: 1000, peer: 1001, foreign: true},
		"another user that is named":                  {own: 1000, peer: 1001, allowed: []uint32{7, 1001}, admits: true, foreign: true},
		"another user, and others are named":          {own: 1000, peer: 1001, allowed: []uint32{7}, foreign: true},
		"an unmapped user":                            {own: 1000, peer: overflow, foreign: true},
		"an unmapped user that is named":              {own: 1000, peer: overflow, allowed: []uint32{overflow}, admits: true, foreign: true},
		"two unmapped users":                          {own: overflow, peer: overflow, foreign: true},
		"two unmapped users, named":                   {own: overflow, peer: overflow, allowed: []uint32{overflow}, admits: true, foreign: true},
		"nobody and nobody, on the host itself":       {own: overflow, peer: overflow, whole: true, admits: true},
		"root of a namespace and the host's user":     {own: 0, peer: overflow, foreign: true},
		"an unmapped process and root of a namespace": {own: overflow, peer: 0, foreign: true},
	} {
		u := Users{own: each.own, overflow: overflow, whole: each.whole, allowed: each.allowed}
		if got := u.Foreign(each.peer); got != each.foreign {
			t.Errorf("%s: foreign %v", name, got)
		}
		if got := u.Admits(each.peer); got != each.admits {
			t.Errorf("%s: admitted %v", name, got)
		}
	}
}

func TestMapIsWhole(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":                              true,
		"         0          0 65534\n     65534      65534 4294901761\n": true,
		"         0     100000      65536\n":                              false,
		"         0          0          1\n":                              false,
		"":                                                                false,
		"nonsense\n":                                                      false,
		"0 0 -1\n":                                                        false,
		"0 0 4294967294\n":                                                false,
		"         0       1000          1\n         1     100000      65536\n": false,
	} {
		if got := mapIsWhole(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
