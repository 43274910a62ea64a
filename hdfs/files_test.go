package hdfs

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// A file is read into memory that grows as its bytes come, where its length may be wrong.
func TestContents(t *testing.T) {
	content := randomBytes(1000)
	for _, first := range []int64{1, 10, 999, 1000} {
		b, err := contents(1000, first, bytes.NewReader(content).ReadAt)
		if err != nil || !bytes.Equal(b, content) {
			t.Errorf("%d bytes at first: %d bytes, %v", first, len(b), err)
		}
	}
	if b, err := contents(0, 0, func([]byte, int64) (int, error) { return 0, nil }); err != nil || len(b) != 0 {
		t.Errorf("nothing: %d bytes, %v", len(b), err)
	}
	b, err := contents(1<<60, 10, bytes.NewReader(content).ReadAt)
	if !errors.Is(err, io.EOF) || !bytes.Equal(b, content) {
		t.Errorf("far too long: %d bytes, %v", len(b), err)
	}
}
