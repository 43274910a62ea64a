// Package crc32c computes CRC32C, the checksum of FPDUs (RFC 5044 section 4.4),
// as hash/crc32 does and, where the processor can multiply 512 bits without
// carries, several times as fast: the checksum is the largest cost that iWARP in
// user space has beside the socket's copies.
package crc32c

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Update adds data to a CRC32C, which begins with 0.
func Update(crc uint32, data []byte) uint32 {
	crc, data = fast(crc, data)
	return crc32.Update(crc, castagnoli, data)
}
