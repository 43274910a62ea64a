package shuffle_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle"
)

// A watched log tells when something has been written.
type watchedLog struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func (w *watchedLog) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.written <- struct{}{}:
	default:
	}
	return w.text.Write(b)
}

// A process that joins before another one has, tries until it has, and nobody is warned.
func TestEarlyDialsWarnNobody(t *testing.T) {
	ctx := testContext(t)
	log := &watchedLog{written: make(chan struct{}, 1)}
	var configs []shuffle.Config
	var addresses []string
	for rank := range 2 {
		r, err := verbena.New(verbena.Config{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		ln, err := r.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, ln.Addr().String())
		configs = append(configs, shuffle.Config{Runtime: r, Listener: ln, Rank: rank, Size: 2})
	}
	var exchanges [2]*shuffle.Exchange
	var errs [2]error
	var all sync.WaitGroup
	for rank := 1; rank >= 0; rank-- {
		configs[rank].Addresses = addresses
		all.Go(func() { exchanges[rank], errs[rank] = shuffle.Join(ctx, configs[rank]) })
		if rank == 1 {
			<-log.written // process 0 has refused it
		}
	}
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	exchangeAll(t, exchanges[:], 10, 100)
	for _, x := range exchanges {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if text := log.text.String(); !strings.Contains(text, "unknown service") || strings.Contains(text, "level=WARN") {
		t.Errorf("the log has:\n%s", text)
	}
}
