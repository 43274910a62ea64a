// Package jobtest has what tests of jobs share: the processes of a job within one test, and a large text.
package jobtest

import (
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
)

// Exchanges are those of several processes, all in this one, each with a runtime of its own.
func Exchanges(t *testing.T, size, threads int) (all []*shuffle.Exchange) {
	t.Helper()
	configs := make([]shuffle.Config, size)
	addresses := make([]string, size)
	for rank := range size {
		configs[rank] = shuffle.Config{Rank: rank, Size: size, Threads: threads, Addresses: addresses}
		if size == 1 {
			break
		}
		r, err := verbena.New(verbena.Config{Providers: providers.Default(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		l, err := r.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		addresses[rank] = l.Addr().String()
		configs[rank].Runtime, configs[rank].Listener = r, l
	}
	all = make([]*shuffle.Exchange, size)
	errs := make([]error, size)
	var group sync.WaitGroup
	for rank := range size {
		group.Go(func() { all[rank], errs[rank] = shuffle.Join(t.Context(), configs[rank]) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, x := range all {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// Dictionary is the text of the GNU Collaborative International Dictionary of English, 40 MB.
func Dictionary(t *testing.T) []byte {
	t.Helper()
	const name = "/usr/share/dictd/gcide.dict.dz"
	packed, err := os.Open(name)
	if err != nil {
		testneed.Missing(t, name+" is not there", "apt-get install dict-gcide")
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
