package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// A call that a server carried out before it was killed counts as one that the next server
// carries out twice.
func TestCallsBookOutlivesItsServer(t *testing.T) {
	name := filepath.Join(t.TempDir(), "book")
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	// serve opens the book as a server does, and has it carry out calls with these numbers.
	serve := func(numbers ...uint64) *callsBook {
		b, err := openCallsBook(name)
		if err != nil {
			t.Fatal(err)
		}
		mux := b.mux()
		defer mux.Close()
		l, err := rt.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{callsService}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go serveEach(t.Context(), l.Accept, func(ep *verbena.Endpoint) { _ = mux.Serve(ep) })
		pool, err := rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Service: callsService}})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		for _, n := range numbers {
			payload := binary.BigEndian.AppendUint64(nil, n)
			m, err := pool.Call(t.Context(), l.Addr().String(), verbena.Intent{}, callOnce, payload)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.Bytes(), payload) {
				t.Errorf("%x", m.Bytes())
			}
			m.Release()
		}
		return b
	}
	first := serve(1, 2, 3) // and is killed: nobody closes its book
	if len(first.numbers) != 3 || first.twice != 0 {
		t.Errorf("%d calls, %d of them twice", len(first.numbers), first.twice)
	}
	second := serve(4, 2)
	if len(second.numbers) != 4 || second.twice != 1 {
		t.Errorf("%d calls, %d of them twice", len(second.numbers), second.twice)
	}
	for _, b := range []*callsBook{first, second} {
		if err := b.file.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCallsBook(name); err == nil {
		t.Error("takes a book that ends in the middle of a number")
	}
}
