//go:build verbenadebug

package verbena

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// In this build each message and buffer that the application gets, of calls and streams too, is one of its own,
// which is never used again. So a use after the last Release is found even if others
// have got the memory since. It panics, with the places of both; the memory is
// overwritten, so that a slice which somebody kept shows it too. What is not released
// when the runtime is closed is logged with the place where it was got.

// poison is what memory holds that has been released.
const poison = 0xdb

// A checked buffer stands before the runtime's own.
type checked struct {
	Message
	e        *Endpoint
	inner    *Buffer
	got      trace
	released atomic.Pointer[trace]
}

type trace [16]uintptr

func here() (t trace) {
	runtime.Callers(3, t[:])
	return t
}

func (t *trace) String() string {
	var b strings.Builder
	frames := runtime.CallersFrames(t[:])
	for {
		f, more := frames.Next()
		if f.Function == "" {
			return b.String()
		}
		fmt.Fprintf(&b, "\n\t%s\n\t\t%s:%d", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}

// outstanding are the buffers that applications, or sends, have.
var outstanding struct {
	sync.Mutex
	set map[*checked]struct{}
}

func newChecked(e *Endpoint, tag uint32, inner *Buffer) *checked {
	c := &checked{e: e, inner: inner, got: here()}
	c.Tag, c.data, c.front, c.owner = tag, inner.data, inner.front, c
	outstanding.Lock()
	defer outstanding.Unlock()
	if outstanding.set == nil {
		outstanding.set = map[*checked]struct{}{}
	}
	outstanding.set[c] = struct{}{}
	return c
}

func checkedMessage(e *Endpoint, m *Message) *Message {
	if m == nil {
		return nil
	}
	return &newChecked(e, m.Tag, &m.Buffer).Message
}

func checkedBuffer(e *Endpoint, b *Buffer) *Buffer {
	if b == nil {
		return nil
	}
	return &newChecked(e, 0, b).Buffer
}

// used panics if the buffer has been released.
func (c *checked) used(use string) {
	if at := c.released.Load(); at != nil {
		panic(fmt.Sprintf("verbena: %s of a buffer after its last Release\ngot at%s\nreleased at%s\nused", use, &c.got, at))
	}
}

func (c *checked) location() location { return c.inner.owner.location() }

func (c *checked) intact() bool { return intact(c.inner.owner) }

func (c *checked) viewed() *longMessage { return viewed(c.inner.owner) }

func (c *checked) release() {
	at := here()
	if !c.released.CompareAndSwap(nil, &at) {
		c.used("a second Release")
	}
	outstanding.Lock()
	delete(outstanding.set, c)
	outstanding.Unlock()
	// Memory of the application, and of the peer, stays as it is.
	if c.location().user == nil && c.viewed() == nil {
		for i := range c.inner.data {
			c.inner.data[i] = poison
		}
	}
	c.data = nil
	c.inner.Release()
}

// reportHeld tells which buffers of a runtime that closes have not been released.
func reportHeld(env *environment) {
	outstanding.Lock()
	defer outstanding.Unlock()
	for c := range outstanding.set {
		if c.e.env == env {
			env.log.Error("a buffer was not released before the runtime was closed", "bytes", len(c.data), "service", c.e.service, "peer", c.e.remote, "got at", c.got.String())
		}
	}
}
