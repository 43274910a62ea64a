package fscmd

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func packedBy(t *testing.T, content string, open func(*bytes.Buffer) io.WriteCloser) string {
	t.Helper()
	var b bytes.Buffer
	w := open(&b)
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What a file is its first bytes tell before its name does.
func TestText(t *testing.T) {
	const content = "one\ntwo\n"
	gz := packedBy(t, content, func(b *bytes.Buffer) io.WriteCloser { return gzip.NewWriter(b) })
	deflated := packedBy(t, content, func(b *bytes.Buffer) io.WriteCloser { return zlib.NewWriter(b) })
	zst := packedBy(t, content, func(b *bytes.Buffer) io.WriteCloser {
		w, err := zstd.NewWriter(b)
		if err != nil {
			t.Fatal(err)
		}
		return w
	})
	const snappy, lz4 = "\x00\x00\x00\x08\x00\x00\x00\x0a\x08\x1cone\ntwo\n", "\x00\x00\x00\x08\x00\x00\x00\x09\x80one\ntwo\n"
	records, err := os.ReadFile("../../../../hadoop/sequencefile/testdata/block-SnappyCodec.seq")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile("../../../../hadoop/sequencefile/testdata/packed.txt")
	if err != nil {
		t.Fatal(err)
	}
	avro, err := os.ReadFile("../../../../hadoop/avro/testdata/snappy.avro")
	if err != nil {
		t.Fatal(err)
	}
	json, err := os.ReadFile("../../../../hadoop/avro/testdata/reading.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, file, want string }{
		{"/plain", content, content}, {"/plain.gz.txt", content, content}, {"/empty.zst", "", ""}, {"/short", "S", "S"},
		{"/a", gz, content}, {"/a.gz", gz, content}, {"/a.snappy", gz, content},
		{"/a.deflate", deflated, content}, {"/a", deflated, deflated}, {"/a.zst", zst, content}, {"/a.snappy", snappy, content}, {"/a.lz4", lz4, content},
		{"/records", string(records), string(shown)}, {"/records.gz", string(records), string(shown)},
		{"/readings", string(avro), string(json)}, {"/readings.snappy", string(avro), string(json)},
	} {
		var out strings.Builder
		if err := writeText(&out, c.name, strings.NewReader(c.file)); err != nil || out.String() != c.want {
			t.Errorf("%s: %q, want %q: %v", c.name, out.String(), c.want, err)
		}
	}
	for name, file := range map[string]string{"/a.gz": content, "/a.zst": content, "/a.lz4": lz4[:12], "/cut": string(records[:len(records)-10]), "/SEQ": "SEQ\x09", "/cut.avro": string(avro[:len(avro)-1])} {
		var out strings.Builder
		if err := writeText(&out, name, strings.NewReader(file)); err == nil {
			t.Errorf("%s shows %q", name, out.String())
		}
	}
}
