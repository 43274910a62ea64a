package verbena

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// asked carries out an operation of the peer. Its answer is sent by another goroutine:
// this one goes on reading.
func (s *stream) asked(r *bufio.Reader, f frame, via *stream) error {
	a := service{id: f.tag, kind: operationKind(f.flags), via: via}
	rest := int(f.length) - operationHead
	head, err := r.Peek(operationHead)
	if err != nil {
		return err
	}
	x := s.e.exposed.find(binary.BigEndian.Uint64(head))
	offset := binary.BigEndian.Uint64(head[8:])
	_, _ = r.Discard(len(head)) // it is in the buffer
	length := rest              // of the memory that is touched
	switch a.kind {
	case opGet:
		length = int(f.total)
	case opCompareSwap, opFetchAdd:
		length = 8
	}
	a.verdict = judge(x, offset, length, operationNeeds[a.kind])
	a.memory, a.offset, a.length = x, int(offset), length
	switch a.kind {
	case opPut:
		err = s.put(r, &a, rest)
	case opGet:
	default:
		var words []byte
		if words, err = r.Peek(rest); err != nil {
			break
		}
		if a.verdict == verdictDone {
			var replacement uint64
			if rest == operands {
				replacement = binary.BigEndian.Uint64(words[8:])
			}
			a.verdict = a.swap(binary.BigEndian.Uint64(words), replacement)
		}
		_, _ = r.Discard(rest) // it is in the buffer
	}
	if err != nil || s.e.closing.Load() {
		return err
	}
	q := &s.errands
	q.begin.Do(func() {
		q.serve = make(chan service, streamOperations)
		s.wg.Go(s.serve)
	})
	select {
	case q.serve <- a:
		return nil
	default:
		return fmt.Errorf("%w: more than %d operations at a time", ErrProtocol, streamOperations)
	}
}

// put reads n bytes into the memory of a Put, as they come: nothing is held while the
// peer is waited for.
func (s *stream) put(r *bufio.Reader, a *service, n int) error {
	at := a.offset
	for n > 0 {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		k := min(r.Buffered(), n)
		if a.verdict == verdictDone && !a.memory.serve(func(memory []byte) {
			_, _ = r.Read(memory[at : at+k]) // it is in the buffer
		}) {
			a.verdict = verdictRevoked
		}
		if a.verdict != verdictDone {
			_, _ = r.Discard(k)
		}
		at, n = at+k, n-k
	}
	return nil
}

// serve answers the peer's operations, in their order. A lane that takes no more ends no more
// than what was asked there: the others are answered still.
func (s *stream) serve() {
	for {
		var a service
		select {
		case a = <-s.errands.serve:
		case <-s.readDone:
			return
		case <-s.e.done:
			return
		}
		via := a.via
		if via.waitBacklog(context.Background(), s.e.done, backlogLimit, nil) != nil {
			if via.aside {
				continue
			}
			return
		}
		f := frame{kind: frameAnswer, flags: uint8(a.verdict), tag: a.id}
		var err error
		switch {
		case a.verdict != verdictDone || a.kind == opPut:
			err = via.write(f, parcel{})
		case a.kind == opGet:
			f.length = uint32(a.length)
			if _, ok := a.memory.memory.(*exposedFile); ok || race.Enabled {
				err = s.serveCopy(f, a)
			} else if !a.memory.serve(func(memory []byte) { err = via.write(f, parcel{body: memory[a.offset : a.offset+a.length]}) }) {
				f.flags, f.length = uint8(verdictRevoked), 0
				err = via.write(f, parcel{})
			}
		default:
			f.length = 8
			err = via.write(f, parcel{body: binary.BigEndian.AppendUint64(s.errands.word[:0], a.value)})
		}
		if err != nil && !via.aside {
			return
		}
	}
}

// serveCopy answers a Get of a file. The race detector has all Gets served so: a write's
// end, at which it takes note of what was read, may come after the peer's next Put.
func (s *stream) serveCopy(f frame, a service) error {
	memory := classOf(a.length).take()
	defer memory.free()
	into := memory.data[:a.length]
	if code := a.memory.get(into, a.offset); code != verdictDone {
		f.flags, f.length = uint8(code), 0
		return a.via.write(f, parcel{})
	}
	return a.via.write(f, parcel{body: into})
}

// exposedPages are memory of a process, which no device reaches.
type exposedPages struct {
	env   *environment
	pages []byte
}

func (s *stream) expose(ctx context.Context, c *ExposeConfig) (exposable, error) {
	s.wantLane(ctx)
	env, size := s.e.env, c.Size
	if c.Buffer != nil {
		return s.exposeBuffer(c)
	}
	if c.Memory != nil {
		return s.exposeUser(ctx, c)
	}
	if err := s.e.borrow(ctx, env.exposed, int64(size)); err != nil {
		return nil, err
	}
	pages, err := takePages(size)
	if err != nil {
		env.exposed.give(int64(size))
		return nil, fmt.Errorf("verbena: no memory for %d bytes: %w", size, err)
	}
	return &exposedPages{env: env, pages: pages}, nil
}

func (p *exposedPages) bytes() []byte { return p.pages }

func (p *exposedPages) remote() (rdma.Remote, tokenWays) { return rdma.Remote{}, 0 }

func (p *exposedPages) withdraw() error { return nil } // the runtime asks for it each time

func (p *exposedPages) free() error {
	freePages(p.pages)
	p.env.exposed.give(int64(len(p.pages)))
	p.pages = nil
	return nil
}

// servesOperations tells whether frames of operations may come.
func (s *stream) servesOperations() bool { return s.e.features.has(hello.FeatureOneSided) }
