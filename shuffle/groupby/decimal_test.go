package groupby

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestDecimal(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "12": "12", "+7": "7", "1.50": "1.5", "-0.25": "-0.25", ".5": "0.5", "5.": "5", "1e3": "1000", "1.5e-3": "0.0015", "6.02E+23": "602000000000000000000000",
		"123456789012345678901234567890.5": "123456789012345678901234567890.5", "9223372036854775807": "9223372036854775807", "00000000000000000000000012": "12",
	} {
		d, err := parseDecimal([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := string(d.append(nil)); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", "-", ".", "1.2.3", "1e", "e5", "NaN", "inf", "0x10", "1 ", " 1", "1e999", "1_000", "--1"} {
		if d, err := parseDecimal([]byte(text)); err == nil {
			t.Errorf("%q is %s", text, d.append(nil))
		}
	}
}

// TestSums adds numbers of all sizes beside big.Rat.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		want := new(big.Rat)
		var sum decimal
		for range r.IntN(20) {
			var text []byte
			if r.IntN(2) == 0 {
				text = append(text, '-')
			}
			for range 1 + r.IntN(1+r.IntN(25)) {
				text = append(text, byte('0'+r.IntN(10)))
			}
			if r.IntN(2) == 0 {
				text = append(text, '.')
				for range 1 + r.IntN(1+r.IntN(25)) {
					text = append(text, byte('0'+r.IntN(10)))
				}
			}
			d, err := parseDecimal(text)
			if err != nil {
				t.Fatal(err)
			}
			d, err = decodeDecimal(d.encode(nil))
			if err != nil {
				t.Fatal(err)
			}
			sum = sum.plus(d)
			number, _ := new(big.Rat).SetString(string(text))
			want.Add(want, number)
		}
		got, ok := new(big.Rat).SetString(string(sum.append(nil)))
		if !ok || got.Cmp(want) != 0 {
			t.Fatalf("%s, want %s", sum.append(nil), want.FloatString(30))
		}
	}
}

func FuzzDecimal(f *testing.F) {
	f.Add([]byte("-12.50e3"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseDecimal(text)
		if err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(string(text))
		got, fine := new(big.Rat).SetString(string(d.append(nil)))
		if !ok || !fine || got.Cmp(want) != 0 {
			t.Errorf("%q is %s", text, d.append(nil))
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add((&state{count: 3, sum: decimal{units: -5, scale: 2}}).encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(b)
		if err != nil {
			return
		}
		again, err := decodeState(s.encode(nil))
		if err != nil || again.count != s.count || string(again.sum.append(nil)) != string(s.sum.append(nil)) {
			t.Errorf("%+v %+v %v", s, again, err)
		}
	})
}
