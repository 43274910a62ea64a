//go:build unix

package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/internal/race"
)

// bookVariable names the file in which the peer process keeps the numbers of the calls
// that it has carried out. What a process has written outlives it.
const bookVariable = "VERBENA_TEST_BOOK"

// methodBook enters the number at the beginning of its payload into the book.
const methodBook uint32 = 100

func keepBook(name string, q Request) {
	book, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer book.Close()
	if _, err := book.Write(q.Payload()[:8]); err != nil { // at once, behind those of others
		panic(err)
	}
	_ = q.Reply(q.Payload()) // the endpoint's end tells
}

func readBook(t *testing.T, name string) map[uint64]int {
	t.Helper()
	book, err := os.ReadFile(name)
	if err != nil || len(book)%8 != 0 {
		t.Fatalf("a book of %d bytes: %v", len(book), err)
	}
	runs := map[uint64]int{}
	for ; len(book) > 0; book = book[8:] {
		runs[binary.BigEndian.Uint64(book)]++
	}
	return runs
}

// A server process is killed again and again under callers who use a pool, and another
// one takes its place at its address. What the processes have carried out stands in one
// book: no call stands there twice, none that was not sent, each that was answered; and
// callers know of each what became of it, or that it is unknown.
func TestPoolCallsOfKilledServers(t *testing.T) {
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue // a network within one process
		}
		t.Run(w.name, func(t *testing.T) { poolCallsOfKilledServers(t, w) })
	}
}

func poolCallsOfKilledServers(t *testing.T, w world) {
	kills, enough := 6, int64(300)
	if race.Enabled || w.address != "" { // an emulated machine
		kills, enough = 3, 100
	}
	book := filepath.Join(t.TempDir(), "book")
	cmd, addr := startPeer(t, w, bookVariable+"="+book)
	providers, _ := w.providers(t)
	r := newRuntime(t, Config{}, providers)
	ctx := testContext(t)
	pool := newCallPool(t, r, CallPoolConfig{PoolConfig: PoolConfig{Service: "calls/1", Endpoints: 2, Dial: DialConfig{Transport: w.transport}}})
	var mu sync.Mutex
	outcomes := map[uint64]outcome{}
	var numbers atomic.Uint64
	var answered atomic.Int64
	reached := make(chan struct{}, 1) // so many answers more
	work, stop := context.WithCancel(ctx)
	defer stop()
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			payload := bytes.Clone(pattern(8+i*500, i))
			for work.Err() == nil {
				id := numbers.Add(1)
				binary.BigEndian.PutUint64(payload, id)
				m, err := pool.Call(work, addr, Intent{}, methodBook, payload)
				o := outcomeUnknown
				switch {
				case err == nil:
					if o = outcomeAnswered; !bytes.Equal(m.Bytes(), payload) {
						t.Errorf("call %d got the answer to another", id)
					}
					m.Release()
					if answered.Add(1)%enough == 0 {
						select {
						case reached <- struct{}{}:
						default:
						}
					}
				case errors.Is(err, ErrNotSent):
					o = outcomeNotDone
				case !errors.Is(err, ErrOutcomeUnknown):
					t.Errorf("call %d, whose caller does not know what became of it: %v", id, err)
				}
				mu.Lock()
				outcomes[id] = o
				mu.Unlock()
			}
		})
	}
	for i := range kills + 1 {
		select {
		case <-reached:
		case <-ctx.Done():
			t.Errorf("after %d kills no calls are answered any more", i)
		}
		if i == kills || ctx.Err() != nil {
			break
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		select {
		case <-reached: // of the one before
		default:
		}
		cmd, _ = startPeer(t, w, bookVariable+"="+book, listenVariable+"="+addr)
	}
	stop()
	callers.Wait()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill() // so that the book is at its end
	_ = cmd.Wait()
	runs, count := readBook(t, book), map[outcome]int{}
	for id, o := range outcomes {
		if count[o]++; o.contradicts(runs[id]) {
			t.Errorf("call %d was carried out %d times, and its caller knows %d (0 nothing, 1 that it was answered, 2 that it was not done)", id, runs[id], o)
		}
		delete(runs, id)
	}
	if len(runs) > 0 {
		t.Errorf("%d calls were carried out that nobody has made", len(runs))
	}
	t.Logf("%d calls were answered, %d not sent, of %d the outcome is unknown", count[outcomeAnswered], count[outcomeNotDone], count[outcomeUnknown])
}
