package legacy

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// conn is a connection to a DataNode whose reads and writes move their deadlines. One
// goroutine reads and one writes at a time.
type conn struct {
	net.Conn
	r            *transfer.Reader
	address      string
	readTimeout  time.Duration
	writeTimeout time.Duration
	readSet      time.Time // when the deadline was set last
	writeSet     time.Time
	kept         time.Time // since when it is idle
	again        bool      // it has served an operation before
}

// Setting a deadline for every packet would cost more than it is worth: it is set again
// when an eighth of it has passed.
func (c *conn) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(c.readSet) > c.readTimeout/8 {
		if err := c.SetReadDeadline(now.Add(c.readTimeout)); err != nil {
			return 0, err
		}
		c.readSet = now
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(c.writeSet) > c.writeTimeout/8 {
		if err := c.SetWriteDeadline(now.Add(c.writeTimeout)); err != nil {
			return 0, err
		}
		c.writeSet = now
	}
	return c.Conn.Write(b)
}

// patience sets for how long reads and writes wait from now on.
func (c *conn) patience(read, write time.Duration) {
	c.readTimeout, c.writeTimeout = read, write
	c.readSet, c.writeSet = time.Time{}, time.Time{}
}

// discard closes a connection and gives its memory back. Nobody reads from it any more.
func (c *conn) discard() {
	c.Close()
	c.r.Release()
}

// address is where a DataNode takes transfers.
func (p *Path) address(n *hdfspb.DatanodeInfoProto) string {
	host := n.GetId().GetIpAddr()
	if p.cfg.UseHostname && n.GetId().GetHostName() != "" {
		host = n.GetId().GetHostName()
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(n.GetId().GetXferPort()), 10))
}

// dial makes a new connection.
func (p *Path) dial(ctx context.Context, address string) (*conn, error) {
	dialing, cancel := context.WithTimeout(ctx, p.cfg.ConnectTimeout)
	defer cancel()
	nc, err := p.cfg.Dial(dialing, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to DataNode %s: %w", address, err)
	}
	c := &conn{Conn: nc, address: address, readTimeout: p.cfg.SocketTimeout, writeTimeout: p.cfg.WriteTimeout}
	c.r = transfer.NewReader(c, nil)
	return c, nil
}

// idle keeps connections over which a read has ended, for the next one.
type idle struct {
	most int
	age  time.Duration

	mu     sync.Mutex
	closed bool
	conns  []*conn // the youngest last
	timer  *time.Timer
}

// take returns a connection to address, or nil.
func (i *idle) take(address string) *conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	for at := len(i.conns) - 1; at >= 0; at-- {
		c := i.conns[at]
		if c.address != address || time.Since(c.kept) > i.age {
			continue
		}
		i.conns = append(i.conns[:at], i.conns[at+1:]...)
		c.again = true
		return c
	}
	return nil
}

// keeper is a connection that may have to go sooner, because its DataNode is short of memory
// for others.
type keeper interface {
	KeepFor(idle time.Duration) time.Duration
}

// put keeps a connection for a while.
func (i *idle) put(c *conn) {
	if k, ok := c.Conn.(keeper); ok && k.KeepFor(i.age) < i.age {
		c.discard()
		return
	}
	c.r.Shrink()
	c.kept = time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.most == 0 {
		c.discard()
		return
	}
	if len(i.conns) == i.most {
		i.conns[0].discard()
		i.conns = append(i.conns[:0], i.conns[1:]...)
	}
	i.conns = append(i.conns, c)
	if i.timer == nil {
		i.timer = time.AfterFunc(i.age, i.sweep)
	}
}

// sweep closes what has been idle for too long.
func (i *idle) sweep() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	n := 0
	for n < len(i.conns) && time.Since(i.conns[n].kept) >= i.age {
		i.conns[n].discard()
		n++
	}
	i.conns = append(i.conns[:0], i.conns[n:]...)
	if len(i.conns) == 0 {
		i.timer = nil
		return
	}
	i.timer.Reset(max(time.Millisecond, i.age-time.Since(i.conns[0].kept)))
}

func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.timer != nil {
		i.timer.Stop()
	}
	for _, c := range i.conns {
		c.discard()
	}
	i.conns = nil
}
