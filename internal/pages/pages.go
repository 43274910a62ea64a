// Package pages gives tests the examples that the pages of docs show, so that what a page says of bytes is what the code
// makes of them.
package pages

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// Example returns the bytes of the first block of code behind "**name**" on a page, whose path is one from the test's
// directory. A line is bytes in hexadecimal, and a comment behind "#".
func Example(t testing.TB, page, name string) (b []byte) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "**"+name+"**")
	_, rest, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatalf("%s has no example of %s", page, name)
	}
	block, _, _ := strings.Cut(rest, "```")
	for line := range strings.Lines(block) {
		digits, _, _ := strings.Cut(line, "#")
		part, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
		if err != nil {
			t.Fatalf("%s: %s: %q: %v", page, name, line, err)
		}
		b = append(b, part...)
	}
	return b
}
