package avro

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/verbena-data/verbena/hadoop/internal/javanumber"
)

// maxDepth is how deep values may lie in each other. A schema can ask for any depth without
// a byte of data.
const maxDepth = 1000

// A decoder writes values as JSON.
type decoder struct {
	in   []byte // what is left of the block
	out  []byte
	most int // bytes of out
}

// value writes a value that lies so deep in others.
func (d *decoder) value(s *schema, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: values lie more than %d deep in each other", ErrMalformed, maxDepth)
	}
	if len(d.out) > d.most { // values may have no bytes
		return fmt.Errorf("%w: a record has more than %d bytes of JSON", ErrMalformed, d.most)
	}
	switch s.kind {
	case kindNull:
		d.out = append(d.out, "null"...)
	case kindBoolean:
		b, err := d.take(1)
		if err != nil {
			return err
		}
		d.out = strconv.AppendBool(d.out, b[0] != 0)
	case kindInt, kindLong:
		n, err := d.long()
		if err != nil {
			return err
		}
		if s.kind == kindInt && n != int64(int32(n)) {
			return fmt.Errorf("%w: %d is no int", ErrMalformed, n)
		}
		d.out = strconv.AppendInt(d.out, n, 10)
	case kindFloat:
		b, err := d.take(4)
		if err != nil {
			return err
		}
		d.float(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32)
	case kindDouble:
		b, err := d.take(8)
		if err != nil {
			return err
		}
		d.float(math.Float64frombits(binary.LittleEndian.Uint64(b)), 64)
	case kindBytes, kindString:
		n, err := d.long()
		if err != nil {
			return err
		}
		return d.text(n, s.kind == kindString)
	case kindFixed:
		return d.text(int64(s.size), false)
	case kindEnum:
		i, err := d.index(len(s.names), "symbol", s)
		if err != nil {
			return err
		}
		d.quote([]byte(s.names[i]), true)
	case kindUnion:
		return d.union(s, depth)
	case kindRecord:
		return d.record(s, depth)
	case kindArray, kindMap:
		return d.items(s, depth)
	}
	return nil
}

func (d *decoder) union(s *schema, depth int) error {
	i, err := d.index(len(s.of), "branch", s)
	if err != nil {
		return err
	}
	branch := s.of[i]
	if branch.kind == kindNull {
		return d.value(branch, depth+1)
	}
	d.out = append(d.out, '{')
	d.quote([]byte(branch.name), true)
	d.out = append(d.out, ':')
	if err := d.value(branch, depth+1); err != nil {
		return err
	}
	d.out = append(d.out, '}')
	return nil
}

func (d *decoder) record(s *schema, depth int) error {
	d.out = append(d.out, '{')
	for i, of := range s.of {
		if i > 0 {
			d.out = append(d.out, ',')
		}
		d.quote([]byte(s.names[i]), true)
		d.out = append(d.out, ':')
		if err := d.value(of, depth+1); err != nil {
			return err
		}
	}
	d.out = append(d.out, '}')
	return nil
}

// items writes an array or a map, which come in parts of many items.
func (d *decoder) items(s *schema, depth int) error {
	begin, end := byte('['), byte(']')
	if s.kind == kindMap {
		begin, end = '{', '}'
	}
	d.out = append(d.out, begin)
	for first := true; ; {
		n, err := d.long()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if n < 0 { // the bytes of this part follow, for who wants to skip them
			if _, err := d.long(); err != nil {
				return err
			}
			n = -n
		}
		for ; n != 0; n-- {
			if !first {
				d.out = append(d.out, ',')
			}
			first = false
			if s.kind == kindMap {
				length, err := d.long()
				if err == nil {
					err = d.text(length, true)
				}
				if err != nil {
					return err
				}
				d.out = append(d.out, ':')
			}
			if err := d.value(s.of[0], depth+1); err != nil {
				return err
			}
		}
	}
	d.out = append(d.out, end)
	return nil
}

// take takes n bytes.
func (d *decoder) take(n int64) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("%w: a value of %d bytes", ErrMalformed, n)
	}
	if n > int64(len(d.in)) {
		return nil, fmt.Errorf("%w: a value of %d bytes, where %d are left of the block: %w", ErrMalformed, n, len(d.in), io.ErrUnexpectedEOF)
	}
	b := d.in[:n]
	d.in = d.in[n:]
	return b, nil
}

func (d *decoder) long() (int64, error) {
	n, size := binary.Varint(d.in)
	if size == 0 {
		return 0, fmt.Errorf("%w: a number is cut off at the end of a block: %w", ErrMalformed, io.ErrUnexpectedEOF)
	}
	if size < 0 {
		return 0, fmt.Errorf("%w: a number of more than 64 bits", ErrMalformed)
	}
	d.in = d.in[size:]
	return n, nil
}

// index takes a number below n, that of something of s.
func (d *decoder) index(n int, what string, s *schema) (int, error) {
	i, err := d.long()
	if err == nil && (i < 0 || i >= int64(n)) {
		err = fmt.Errorf("%w: %s %d of %s, which has %d", ErrMalformed, what, i, s.name, n)
	}
	return int(i), err
}

// float writes a number as Java does; JSON knows no others than finite ones.
func (d *decoder) float(f float64, bits int) {
	text := javanumber.Format(f, bits)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		d.quote([]byte(text), true)
		return
	}
	d.out = append(d.out, text...)
}

// text writes n bytes as a string: UTF-8, or a character for each byte.
func (d *decoder) text(n int64, isUTF8 bool) error {
	b, err := d.take(n)
	if err == nil {
		d.quote(b, isUTF8)
	}
	return err
}

func (d *decoder) escape(r rune) { d.out = fmt.Appendf(d.out, "\\u%04X", r) }

// quote writes a string as Jackson does, the library that Avro for Java writes JSON with:
// what must be escaped is, and what UTF-16 needs two units for.
func (d *decoder) quote(b []byte, isUTF8 bool) {
	d.out = append(d.out, '"')
	for len(b) > 0 {
		r, size := rune(b[0]), 1
		if isUTF8 {
			r, size = utf8.DecodeRune(b)
		}
		b = b[size:]
		switch r {
		case '"', '\\':
			d.out = append(d.out, '\\', byte(r))
		case '\b':
			d.out = append(d.out, '\\', 'b')
		case '\t':
			d.out = append(d.out, '\\', 't')
		case '\n':
			d.out = append(d.out, '\\', 'n')
		case '\f':
			d.out = append(d.out, '\\', 'f')
		case '\r':
			d.out = append(d.out, '\\', 'r')
		default:
			switch high, low := utf16.EncodeRune(r); {
			case r < ' ':
				d.escape(r)
			case high != utf8.RuneError:
				d.escape(high)
				d.escape(low)
			default:
				d.out = utf8.AppendRune(d.out, r)
			}
		}
	}
	d.out = append(d.out, '"')
}
