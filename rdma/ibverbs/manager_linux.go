//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// A manager is a channel of the connection manager and the goroutine that takes
// its events, by way of the netpoller. It exists while somebody uses it: domains,
// listeners and every communication identifier.
//
// An event is acknowledged as soon as it is copied, so that its identifier can be
// destroyed at any time. A number that is never used twice tells who gets the event.
type manager struct {
	provider *Provider

	life    sync.Mutex // orders beginning and end
	users   int
	channel *verbs.EventChannel
	file    *os.File
	done    chan struct{}

	mu       sync.Mutex
	last     uint64
	handlers map[uint64]handler
	// strays destroy requests whose listener is gone.
	strays sync.WaitGroup
}

// A handler takes the events of an identifier. It must not wait.
type handler interface{ handle(verbs.CMEvent) }

// acquire makes the manager run until release.
func (m *manager) acquire() error {
	m.life.Lock()
	defer m.life.Unlock()
	if m.users > 0 {
		m.users++
		return nil
	}
	lib, err := verbs.Load()
	if err != nil {
		return unavailable(err)
	}
	channel, err := lib.NewEventChannel()
	if err != nil {
		if errors.Is(err, verbs.ErrUnavailable) {
			err = unavailable(err)
		}
		return err
	}
	file, err := channel.File()
	if err != nil {
		channel.Close()
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		channel.Close()
		return fmt.Errorf("ibverbs: events of the connection manager: %w", err)
	}
	m.users, m.channel, m.file, m.done = 1, channel, file, make(chan struct{})
	m.mu.Lock()
	m.handlers = make(map[uint64]handler)
	m.mu.Unlock()
	go m.run(channel, raw, m.done)
	return nil
}

func (m *manager) release() {
	m.life.Lock()
	defer m.life.Unlock()
	if m.users--; m.users > 0 {
		return
	}
	_ = m.file.Close()
	<-m.done
	m.strays.Wait()
	m.channel.Close()
}

// create makes an identifier, which keeps the manager running, and names its
// handler.
func (m *manager) create(h handler) (id verbs.CMID, cookie uint64, err error) {
	if err := m.acquire(); err != nil {
		return id, 0, err
	}
	m.mu.Lock()
	m.last++
	cookie = m.last
	m.handlers[cookie] = h
	m.mu.Unlock()
	id, err = m.channel.CreateID(cookie)
	if err != nil {
		m.forget(cookie)
		m.release()
	}
	return id, cookie, err
}

// adopt takes over an identifier that came with a connection request.
func (m *manager) adopt(id verbs.CMID, h handler) (cookie uint64) {
	m.life.Lock()
	m.users++ // the listener whose event it is is a user
	m.life.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.handlers[m.last] = h
	id.SetCookie(m.last)
	return m.last
}

func (m *manager) forget(cookie uint64) {
	m.mu.Lock()
	delete(m.handlers, cookie)
	m.mu.Unlock()
}

// destroy ends an identifier. It may wait for the driver.
func (m *manager) destroy(id verbs.CMID, cookie uint64) error {
	m.forget(cookie)
	err := id.Destroy()
	m.release()
	return err
}

func (m *manager) run(channel *verbs.EventChannel, raw syscall.RawConn, done chan struct{}) {
	defer close(done)
	for {
		var event verbs.CMEvent
		var ok bool
		var failed error
		err := raw.Read(func(uintptr) bool {
			event, ok, failed = channel.Event()
			return ok || failed != nil
		})
		if err != nil {
			return // closed
		}
		if !ok {
			m.provider.config.Logger.Warn("ibverbs cannot read an event of the connection manager", "error", failed)
			time.Sleep(10 * time.Millisecond) // it may last, and must not take a processor
			continue
		}
		m.mu.Lock()
		h := m.handlers[event.Cookie]
		m.mu.Unlock()
		if event.Type == verbs.CMConnectRequest {
			l, _ := h.(*listener)
			m.request(channel, l, event)
			continue
		}
		_ = channel.Ack(event)
		if h != nil {
			h.handle(event)
		}
	}
}

// request gives a new identifier its own number before its next event is read.
func (m *manager) request(channel *verbs.EventChannel, l *listener, event verbs.CMEvent) {
	if l == nil {
		_ = channel.Ack(event)
		m.strays.Go(func() { _ = event.ID.Destroy() })
		return
	}
	r := newRequest(l, event)
	_ = channel.Ack(event)
	l.offer(r)
}
