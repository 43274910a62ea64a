package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/pierrec/lz4/v4"
)

func framed(length int, chunks ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(length))
	for _, c := range chunks {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(c))), c...)
	}
	return b
}

func unpacked(name string, b []byte) ([]byte, error) {
	r, err := ByName(name).Open(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(r)
	return out, errors.Join(err, r.Close())
}

// Blocks of several chunks, and several blocks, in one stream; hardly anything, and what
// packs very well.
func TestBlocks(t *testing.T) {
	for _, content := range [][]byte{[]byte("a"), bytes.Repeat([]byte("hello, "), 1000), make([]byte, 3<<20)} {
		packed := make([]byte, lz4.CompressBlockBound(len(content)))
		n, err := lz4.CompressBlock(content, packed, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 { // it does not pack: a token, and the byte
			n = copy(packed, append([]byte{byte(len(content)) << 4}, content...))
		}
		for name, chunk := range map[string][]byte{"x.lz4": packed[:n], "x.snappy": snappy.Encode(nil, content)} {
			file := append(framed(2*len(content), chunk, chunk), framed(len(content), chunk)...)
			got, err := unpacked(name, file)
			if err != nil || !bytes.Equal(got, bytes.Repeat(content, 3)) {
				t.Errorf("%s: %d bytes of %d: %v", name, len(got), 3*len(content), err)
			}
			for what, bad := range map[string][]byte{
				"cut off": file[:len(file)-1], "a chunk too many for its block": framed(len(content)-1+min(1, len(content)-1)-1, chunk),
				"a long chunk": append(framed(1), 0x7f, 0xff, 0xff, 0xff), "no length of a chunk": framed(5),
			} {
				if _, err := unpacked(name, bad); err == nil {
					t.Errorf("%s: %s is unpacked", name, what)
				}
			}
		}
	}
	// A length of 1 GiB in five bytes.
	if _, err := unpacked("x.snappy", framed(1<<30, binary.AppendUvarint(nil, 1<<30))); !errors.Is(err, ErrMalformed) {
		t.Errorf("%v", err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range all {
		if ByClass(c.Class) != c || ByName("/a/b"+c.Extension).Extension != c.Extension {
			t.Error(c.Class)
		}
	}
	if ByClass("GzipCodec") != nil || ByName("gz") != nil || ByName("/a.gz/b") != nil {
		t.Error("a codec of something else")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(byte(4), framed(5, snappy.Encode(nil, []byte("hello"))))
	f.Add(byte(5), framed(5, []byte("\x50hello")))
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		r, err := all[int(which)%len(all)].Open(bytes.NewReader(b))
		if err != nil {
			return
		}
		n, err := io.Copy(io.Discard, io.LimitReader(r, 64<<20))
		if err == nil && n > 0 && len(b) == 0 {
			t.Fatalf("%d bytes of nothing", n)
		}
		_ = r.Close() // it may repeat the error
	})
}
