package together

import (
	"bytes"
	"slices"
	"testing"
)

func FuzzKeys(f *testing.F) {
	f.Add([]byte("\x01a\x00\x03abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := decodeKeys(b)
		if err != nil {
			return
		}
		again, err := decodeKeys(encodeKeys(keys))
		if err != nil || !slices.EqualFunc(keys, again, bytes.Equal) {
			t.Errorf("%q %q %v", keys, again, err)
		}
	})
}
