// Package wire encodes and decodes what iWARP puts on a TCP stream: the set-up
// frames of MPA (RFC 5044, RFC 6581), the framing of its units (FPDUs), the
// segment headers of DDP (RFC 5041) and the messages of RDMAP (RFC 5040,
// RFC 7306).
//
// It is codec and nothing else: pure functions over bytes, no state, no
// allocation on the way of data. Integers are big-endian except the CRC, which
// MPA sends little-endian.
package wire
