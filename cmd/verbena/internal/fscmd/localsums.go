package fscmd

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
)

// sumsChunk is how many bytes one checksum covers in files beside local ones.
const sumsChunk = 512

// sums makes what Hadoop's local file system keeps beside a file: "crc" and a zero byte, the
// length of a chunk, and for each chunk the CRC-32 of its bytes, integers big-endian.
type sums struct {
	out   bytes.Buffer
	chunk uint32 // the checksum so far
	have  int
}

func newSums() *sums {
	s := &sums{}
	s.out.WriteString("crc\x00")
	s.out.Write(binary.BigEndian.AppendUint32(nil, sumsChunk))
	return s
}

// Write never fails.
func (s *sums) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(sumsChunk-s.have, len(rest))
		s.chunk = crc32.Update(s.chunk, crc32.IEEETable, rest[:n])
		if s.have += n; s.have == sumsChunk {
			s.end()
		}
		rest = rest[n:]
	}
	return len(p), nil
}

func (s *sums) end() {
	s.out.Write(binary.BigEndian.AppendUint32(nil, s.chunk))
	s.chunk, s.have = 0, 0
}

// store writes them beside a local file.
func (s *sums) store(local string) error {
	if s.have > 0 {
		s.end()
	}
	return os.WriteFile(filepath.Join(filepath.Dir(local), "."+filepath.Base(local)+".crc"), s.out.Bytes(), 0o644)
}
