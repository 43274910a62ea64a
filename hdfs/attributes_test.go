package hdfs

import (
	"reflect"
	"strings"
	"testing"
)

// As in Hadoop types may be in capitals, and neither permissions nor "default".
func TestTypesOfACLsMayBeInCapitals(t *testing.T) {
	entries, err := ParseACL("USER:Ada:r-x,default:Mask::rwx", true)
	if want := []ACLEntry{{Type: ACLUser, Name: "Ada", Perm: 5}, {Default: true, Type: ACLMask, Perm: 7}}; err != nil || !reflect.DeepEqual(entries, want) {
		t.Errorf("%+v, %v", entries, err)
	}
	for _, bad := range []string{"user:ada:RWX", "DEFAULT:user:ada:rwx", "users:ada:rwx"} {
		if entries, err := ParseACL(bad, true); err == nil {
			t.Errorf("%s: %+v", bad, entries)
		}
	}
}

// An ACL that was read is written so that it is read alike.
func FuzzParseACL(f *testing.F) {
	for _, text := range []string{"user:ada:r-x,default:group:staff:r--", "mask::rwx", "other::---", "user:ada", "default:", ","} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, perms bool) {
		entries, err := ParseACL(text, perms)
		if err != nil || !perms {
			return
		}
		var words []string
		for _, e := range entries {
			if e.Perm&^7 != 0 {
				t.Fatalf("%q: %+v", text, e)
			}
			words = append(words, e.String())
		}
		again, err := ParseACL(strings.Join(words, ","), true)
		if err != nil || !reflect.DeepEqual(again, entries) {
			t.Fatalf("%q: %+v, %+v, %v", text, entries, again, err)
		}
	})
}
