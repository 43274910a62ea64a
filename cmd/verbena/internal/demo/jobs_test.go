package demo

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestCheckCounts has counts that are right, and each way to be wrong.
func TestCheckCounts(t *testing.T) {
	one, two := int64(1), int64(2)
	counts := map[string]*int64{"a": &two, "b": &one, "c": &one}
	for text, want := range map[string]string{
		"a\t2\nb\t1\nc\t1\n":       "",
		"a\t2\nb\t2\nc\t1\n":       `the word "b" was counted "2" times`,
		"a\t2\nb\t1\nd\t1\n":       `the word "d" was counted`,
		"b\t1\na\t2\nc\t1\n":       `the word "a" comes behind "b"`,
		"a\t2\na\t2\nb\t1\nc\t1\n": `the word "a" comes behind "a"`,
		"a\t2\nb\t1\n":             "2 words were counted, there are 3",
	} {
		err := checkCounts(strings.NewReader(text), counts)
		var wrong *wrongError
		if want == "" && err != nil || want != "" && (!errors.As(err, &wrong) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	var table bytes.Buffer
	if err := (&Jobs{Rows: []JobRow{{Transport: "shm"}}}).Table(&table); err != nil || !strings.Contains(table.String(), "WRONG") {
		t.Errorf("%v %s", err, table.String())
	}
	// Without text there is no rate.
	if !strings.Contains(table.String(), " -  ") {
		t.Errorf("a rate of no words: %s", table.String())
	}
}
