package avro

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// shown is the JSON of all records, a line each.
func shown(b []byte) (string, error) {
	q, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return "", err
	}
	q.block.most = 1 << 20
	var out strings.Builder
	for {
		record, err := q.Next()
		if err == io.EOF {
			return out.String(), nil
		}
		if err != nil {
			return out.String(), err
		}
		out.Write(append(record, '\n'))
	}
}

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Files that Avro for Java has written show what Hadoop's shell shows of them.
func TestAsHadoopShows(t *testing.T) {
	for name, text := range map[string]string{
		"null": "reading", "deflate": "reading", "snappy": "reading", "bzip2": "reading", "string": "string",
	} {
		got, err := shown(load(t, name+".avro"))
		if want := string(load(t, text+".txt")); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	if got, err := shown(load(t, "empty.avro")); got != "" || err != nil {
		t.Errorf("a file without records: %q, %v", got, err)
	}
}

// Each prefix of a file shows whole records and then says that it is cut off, unless it ends
// behind a block; nothing of a damaged block is shown.
func TestCutOff(t *testing.T) {
	file, whole := load(t, "deflate.avro"), string(load(t, "reading.txt"))
	ends := 0
	for n := range file {
		got, err := shown(file[:n])
		if !strings.HasPrefix(whole, got) {
			t.Fatalf("of %d bytes: %q", n, got)
		}
		if err == nil {
			ends++
		} else if !errors.Is(err, ErrMalformed) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of %d bytes: %v", n, err)
		}
	}
	if ends != 2 { // behind the header, and behind the first of two blocks
		t.Errorf("%d prefixes are whole files, want 2", ends)
	}
}

const sync = "0123456789abcdef"

// container is a file of blocks, each of a number of records.
func container(codec, schema string, blocks ...block) []byte {
	b := []byte(Magic)
	b = binary.AppendVarint(b, -2) // with its length, which readers may skip by
	b = binary.AppendVarint(b, 99)
	for _, text := range []string{"avro.schema", schema, "avro.codec", codec} {
		b = append(binary.AppendVarint(b, int64(len(text))), text...)
	}
	b = append(append(b, 0), sync...)
	for _, block := range blocks {
		b = binary.AppendVarint(b, block.records)
		b = binary.AppendVarint(b, int64(len(block.bytes)))
		b = append(append(b, block.bytes...), sync...)
	}
	return b
}

type block struct {
	records int64
	bytes   string
}

// What Avro for Java writes seldom or never, and readers have to take.
func TestOtherForms(t *testing.T) {
	packed, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"zstandard":              {container("zstandard", `"int"`, block{2, string(packed.EncodeAll([]byte("\x02\x03"), nil))}), "1\n-2\n"},
		"no codec":               {container("", `{"type":{"type":"long"}}`, block{1, "\x80\x80\x80\x80\x20"}), "4294967296\n"},
		"a part with its length": {container("null", `{"type":"array","items":"int"}`, block{1, "\x03\x04\x02\x04\x02\x06\x00"}), "[1,2,3]\n"},
		"blocks of no records":   {container("null", `"null"`, block{0, ""}, block{2, ""}), "null\nnull\n"},
		"bytes that are no text": {container("null", `"string"`, block{1, "\x04a\xff"}), "\"a\ufffd\"\n"},
	} {
		if got, err := shown(c.file); err != nil || got != c.want {
			t.Errorf("%s: %q, want %q: %v", name, got, c.want, err)
		}
	}
}

// Errors tell what is wrong, and nothing takes memory or time for what is not there.
func TestMalformed(t *testing.T) {
	endless := `{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}`
	wide := `{"type":"record","name":"R0","fields":[]}`
	for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		wide = `{"type":"record","name":"R` + n + `","fields":[{"name":"a","type":` + wide + `}` +
			strings.Repeat(`,{"name":"b","type":"R`+string(n[0]-1)+`"}`, 15) + `]}`
	}
	for name, c := range map[string]struct {
		file []byte
		says string
	}{
		"no Avro":                  {[]byte("SEQ\x06"), "begins with"},
		"another codec":            {container("xz", `"int"`), "xz"},
		"no schema":                {container("null", ``), "schema"},
		"an unknown type":          {container("null", `"integer"`), "integer"},
		"a name twice":             {container("null", `[{"type":"fixed","name":"A","size":1},{"type":"fixed","name":"A","size":1}]`), "A twice"},
		"a fixed of no size":       {container("null", `{"type":"fixed","name":"A","size":-1}`), "-1"},
		"a record within itself":   {container("null", endless, block{1, ""}), "deep"},
		"2⁶⁰ values of no bytes":   {container("null", `{"type":"array","items":"null"}`, block{1, "\x80\x80\x80\x80\x80\x80\x80\x80\x20\x00"}), "bytes of JSON"},
		"15⁹ records of no bytes":  {container("null", wide, block{1, ""}), "bytes of JSON"},
		"an int of 64 bits":        {container("null", `"int"`, block{1, "\x80\x80\x80\x80\x20"}), "no int"},
		"a number of 11 bytes":     {container("null", `"long"`, block{1, strings.Repeat("\x80", 10) + "\x01"}), "64 bits"},
		"a string beyond the end":  {container("null", `"string"`, block{1, "\x06ab"}), "2 are left"},
		"a string of -1":           {container("null", `"string"`, block{1, "\x01"}), "-1 bytes"},
		"another branch":           {container("null", `["null","int"]`, block{1, "\x04"}), "branch 2"},
		"another symbol":           {container("null", `{"type":"enum","name":"E","symbols":["A"]}`, block{1, "\x02"}), "symbol 1 of E"},
		"bytes behind the last":    {container("null", `"int"`, block{1, "\x02\x02"}), "behind the last"},
		"bytes of no records":      {container("null", `"int"`, block{0, "\x02"}), "no records"},
		"fewer bytes than records": {container("null", `"int"`, block{2, "\x02"}), "cut off"},
		"snappy without its sum":   {container("snappy", `"int"`, block{1, "\x01"}), "snappy"},
		"snappy of another sum":    {container("snappy", `"int"`, block{1, "\x01\x00\x02\x00\x00\x00\x00"}), "checksum"},
		"snappy of 4 GiB":          {container("snappy", `"int"`, block{1, "\xff\xff\xff\xff\x0f\x00\x02\x00\x00\x00\x00"}), "snappy"},
		"deflate's nonsense":       {container("deflate", `"int"`, block{1, "\xff\xff"}), "deflate"},
		"another sync":             {append(container("null", `"int"`), "\x02\x02\x02fedcba9876543210"...), "ends with"},
		"a block of 1 TiB":         {append(container("null", `"int"`), "\x02\x80\x80\x80\x80\x80\x80\x01"...), "at most"},
	} {
		_, err := shown(c.file)
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrMalformed) && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.says)
		}
	}
}

// Whatever a file has, its records are JSON.
func FuzzReader(f *testing.F) {
	for _, name := range []string{"null.avro", "deflate.avro", "snappy.avro", "bzip2.avro", "string.avro", "empty.avro"} {
		f.Add(load(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		q.block.most = 1 << 20
		for range 100 {
			record, err := q.Next()
			if err != nil {
				return
			}
			if !json.Valid(record) {
				t.Fatalf("%q is no JSON", record)
			}
		}
	})
}
