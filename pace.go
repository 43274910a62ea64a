package verbena

import "time"

// leastRate is how many bytes of long messages a peer has to bring a second while
// others wait for the memory that its message has. A poor link carries 64 KiB.
const leastRate = 32 << 10

// A pace tells whether a peer brings the rest of a long message that has memory. What
// arrives buys the time that it takes at leastRate, and none in advance.
type pace struct {
	paid time.Time // until when what has arrived pays for
}

// begin notes that a message has got memory, or more of it.
func (p *pace) begin(now time.Time) { p.paid = now }

// brought notes that n bytes have arrived.
func (p *pace) brought(now time.Time, n int) {
	if p.paid = p.paid.Add(spell(n)); p.paid.After(now) {
		p.paid = now
	}
}

// late tells whether the peer has been behind for longer than patience, and than what
// is being read from it takes.
func (p *pace) late(now time.Time, reading int, patience time.Duration) bool {
	return now.Sub(p.paid) > patience+spell(reading)
}

// spell is how long n bytes may take.
func spell(n int) time.Duration { return time.Duration(n) * time.Second / leastRate }
