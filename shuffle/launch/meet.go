package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	unixPrefix = "unix:"
	protocol   = "verbena-job/3"
	// maxSaid bounds what one side says: 65,536 addresses of 60 bytes.
	maxSaid = 4 << 20
	// failLimit bounds how long it is told that a job cannot meet, to processes that have not come yet, and leastFailLimit
	// when the context has ended.
	failLimit, leastFailLimit = 5 * time.Second, time.Second
	// retryFirst and retryLast are how long a process waits before it tries rank 0 again.
	retryFirst, retryLast = 10 * time.Millisecond, time.Second
)

// hello is what a process tells rank 0, in one line.
type hello struct {
	Protocol string `json:"protocol"`
	Job      string `json:"job"`
	Rank     int    `json:"rank"`
	Size     int    `json:"size"`
	Address  string `json:"address"`
	// Failed is why the process cannot take part.
	Failed string `json:"failed,omitempty"`
}

// answer is what it gets when all have come; and again, when process 0 has done its part, or a process has failed or gone.
type answer struct {
	Addresses []string `json:"addresses,omitempty"`
	Done      bool     `json:"done,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// last is what a process tells rank 0 at its end.
type last struct {
	Done bool `json:"done,omitempty"`
	// Failed is why it could not do its part.
	Failed string `json:"failed,omitempty"`
}

// An OtherError is why another process of the job cannot do its part, or that it has gone.
type OtherError struct{ Err error }

func (e *OtherError) Error() string { return e.Err.Error() }

func (e *OtherError) Unwrap() error { return e.Err }

func otherError(format string, args ...any) error { return &OtherError{fmt.Errorf(format, args...)} }

// A Meeting is what the processes of a job know of each other. It lasts until they have done their parts: the death or the
// failure of any is noticed here, whatever they are doing. It must be closed.
//
// Its methods may be called concurrently. Of Done, Fail and Close the first call counts, of all together; the others wait for it
// and do nothing. While may be called several times, and the contexts outlive the meeting: none ends with it.
type Meeting struct {
	// Addresses at which the processes listen, by rank.
	Addresses []string

	gone  chan struct{} // closed when a process has failed or gone
	err   error         // why, and which; set before gone is closed
	read  chan struct{} // closed when nothing more is to be learnt
	say   func(last)    // tells the others
	close func()
	once  sync.Once
}

// While returns a context that ends with ctx, and when another process of the job fails, or ends before it has done its part,
// unless process 0 has done its own: its cause is an [OtherError] then.
func (m *Meeting) While(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if m.gone == nil {
		return ctx, func() { cancel(nil) }
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-m.gone:
			cancel(m.err)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// Done says that this process has done its part, and closes the meeting: its end means nothing more to the others.
func (m *Meeting) Done() { m.end(last{Done: true}) }

// Fail tells the others why this process cannot do its part, and closes the meeting.
func (m *Meeting) Fail(why error) { m.end(last{Failed: why.Error()}) }

// Close leaves the meeting. Who has said neither has gone.
func (m *Meeting) Close() { m.end(last{}) }

func (m *Meeting) end(l last) {
	m.once.Do(func() {
		if m.close == nil {
			return
		}
		if l != (last{}) {
			m.say(l)
		}
		m.close()
	})
}

// Meet tells all processes of a job the address at which this one listens, and learns
// everybody's. An address without a host, such as ":4711" or "0.0.0.0:4711", gets
// the one under which rank 0 sees this process. It waits until all have come, or for ctx; one that ends before that,
// or says by [Decline] that it will not come, ends the wait of all. An error may be kept back for 5 s, or 1 s from the
// end of ctx, in which those that come later are told.
func Meet(ctx context.Context, w Worker, address string) (*Meeting, error) {
	if w.Size <= 1 {
		return &Meeting{Addresses: []string{address}}, nil
	}
	meet := tell
	if w.Rank == 0 {
		meet = receiveAll
	}
	m, err := meet(ctx, w, address)
	if err != nil {
		return nil, fmt.Errorf("process %d of %d at the rendezvous %s: %w", w.Rank, w.Size, w.Rendezvous, err)
	}
	return m, nil
}

func network(address string) (string, string) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return "unix", path
	}
	return "tcp", address
}

// withHost puts a host where there is none, or one that stands for all.
func withHost(address string, seen net.Addr) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) {
		return address
	}
	if tcp, ok := seen.(*net.TCPAddr); ok {
		return net.JoinHostPort(tcp.IP.String(), port)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// isAbstract tells whether a socket has a name in no directory, as Linux has them.
func isAbstract(kind, place string) bool { return kind == "unix" && strings.HasPrefix(place, "@") }

// checkDirectory makes sure that nobody else has made the directory in which this user's processes meet, or may change what is
// in it. Whoever does could have them meet with processes of his own. It need not exist yet.
func checkDirectory(kind, place string) error {
	dir := filepath.Dir(place)
	if kind != "unix" || dir != ownDirectory() {
		return nil
	}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !owns(info):
		return fmt.Errorf("%s, where this user's processes meet, is %v and not a directory of this user alone: remove it, or name another place by --rendezvous or %s", dir, info.Mode(), RendezvousVariable)
	}
	return nil
}

// listen is rank 0's. It makes a socket's directory, for the user alone, if there is none.
func listen(ctx context.Context, address string) (net.Listener, error) {
	kind, place := network(address)
	if kind == "unix" && !isAbstract(kind, place) {
		dir := filepath.Dir(place)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := checkDirectory(kind, place); err != nil {
			return nil, err
		}
		// What an earlier job left is in the way.
		if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return (&net.ListenConfig{}).Listen(ctx, kind, place)
	}
	if kind == "tcp" {
		// The name is for the others; here it may stand for a loopback address, which they do not reach.
		if host, port, err := net.SplitHostPort(place); err == nil && net.ParseIP(host) == nil && !isLoopback(ctx, host) {
			place = net.JoinHostPort("", port)
		}
	}
	return (&net.ListenConfig{}).Listen(ctx, kind, place)
}

// Decline tells the processes of a job that this one cannot take part, before it has called [Meet].
func Decline(ctx context.Context, w Worker, why error) {
	if w.Size <= 1 {
		return
	}
	if w.Rank > 0 {
		ctx, cancel := context.WithTimeout(ctx, failLimit)
		defer cancel()
		kind, place := network(w.Rendezvous)
		if c, err := dialUntil(ctx, kind, place); err == nil {
			_, _ = ask(ctx, c, lines(c), hello{Protocol: protocol, Job: w.Job, Rank: w.Rank, Size: w.Size, Failed: why.Error()})
			_ = c.Close()
		}
		return
	}
	if l, err := listen(ctx, w.Rendezvous); err == nil {
		m := newMeeting(w)
		m.fail(fmt.Errorf("process 0: %w", why))
		m.serve(ctx, l)()
	}
}

// meeting is what rank 0 knows of the others.
type meeting struct {
	w  Worker
	mu sync.Mutex
	// by rank
	conns     []net.Conn
	addresses []string
	missing   int
	complete  chan struct{} // closed when all have come
	failed    chan struct{} // closed when they will not, or one has gone since
	err       error         // why; set before failed is closed
	told      int           // processes that know of it
	allTold   chan struct{}
}

func newMeeting(w Worker) *meeting {
	return &meeting{w: w, conns: make([]net.Conn, w.Size), addresses: make([]string, w.Size), missing: w.Size - 1,
		complete: make(chan struct{}), failed: make(chan struct{}), allTold: make(chan struct{})}
}

// giveUp ends the meeting for all, unless they have come.
func (m *meeting) giveUp(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.missing > 0 {
		m.failLocked(err)
	}
}

// fail ends the meeting for all, the first time.
func (m *meeting) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

func (m *meeting) failLocked(err error) {
	if m.err != nil {
		return
	}
	m.err = err
	close(m.failed)
	for _, c := range m.conns {
		if c != nil {
			m.tell(c)
		}
	}
}

// tell tells a process that has come that the meeting has failed. mu is held.
func (m *meeting) tell(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(failLimit))
	_ = json.NewEncoder(c).Encode(answer{Error: m.err.Error()})
	if m.told++; m.told == m.w.Size-1 {
		close(m.allTold)
	}
}

// serve takes what processes say. Who calls end waits until all that have come know what has become of it; and if
// the meeting has failed, a while for the others.
func (m *meeting) serve(ctx context.Context, l net.Listener) (end func()) {
	var serving sync.WaitGroup
	all, cancel := context.WithCancel(context.WithoutCancel(ctx))
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if checkPeer(c, l.Addr().Network(), l.Addr().String()) != nil {
				_ = c.Close()
				continue
			}
			serving.Go(func() { m.welcome(all, c) })
		}
	})
	return func() {
		select {
		case <-m.failed:
			m.lastCalls(ctx)
		default:
		}
		cancel()
		_ = l.Close()
		serving.Wait()
		for _, c := range m.conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
}

// lastCalls waits until all have been told that the meeting has failed, or for the limit.
func (m *meeting) lastCalls(ctx context.Context) {
	timer := time.NewTimer(failLimit)
	defer timer.Stop()
	select {
	case <-m.allTold:
		return
	case <-timer.C:
		return
	case <-ctx.Done():
	}
	timer.Reset(leastFailLimit)
	select {
	case <-m.allTold:
	case <-timer.C:
	}
}

func receiveAll(ctx context.Context, w Worker, own string) (*Meeting, error) {
	l, err := listen(ctx, w.Rendezvous)
	if err != nil {
		return nil, err
	}
	m := newMeeting(w)
	end := m.serve(ctx, l)
	select {
	case <-m.complete:
	case <-m.failed:
	case <-ctx.Done():
		m.giveUp(fmt.Errorf("%s did not come: %w", m.absent(), context.Cause(ctx)))
	}
	m.answer(own)
	select {
	case <-m.failed:
		end()
		return nil, m.err
	default:
	}
	_ = l.Close()
	met := &Meeting{Addresses: m.addresses, gone: make(chan struct{}), read: make(chan struct{}), say: m.over}
	stop := make(chan struct{})
	go func() {
		defer close(met.read)
		select {
		case <-m.failed:
			met.err = m.err
			close(met.gone)
		case <-stop:
		}
	}()
	met.close = func() {
		close(stop)
		<-met.read
		end()
	}
	return met, nil
}

// answer tells all who the others are, unless the meeting has failed.
func (m *meeting) answer(own string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	for rank, c := range m.conns[1:] {
		// Each one reaches rank 0 in its own way.
		m.addresses[0] = withHost(own, c.LocalAddr())
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if err := json.NewEncoder(c).Encode(answer{Addresses: m.addresses}); err != nil {
			m.failLocked(fmt.Errorf("telling process %d: %w", rank+1, err))
			return
		}
	}
}

// over tells all that process 0 has done its part, or has failed.
func (m *meeting) over(l last) {
	if l.Failed != "" {
		m.fail(otherError("process 0: %s", l.Failed))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns[1:] {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_ = json.NewEncoder(c).Encode(answer{Done: true}) // it may have done its part, too, and gone
	}
}

// welcome reads what a process says. Its connection stays open until its end.
func (m *meeting) welcome(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	var h hello
	in := lines(c)
	err := readLine(in, &h)
	if err == nil {
		err = m.take(h, c)
	}
	if err != nil {
		_ = json.NewEncoder(c).Encode(answer{Error: err.Error()})
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	if ctx.Err() != nil {
		return
	}
	var end last
	switch err := readLine(in, &end); {
	case ctx.Err() != nil:
	case err == nil && end.Failed != "":
		m.fail(otherError("process %d: %s", h.Rank, end.Failed))
	case err != nil:
		select {
		case <-m.complete:
			m.fail(otherError("process %d has gone before its end: %w", h.Rank, err))
		default:
			m.fail(otherError("process %d has gone before all had come: %w", h.Rank, err))
		}
	}
}

// take takes a process that belongs to the job. It keeps the connection.
func (m *meeting) take(h hello, c net.Conn) error {
	switch {
	case h.Protocol != protocol:
		return fmt.Errorf("this is a rendezvous of %s", protocol)
	case h.Job != m.w.Job:
		return errors.New("another job meets here")
	case h.Rank <= 0 || h.Rank >= min(h.Size, m.w.Size):
		return fmt.Errorf("there is no process %d of %d", h.Rank, m.w.Size)
	case h.Size != m.w.Size:
		m.giveUp(fmt.Errorf("process %d believes that there are %d, process 0 that there are %d", h.Rank, h.Size, m.w.Size))
	case h.Failed != "":
		m.giveUp(otherError("process %d: %s", h.Rank, h.Failed))
	default:
		if _, _, err := net.SplitHostPort(h.Address); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[h.Rank] != nil {
		return fmt.Errorf("there is a process %d already", h.Rank)
	}
	m.conns[h.Rank] = c
	if m.err != nil {
		m.tell(c)
		return nil
	}
	m.addresses[h.Rank] = withHost(h.Address, c.RemoteAddr())
	if m.missing--; m.missing == 0 {
		close(m.complete)
	}
	return nil
}

// absent names those that are missing.
func (m *meeting) absent() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ranks []string
	for rank, c := range m.conns {
		if rank > 0 && c == nil {
			if ranks = append(ranks, strconv.Itoa(rank)); len(ranks) == 8 {
				ranks = append(ranks, "...")
				break
			}
		}
	}
	return "processes " + strings.Join(ranks, ", ")
}

func tell(ctx context.Context, w Worker, own string) (*Meeting, error) {
	kind, place := network(w.Rendezvous)
	c, err := dialUntil(ctx, kind, place)
	if err != nil {
		return nil, err
	}
	in := lines(c)
	a, err := ask(ctx, c, in, hello{Protocol: protocol, Job: w.Job, Rank: w.Rank, Size: w.Size, Address: own})
	if err == nil && len(a.Addresses) != w.Size {
		err = fmt.Errorf("process 0 tells %d addresses of %d", len(a.Addresses), w.Size)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	m := &Meeting{Addresses: a.Addresses, gone: make(chan struct{}), read: make(chan struct{}), say: func(l last) {
		_ = c.SetWriteDeadline(time.Now().Add(failLimit))
		_ = json.NewEncoder(c).Encode(l) // process 0 may have done its part, and gone
	}}
	closing := make(chan struct{})
	go func() {
		defer close(m.read)
		var a answer
		err := readLine(in, &a)
		select {
		case <-closing:
			return
		default:
		}
		switch {
		case err != nil:
			m.err = otherError("process 0 has gone before its end: %w", err)
		case a.Error != "":
			m.err = otherError("%s", a.Error)
		default:
			return
		}
		close(m.gone)
	}()
	m.close = func() {
		close(closing)
		_ = c.Close()
		<-m.read
	}
	return m, nil
}

// dialUntil dials rank 0 until it listens.
func dialUntil(ctx context.Context, kind, place string) (net.Conn, error) {
	for pause := retryFirst; ; pause = min(2*pause, retryLast) {
		if err := checkDirectory(kind, place); err != nil {
			return nil, err
		}
		c, err := (&net.Dialer{}).DialContext(ctx, kind, place)
		if err == nil {
			if err = checkPeer(c, kind, place); err != nil {
				_ = c.Close()
				return nil, err
			}
			return c, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("process 0 does not answer: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// ask says hello and waits for the answer.
func ask(ctx context.Context, c net.Conn, in *bufio.Reader, h hello) (a answer, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(c).Encode(h); err != nil {
		return a, err
	}
	switch err := readLine(in, &a); {
	case err != nil && ctx.Err() != nil:
		return a, fmt.Errorf("not all processes have come: %w", context.Cause(ctx))
	case err != nil:
		return a, otherError("process 0 has gone: %w", err)
	case a.Error != "":
		return a, otherError("%s", a.Error)
	}
	return a, nil
}

// lines reads what the other side says.
func lines(c net.Conn) *bufio.Reader { return bufio.NewReader(io.LimitReader(c, maxSaid)) }

func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}
