package hello

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	list := []string{"10.9.0.1", "fe80::1%v0", "fe80::2"}
	wire := EncodeAddresses(list)
	if want := "\x0810.9.0.1\x0afe80::1%v0\x07fe80::2"; string(wire) != want {
		t.Errorf("encoded %q, want %q", wire, want)
	}
	if got := DecodeAddresses(wire); !slices.Equal(got, list) {
		t.Errorf("decoded %q", got)
	}
	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprintf("10.0.0.%d", i))
	}
	if got := DecodeAddresses(EncodeAddresses(many)); !slices.Equal(got, many[:MaxAddresses]) {
		t.Errorf("of many: %q", got)
	}
	if got := EncodeAddresses([]string{"", strings.Repeat("a", 65), "a b", "ok"}); string(got) != "\x02ok" {
		t.Errorf("what does not fit: %q", got)
	}
}

func FuzzAddresses(f *testing.F) {
	for _, seed := range []string{"", "\x01\x02\x03", "\x0810.9.0.1", "\x0810.9.0.1\xff", "\x0810.9", "\x00", "\x03a b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		list := DecodeAddresses(wire)
		again := EncodeAddresses(list)
		if !bytes.HasPrefix(wire, again) {
			t.Errorf("%q decoded as %q", wire, list)
		}
	})
}
