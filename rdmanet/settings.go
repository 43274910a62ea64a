package rdmanet

import (
	"time"

	"github.com/verbena-data/verbena"
)

// settings are what Dialer and Config have in common, with defaults filled in.
type settings struct {
	chunk  int // the most bytes of a message
	piece  int // what short writes are cut into
	pieces int // how many of them a short write has at most
	linger time.Duration
	wait   time.Duration // of Close; below 0: none
}

// pieceUnit is what the size of a piece is a multiple of, in bytes, so that pieces
// of round sizes stay together.
const pieceUnit = 4 << 10

// fill sets what was not configured, from the tuning of the endpoint and its
// longest eager message. A few eager messages arrive sooner than one that
// the peer has to fetch, so short writes go in pieces.
func (s *settings) fill(t verbena.Tuning, eager int) {
	if s.chunk <= 0 {
		s.chunk, s.piece, s.pieces = t.Stream, eager&^(pieceUnit-1), t.Pieces
	}
	if s.piece <= 0 {
		s.piece = s.chunk
	}
	if s.linger <= 0 {
		s.linger = defaultLinger
	}
	if s.wait == 0 {
		s.wait = closePatience
	}
}

// next is how much of a write of which so many bytes are left goes into a
// message.
func (s *settings) next(left int) int {
	if left <= s.pieces*s.piece {
		return min(left, s.piece, s.chunk)
	}
	return min(left, s.chunk)
}
