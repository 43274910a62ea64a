package sequencefile

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/verbena-data/verbena/internal/race"
)

// shown is what Hadoop's shell shows of a file.
func shown(b []byte) (string, error) {
	q, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		k, v, err := q.Next()
		if err == io.EOF {
			return out.String(), nil
		}
		if err != nil {
			return out.String(), err
		}
		key, err := Text(q.Header().KeyClass, k)
		if err != nil {
			return out.String(), err
		}
		value, err := Text(q.Header().ValueClass, v)
		if err != nil {
			return out.String(), err
		}
		out.WriteString(key + "\t" + value + "\n")
	}
}

// Files that Hadoop 3.4.1 has written (testdata/Write.java) show what it has shown.
func TestReadsWhatHadoopWrites(t *testing.T) {
	files, err := filepath.Glob("testdata/*.seq")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSuffix(name, ".seq") + ".txt"
		if base := filepath.Base(name); strings.HasPrefix(base, "record-") || strings.HasPrefix(base, "block-") {
			text = "testdata/packed.txt"
		}
		want, err := os.ReadFile(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := shown(b)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v; it shows\n%s\nand Hadoop\n%s", name, err, got, want)
		}
		q, err := NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		h := q.Header()
		if h.Version != 6 || len(h.Metadata) != 1 || h.Metadata[0] != (Pair{"made by", "Hadoop"}) || h.Blocks != strings.HasPrefix(filepath.Base(name), "block-") {
			t.Errorf("%s: %+v", name, h)
		}
		cuts := 50
		if strings.Contains(name, "BZip2") { // which takes 4 MB for each value
			cuts = 3
		}
		for n := 0; n < len(b); n += 1 + len(b)/cuts { // cut anywhere, it ends in order or with an error
			if got, err := shown(b[:n]); err == nil && !strings.HasPrefix(string(want), got) || err == nil && len(got) == len(want) {
				t.Fatalf("%s cut at %d shows %d bytes of %d: %v", name, n, len(got), len(want), err)
			}
		}
	}
}

func text(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// head is a header of a version.
func head(version byte, blocks bool, codec string) []byte {
	b := append([]byte("SEQ"), version)
	b = append(append(b, text(writables+"Text")...), text(writables+"IntWritable")...)
	b = append(b, 0, 0)
	if codec != "" {
		b[len(b)-2] = 1
	}
	if blocks {
		b[len(b)-1] = 1
	}
	if codec != "" && version >= 5 {
		b = append(b, text(codec)...)
	}
	if version >= 6 {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, "sixteen bytes...."[:16]...)
}

func record(key, value []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(key)+len(value)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(key)))
	return append(append(b, key...), value...)
}

func deflated(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zlib.NewWriterLevel(&out, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// mebibytes are so many of zeros, packed: what one packs to again and again, since packing them all takes long. The end
// of the stream, and its sum, are not there.
func mebibytes(t testing.TB, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zlib.NewWriterLevel(&out, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	head, one := out.Bytes()[:2], out.Bytes()[2:]
	return append(bytes.Clone(head), bytes.Repeat(one, n)...)
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.EncodeAll(b, nil)
}

// Older versions, whose writers are gone, and Zstandard, which Hadoop's jars can't do alone.
func TestOtherHeaders(t *testing.T) {
	seven := []byte{0, 0, 0, 7}
	block := func(pack func(testing.TB, []byte) []byte, n byte, parts ...string) []byte {
		b := append([]byte{0xff, 0xff, 0xff, 0xff}, "sixteen bytes...."[:16]...)
		b = append(b, n)
		for _, p := range parts {
			packed := pack(t, []byte(p))
			b = append(append(b, byte(len(packed))), packed...)
		}
		return b
	}
	const zstdCodec = "org.apache.hadoop.io.compress.ZStandardCodec"
	two := []string{"\x02\x03", "\x01a\x02bc", "\x04\x04", "\x00\x00\x00\x01\xff\xff\xff\xff"}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"4":               {append(head(4, false, ""), record(text("a"), seven)...), "a\t7\n"},
		"4, packed":       {append(head(4, false, "default"), record(text("a"), deflated(t, seven))...), "a\t7\n"},
		"4, blocks":       {append(head(4, true, "default"), block(deflated, 2, two...)...), "a\t1\nbc\t-1\n"},
		"5":               {append(head(5, false, ""), record(text("b"), seven)...), "b\t7\n"},
		"5, packed":       {append(head(5, false, "org.apache.hadoop.io.compress.DeflateCodec"), record(text("b"), deflated(t, seven))...), "b\t7\n"},
		"6, zstd":         {append(head(6, false, zstdCodec), record(text("c"), zstandard(t, seven))...), "c\t7\n"},
		"6, zstd, blocks": {append(append(head(6, true, zstdCodec), block(zstandard, 2, two...)...), block(zstandard, 2, two...)...), "a\t1\nbc\t-1\na\t1\nbc\t-1\n"},
		"nothing":         {head(6, false, ""), ""},
		"invalid UTF-8":   {append(head(6, false, ""), record([]byte("\x02\xffx"), seven)...), "\uFFFDx\t7\n"},
	} {
		if got, err := shown(c.file); err != nil || got != c.want {
			t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
		}
	}
}

// What is not as it should be is told, and takes no memory that its lengths promise.
func TestMalformed(t *testing.T) {
	long := []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}
	notSync := append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 16)...)
	sync := append([]byte{0xff, 0xff, 0xff, 0xff}, "sixteen bytes...."[:16]...)
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"nothing": {nil, io.ErrUnexpectedEOF}, "another": {[]byte("text that is long enough"), ErrMalformed}, "version 3": {[]byte("SEQ\x03"), ErrMalformed},
		"version 7": {[]byte("SEQ\x07"), ErrMalformed}, "class of -1 bytes": {[]byte("SEQ\x06\xff"), ErrMalformed},
		"a long class": {[]byte("SEQ\x06\x8c\x7f\xff\xff\xff"), ErrMalformed}, "no such codec": {head(6, false, "org.example.Codec"), errors.ErrUnsupported},
		"blocks that are not packed": {head(6, true, ""), ErrMalformed},
		"a long record":              {append(head(6, false, ""), long...), ErrMalformed}, "a key longer than its record": {append(head(6, false, ""), 0, 0, 0, 1, 0, 0, 0, 2, 0), ErrMalformed},
		"a negative record": {append(head(6, false, ""), 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0), ErrMalformed},
		"half a record":     {append(head(6, false, ""), record(text("a"), nil)[:9]...), io.ErrUnexpectedEOF},
		"a wrong sync":      {append(head(6, false, ""), notSync...), ErrMalformed},
		"a short int":       {append(head(6, false, ""), record(text("a"), []byte{1})...), ErrMalformed},
		"a long text":       {append(head(6, false, ""), record([]byte{5, 'a'}, []byte{0, 0, 0, 1})...), ErrMalformed},
		"no block":          {append(head(6, true, "org.apache.hadoop.io.compress.DefaultCodec"), 0, 0, 0, 1), ErrMalformed},
		"more records than lengths": {append(append(head(4, true, "default"), sync...), append([]byte{9}, bytes.Repeat(append([]byte{byte(len(deflated(t, nil)))}, deflated(t, nil)...), 4)...)...),
			ErrMalformed},
		"not packed":             {append(head(4, false, "default"), record(text("a"), []byte{0, 0, 0, 7})...), zlib.ErrHeader},
		"packed 300 times 1 MiB": {append(head(4, false, "default"), record(text("a"), mebibytes(t, 300))...), ErrMalformed},
	} {
		if race.Enabled && len(c.file) > 1<<20 {
			continue // 256 MiB are unpacked by one goroutine, which takes 19 s under the detector
		}
		if _, err := shown(c.file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzReader(f *testing.F) {
	files, err := filepath.Glob("testdata/*.seq")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(head(4, true, "default"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		q, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		for range 1000 {
			key, value, err := q.Next()
			if err != nil {
				if _, _, again := q.Next(); again != err {
					t.Fatalf("%v, and then %v", err, again)
				}
				return
			}
			if len(key)+len(value) > 2*MaxRecord {
				t.Fatalf("a record of %d bytes", len(key)+len(value))
			}
			_, _ = Text(q.Header().KeyClass, key)     // of whatever
			_, _ = Text(q.Header().ValueClass, value) // kind they are
		}
	})
}
