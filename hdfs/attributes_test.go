package hdfs

import (
	"reflect"
	"strings"
	"testing"
)

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
