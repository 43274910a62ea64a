package groupby

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
)

// decimal is an exact number: units / 10^scale, or large / 10^scale if large is not nil.
type decimal struct {
	units int64
	scale int
	large *big.Int
}

// maxScale bounds exponents: numbers as wide as those of float64.
const maxScale = 400

var errNumber = errors.New("not a number")

// parseDecimal reads a number such as -12.50 or 6.02e23.
func parseDecimal(text []byte) (d decimal, err error) {
	digits, negative, point, seen := 0, false, -1, false
	i := 0
	if i < len(text) && (text[i] == '-' || text[i] == '+') {
		negative = text[i] == '-'
		i++
	}
	begin, small := i, true
	for ; i < len(text); i++ {
		c := text[i]
		if c == '.' && point < 0 {
			point = i
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		seen = true
		if digits++; digits > 18 {
			small = false
		}
		if small {
			d.units = d.units*10 + int64(c-'0')
		}
	}
	mantissa := text[begin:i]
	if !seen {
		return decimal{}, errNumber
	}
	if point >= 0 {
		d.scale = i - point - 1
	}
	if i < len(text) {
		if text[i] != 'e' && text[i] != 'E' {
			return decimal{}, errNumber
		}
		exponent, err := strconv.Atoi(string(text[i+1:]))
		if err != nil || exponent > maxScale || exponent < -maxScale {
			return decimal{}, errNumber
		}
		d.scale -= exponent
	}
	if d.scale > maxScale || digits > 2*maxScale {
		return decimal{}, errNumber
	}
	if !small {
		clean := make([]byte, 0, len(mantissa))
		for _, c := range mantissa {
			if c != '.' {
				clean = append(clean, c)
			}
		}
		d.units = 0
		d.large, _ = new(big.Int).SetString(string(clean), 10)
	}
	if d.scale < 0 {
		d = d.rescaled(0)
	}
	if negative {
		if d.large != nil {
			d.large.Neg(d.large)
		} else {
			d.units = -d.units
		}
	}
	return d, nil
}

func (d decimal) integer() *big.Int {
	if d.large != nil {
		return d.large
	}
	return big.NewInt(d.units)
}

// rescaled is the same number with a scale that is not lower.
func (d decimal) rescaled(scale int) decimal {
	steps := scale - d.scale
	if steps == 0 {
		return d
	}
	if d.large == nil && steps <= 18 {
		factor := int64(1)
		for range steps {
			factor *= 10
		}
		u := d.units
		if u < 0 {
			u = -u
		}
		if hi, lo := bits.Mul64(uint64(u), uint64(factor)); hi == 0 && lo <= math.MaxInt64 {
			return decimal{units: d.units * factor, scale: scale}
		}
	}
	factor := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(steps)), nil)
	return decimal{scale: scale, large: factor.Mul(factor, d.integer())}
}

// plus is the sum. It may share memory with neither.
func (d decimal) plus(e decimal) decimal {
	if d.scale != e.scale {
		scale := max(d.scale, e.scale)
		d, e = d.rescaled(scale), e.rescaled(scale)
	}
	if d.large == nil && e.large == nil {
		if sum := d.units + e.units; (sum > d.units) == (e.units > 0) {
			return decimal{units: sum, scale: d.scale}
		}
	}
	return decimal{scale: d.scale, large: new(big.Int).Add(d.integer(), e.integer())}
}

// append writes the number without needless zeros behind the point.
func (d decimal) append(b []byte) []byte {
	if d.large == nil && d.scale == 0 {
		return strconv.AppendInt(b, d.units, 10)
	}
	text := d.integer().String()
	if text[0] == '-' {
		b, text = append(b, '-'), text[1:]
	}
	for len(text) <= d.scale {
		text = "0" + text
	}
	whole, fraction := text[:len(text)-d.scale], text[len(text)-d.scale:]
	for fraction != "" && fraction[len(fraction)-1] == '0' {
		fraction = fraction[:len(fraction)-1]
	}
	b = append(b, whole...)
	if fraction != "" {
		b = append(append(b, '.'), fraction...)
	}
	return b
}

// encode appends the number for a partial result: its scale, and its units as a varint, or
// its bytes.
func (d decimal) encode(b []byte) []byte {
	if d.large == nil {
		return binary.AppendVarint(binary.AppendUvarint(b, uint64(d.scale)<<1), d.units)
	}
	sign := byte(0)
	if d.large.Sign() < 0 {
		sign = 1
	}
	b = append(binary.AppendUvarint(b, uint64(d.scale)<<1|1), sign)
	return append(b, d.large.Bytes()...)
}

func decodeDecimal(b []byte) (decimal, error) {
	head, n := binary.Uvarint(b)
	if n <= 0 || head>>1 > 2*maxScale {
		return decimal{}, fmt.Errorf("a partial sum: %w", errNumber)
	}
	d := decimal{scale: int(head >> 1)}
	b = b[n:]
	if head&1 == 0 {
		units, n := binary.Varint(b)
		if n <= 0 || n != len(b) {
			return decimal{}, fmt.Errorf("a partial sum: %w", errNumber)
		}
		d.units = units
		return d, nil
	}
	if len(b) == 0 || len(b) > 1000 || b[0] > 1 {
		return decimal{}, fmt.Errorf("a partial sum: %w", errNumber)
	}
	d.large = new(big.Int).SetBytes(b[1:])
	if b[0] == 1 {
		d.large.Neg(d.large)
	}
	return d, nil
}
