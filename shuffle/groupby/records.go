package groupby

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/verbena-data/verbena/shuffle/dataset"
)

// A Format says how files are divided into records with fields.
type Format string

// The formats.
const (
	// CSV is RFC 4180, with or without a byte order mark before the text, as in all formats. The first record of each file names the fields.
	CSV Format = "csv"
	// TSV are lines of fields with tabs between them, without quotes. The first line of
	// each file names the fields.
	TSV Format = "tsv"
	// JSONL are lines with a JSON object each. A field is a path as gjson has it: "a.b".
	JSONL Format = "jsonl"
	// Words are what blanks separate; each is a record with the field "word".
	Words Format = "words"
)

// Formats are all of them.
var Formats = []Format{CSV, TSV, JSONL, Words}

// reader reads records of spans.
type reader struct {
	cfg *Config
	// take gets a key and, for sums, a value, which are valid during the call.
	take func(key, value []byte) error
	// read gets bytes that have been read, skipped counts records without the key.
	read    func(n int)
	skipped int64
}

// bufferSize is how much of a file is read at once.
const bufferSize = 256 << 10

// counting tells of what is read.
type counting struct {
	r    io.Reader
	read func(int)
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.read(n)
	return n, err
}

// errLongRecord says that a record is longer than may be.
var errLongRecord = errors.New("record too long")

// bounded gives so many bytes more, and then errLongRecord.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLongRecord
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// aheadOfCSV is how much csv.Reader reads beyond a record, at most.
const aheadOfCSV = 4 << 10

// quotes tells whether a span begins, and whether what follows it begins, within quotes.
type quotes struct{ before, after bool }

// span reads the records that begin in a span. Quotes count for CSV alone.
func (r *reader) span(ctx context.Context, s dataset.Span, q quotes) (err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s: %w", s.Input.Name(), err)
		}
	}()
	start, err := textStart(s.Input)
	if err != nil || s.Input.Size() == start {
		return err
	}
	if r.cfg.Format == CSV {
		return r.csv(ctx, s, start, q)
	}
	fields, err := r.header(s, start)
	if err != nil {
		return err
	}
	told := s.From
	err = s.Lines(ctx, int(r.cfg.longest()), func(at int64, line []byte) error {
		if at-told >= bufferSize {
			r.read(int(at - told))
			told = at
		}
		if at == 0 && r.cfg.Format == TSV {
			return nil
		}
		if at == 0 {
			line = line[start:]
		}
		if err := r.line(line, fields); err != nil {
			return fmt.Errorf("the line at byte %d: %w", at, err)
		}
		return nil
	})
	r.read(int(s.To - told))
	if errors.Is(err, dataset.ErrLongLine) {
		err = fmt.Errorf("%w: raise --memory, or check the format", err)
	}
	return err
}

// columns are the places of the key and of the value in a record; a value of -1 is none.
type columns struct {
	key, value int
	end        int64 // of the record that names the fields, for CSV
}

// byteOrderMark stands before the text of some files: Excel's "CSV UTF-8" begins so.
const byteOrderMark = "\xef\xbb\xbf"

// textStart is where the text of a file begins: behind the byte order mark, if there is one.
func textStart(file *dataset.Input) (int64, error) {
	var b [len(byteOrderMark)]byte
	n, err := file.ReadAt(b[:min(int64(len(b)), file.Size())], 0)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return 0, err
	case string(b[:n]) != byteOrderMark:
		return 0, nil
	}
	return int64(len(b)), nil
}

// header finds the fields' places in the first record of a file, whose text begins at start.
func (r *reader) header(s dataset.Span, start int64) (columns, error) {
	firstRecord := io.NewSectionReader(s.Input, start, min(s.Input.Size()-start, 1<<20))
	switch r.cfg.Format {
	case TSV:
		line, err := bufio.NewReader(firstRecord).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return columns{}, err
		}
		return r.columns(strings.Split(strings.TrimRight(line, "\r\n"), "\t"))
	case CSV:
		in := csv.NewReader(firstRecord)
		names, err := in.Read()
		if err != nil {
			return columns{}, fmt.Errorf("the first record, which names the fields: %w", err)
		}
		c, err := r.columns(names)
		c.end = start + in.InputOffset()
		return c, err
	}
	return columns{}, nil
}

func (r *reader) columns(names []string) (c columns, err error) {
	if c.key, err = column(names, r.cfg.Key); err != nil {
		return c, err
	}
	c.value = -1
	if r.cfg.Sum != "" {
		c.value, err = column(names, r.cfg.Sum)
	}
	return c, err
}

// column finds a field by its name, or by its number, from 1 on.
func column(names []string, field string) (int, error) {
	if i := slices.Index(names, field); i >= 0 {
		return i, nil
	}
	if n, err := strconv.Atoi(field); err == nil && n >= 1 && n <= len(names) {
		return n - 1, nil
	}
	return 0, fmt.Errorf("there is no field %q in its first record: there are %s", field, strings.Join(names, ", "))
}

func (r *reader) line(line []byte, at columns) error {
	switch r.cfg.Format {
	case Words:
		for word := range bytes.FieldsSeq(line) {
			if err := r.take(word, nil); err != nil {
				return err
			}
		}
		return nil
	case TSV:
		if len(line) == 0 {
			return nil
		}
		var key, value []byte
		i, found := 0, false
		for field := range bytes.SplitSeq(line, []byte("\t")) {
			if i == at.key {
				key, found = field, true
			}
			if i == at.value {
				value = field
			}
			i++
		}
		if !found {
			r.skipped++
			return nil
		}
		return r.take(key, value)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	json := unsafe.String(unsafe.SliceData(line), len(line)) // which stays as it is until the key and the value have been taken
	if !gjson.Valid(json) {
		return errors.New("this is no JSON")
	}
	key := gjson.Get(json, r.cfg.Key)
	if !key.Exists() || key.Type == gjson.Null {
		r.skipped++
		return nil
	}
	var value []byte
	if r.cfg.Sum != "" {
		if v := gjson.Get(json, r.cfg.Sum); v.Exists() && v.Type != gjson.Null {
			value = text(v)
		}
	}
	return r.take(text(key), value)
}

// text is a string's content, and of anything else what stands in the line: a number keeps
// its digits. Nobody may write to it.
func text(v gjson.Result) []byte {
	t := v.Raw
	if v.Type == gjson.String {
		t = v.Str
	}
	return unsafe.Slice(unsafe.StringData(t), len(t))
}

// csv reads a span of CSV. The text of its file begins at start.
func (r *reader) csv(ctx context.Context, s dataset.Span, start int64, q quotes) error {
	fields, err := r.header(s, start)
	if err != nil {
		return err
	}
	begin, err := recordStart(ctx, s.Input, s.From, q.before)
	if err != nil {
		return err
	}
	begin = max(begin, start)
	end, err := recordStart(ctx, s.Input, s.To, q.after)
	if err != nil {
		return err
	}
	longest := r.cfg.longest()
	bound := &bounded{r: counting{io.NewSectionReader(s.Input, begin, end-begin), r.read}}
	in := csv.NewReader(bound)
	in.ReuseRecord, in.FieldsPerRecord = true, -1 // a record without the key is left out
	var value []byte
	for n, at := 0, int64(0); ; n++ {
		if n&1023 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		bound.left += in.InputOffset() - at // what the last record has taken
		if at = in.InputOffset(); n == 0 {
			bound.left = longest + aheadOfCSV
		}
		record, err := in.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLongRecord):
			return fmt.Errorf("the record at byte %d is longer than the %d bytes for which there is memory: look there for a quote that is never closed, or raise --memory", begin+at, longest)
		case err != nil:
			var where *csv.ParseError
			if errors.As(err, &where) { // its lines count from the span on
				err = where.Err
			}
			return fmt.Errorf("the record at byte %d: %w", begin+at, err)
		}
		switch {
		case begin+in.InputOffset() <= fields.end:
			continue
		case fields.key >= len(record):
			r.skipped++
			continue
		}
		value = value[:0]
		if fields.value >= 0 && fields.value < len(record) {
			value = append(value, record[fields.value]...)
		}
		if err := r.take([]byte(record[fields.key]), value); err != nil {
			return fmt.Errorf("the record at byte %d: %w", begin+at, err)
		}
	}
}

// recordStart is where the first record begins from a place on, which is within quotes or
// not: behind a newline that is not.
func recordStart(ctx context.Context, file *dataset.Input, at int64, quoted bool) (int64, error) {
	if at == 0 || at == file.Size() {
		return at, nil
	}
	in := bufio.NewReader(io.NewSectionReader(file, at-1, file.Size()-at+1))
	before, err := in.ReadByte()
	if err != nil || before == '\n' && !quoted {
		return at, err
	}
	for n := 1; ; n++ {
		if n%bufferSize == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		b, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			return file.Size(), nil
		}
		if err != nil {
			return 0, err
		}
		at++
		switch {
		case b == '"':
			quoted = !quoted
		case b == '\n' && !quoted:
			return at, nil
		}
	}
}

// oddQuotes tells whether a span has an odd number of quotes: then what follows it is within
// quotes if the span does not begin within some, and the other way round. read gets bytes that have been read.
func oddQuotes(ctx context.Context, s dataset.Span, read func(n int)) (odd bool, err error) {
	in := io.NewSectionReader(s.Input, s.From, s.To-s.From)
	buffer := make([]byte, bufferSize)
	for {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		n, err := in.Read(buffer)
		read(n)
		odd = odd != (bytes.Count(buffer[:n], []byte{'"'})%2 == 1)
		if errors.Is(err, io.EOF) {
			return odd, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.Input.Name(), err)
		}
	}
}
