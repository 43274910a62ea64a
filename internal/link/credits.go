package link

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// credits counts the receives that either end may use of the other's.
type credits struct {
	left    int  // this side may send so many eager messages and offers
	starved bool // it has had to wait since it told the peer last

	window      int  // receives that the peer may use, or has used and not been given back
	first       int  // of them, those that it had at first
	peers       int  // credits that the peer may have
	owed        int  // of them, those to be given back with the next message
	control     int  // credit messages of this side that the peer has not given back
	owedControl int  // the peer's credit messages to be given back
	crowded     bool // the peer has had to wait, or used a credit before it had all others back
}

// returned takes what the header of a message gives back.
func (c *credits) returned(data, control int) error {
	c.left += data
	c.control -= control
	if c.left > wire.MaxWindow || c.control < 0 {
		return fmt.Errorf("%w: %d credits and %d control credits too many", wire.ErrProtocol, max(c.left-wire.MaxWindow, 0), max(-c.control, 0))
	}
	return nil
}

// take returns what the header of the next message gives back.
func (c *credits) take() (data, control uint16) {
	data, control = uint16(c.owed), uint16(c.owedControl)
	c.peers += c.owed
	c.owed, c.owedControl = 0, 0
	return data, control
}

// used notes that the peer has used a credit.
func (c *credits) used(starved bool) error {
	c.crowded = c.crowded || starved
	if c.use(); c.peers < 0 {
		return fmt.Errorf("%w: a message without a credit", wire.ErrProtocol)
	}
	return nil
}

// use is used for a peer that has a credit, and has not had to wait for it.
func (c *credits) use() {
	c.crowded = c.crowded || c.peers < c.first
	c.peers--
}

// tells is how many credit messages may be on their way to a peer that keeps
// receives for most. It has one of them ready as long as it uses credits one by one.
func (c *credits) tells(most int) int {
	if c.crowded {
		return most
	}
	return min(most, 1)
}

// Stopped tells that the peer can send nothing until the application releases a
// message, or [Machine.Grant] gives it more credits.
func (m *Machine[M]) Stopped() bool { return m.credits.peers == 0 && m.credits.owed == 0 }

// creditsDue tells that a message is worth its while that does nothing but give back:
// half of the window, which is late enough to be seldom and soon enough that the peer
// need not stop; or less, once the peer has no credit left and the application has all
// that came, of which it may keep the rest for long.
func (m *Machine[M]) creditsDue() bool {
	c := &m.credits
	return c.owed > 0 && (c.owed*2 >= c.window || c.peers == 0 && m.inbox.empty())
}

// Credits is how many eager messages and offers this side may send before the peer gives
// credits back.
func (m *Machine[M]) Credits() int { return m.credits.left }

// Window is how many receives the peer may use.
func (m *Machine[M]) Window() int { return m.credits.window }

// Released says that the application has released an eager message, so that the
// peer may use its receive again. It tells whether posts may be due for that.
func (m *Machine[M]) Released() bool {
	m.credits.owed++
	if !m.creditsDue() {
		return false
	}
	m.pump()
	return true
}

// Grant lets the peer use n receives more.
func (m *Machine[M]) Grant(n int) {
	m.credits.window += n
	m.credits.owed += n
	m.pump()
}

// Withdraw is Released without giving the credit back: the peer may use one
// receive less from here on.
func (m *Machine[M]) Withdraw() {
	m.credits.window--
	m.pump()
}
