package hello

import "unicode/utf8"

// Limits of the addresses in a candidate's parameters.
const (
	MaxAddresses     = 16
	maxAddressLength = 64
)

// EncodeAddresses makes a candidate's parameters of the addresses at which the
// dialling side's devices can be reached: each a byte of length, 1 to 64, and
// text. What does not fit, by length or as more than [MaxAddresses], is left out.
func EncodeAddresses(list []string) []byte {
	var out []byte
	n := 0
	for _, a := range list {
		if !validAddress(a) || n == MaxAddresses {
			continue
		}
		out = append(append(out, byte(len(a))), a...)
		n++
	}
	return out
}

// DecodeAddresses reads a candidate's parameters. They are a hint: from the first
// address that breaks the form on, it takes them for something unknown and
// ignores them.
func DecodeAddresses(parameters []byte) []string {
	var list []string
	for len(parameters) > 0 && len(list) < MaxAddresses {
		n := int(parameters[0])
		if n >= len(parameters) || !validAddress(string(parameters[1:1+n])) {
			break
		}
		list = append(list, string(parameters[1:1+n]))
		parameters = parameters[1+n:]
	}
	return list
}

func validAddress(a string) bool {
	if len(a) == 0 || len(a) > maxAddressLength || !utf8.ValidString(a) {
		return false
	}
	for _, r := range a {
		if r <= ' ' || r == 0x7f {
			return false
		}
	}
	return true
}
