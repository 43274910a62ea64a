package sequencefile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/hadoop/internal/javanumber"
)

const writables = "org.apache.hadoop.io."

// texts are how the Writables of org.apache.hadoop.io show themselves (toString), by class.
// Each wants all of b.
var texts = map[string]func(b []byte) (string, bool){
	writables + "Text": func(b []byte) (string, bool) {
		r := bytes.NewReader(b)
		n, err := readLong(r)
		return strings.ToValidUTF8(string(b[len(b)-r.Len():]), "\uFFFD"), err == nil && n == int64(r.Len())
	},
	writables + "BytesWritable": func(b []byte) (string, bool) {
		if len(b) < 4 || int64(binary.BigEndian.Uint32(b)) != int64(len(b)-4) {
			return "", false
		}
		return spaced(b[4:]), true
	},
	writables + "NullWritable":    func(b []byte) (string, bool) { return "(null)", len(b) == 0 },
	writables + "BooleanWritable": sized(1, func(b []byte) string { return strconv.FormatBool(b[0] != 0) }),
	writables + "ByteWritable":    sized(1, func(b []byte) string { return strconv.Itoa(int(int8(b[0]))) }),
	writables + "ShortWritable":   sized(2, func(b []byte) string { return strconv.Itoa(int(int16(binary.BigEndian.Uint16(b)))) }),
	writables + "IntWritable":     sized(4, func(b []byte) string { return strconv.Itoa(int(int32(binary.BigEndian.Uint32(b)))) }),
	writables + "LongWritable":    sized(8, func(b []byte) string { return strconv.FormatInt(int64(binary.BigEndian.Uint64(b)), 10) }),
	writables + "FloatWritable": sized(4, func(b []byte) string {
		return javanumber.Format(float64(math.Float32frombits(binary.BigEndian.Uint32(b))), 32)
	}),
	writables + "DoubleWritable": sized(8, func(b []byte) string { return javanumber.Format(math.Float64frombits(binary.BigEndian.Uint64(b)), 64) }),
	writables + "MD5Hash":        sized(16, hex.EncodeToString),
	writables + "VIntWritable":   variable,
	writables + "VLongWritable":  variable,
}

func sized(n int, f func([]byte) string) func([]byte) (string, bool) {
	return func(b []byte) (string, bool) {
		if len(b) != n {
			return "", false
		}
		return f(b), true
	}
}

func variable(b []byte) (string, bool) {
	r := bytes.NewReader(b)
	n, err := readLong(r)
	return strconv.FormatInt(n, 10), err == nil && r.Len() == 0
}

// spaced is hexadecimal, as BytesWritable has it: 00 ff.
func spaced(b []byte) string {
	out := make([]byte, 0, 3*len(b))
	for i, c := range b {
		if i > 0 {
			out = append(out, ' ')
		}
		out = hex.AppendEncode(out, []byte{c})
	}
	return string(out)
}

// Text is what a key or value of a class looks like where Hadoop's shell shows it: as its
// toString for the classes of org.apache.hadoop.io that have one value. What another class
// has written is shown in hexadecimal, as the bytes of a BytesWritable are; Hadoop's shell
// needs the class for it.
func Text(class string, b []byte) (string, error) {
	f := texts[class]
	if f == nil {
		return spaced(b), nil
	}
	s, ok := f(b)
	if !ok {
		return "", fmt.Errorf("%w: %d bytes are no %s", ErrMalformed, len(b), class)
	}
	return s, nil
}
