package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
)

// content is the endless stream of bytes that belongs to a name, so that a
// reader can tell every wrong byte without having kept what was written.
type content struct{ source *rand.ChaCha8 }

func newContent(name string) *content {
	var seed [32]byte
	h := fnv.New128a()
	_, _ = io.WriteString(h, name) // a hash takes everything
	h.Sum(seed[:0])
	return &content{rand.NewChaCha8(seed)}
}

func (c *content) Read(p []byte) (int, error) { return c.source.Read(p) }

// compare reads r to its end and returns how many bytes there were, all equal
// to the name's content, or where the first wrong one is.
func compare(name string, r io.Reader) (int64, error) {
	want := newContent(name)
	got, expected := make([]byte, 256<<10), make([]byte, 256<<10)
	var at int64
	for {
		n, err := io.ReadFull(r, got)
		_, _ = want.Read(expected[:n]) // never fails
		if !bytes.Equal(got[:n], expected[:n]) {
			for i := range n {
				if got[i] != expected[i] {
					return at, &wrongByteError{name, at + int64(i)}
				}
			}
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return at, nil
		}
		if err != nil {
			return at, err
		}
	}
}

// wrongByteError is what must never happen.
type wrongByteError struct {
	name   string
	offset int64
}

func (e *wrongByteError) Error() string {
	return fmt.Sprintf("WRONG BYTE in %s at %d", e.name, e.offset)
}
