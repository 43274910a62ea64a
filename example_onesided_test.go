package verbena_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena"
)

// A table is exposed. The peer reads and counts there, and no code of the server runs.
func ExampleEndpoint_Get() {
	ctx := context.Background()
	client, server, done := twoEnds(ctx)
	defer done()

	x, err := server.Expose(ctx, verbena.ExposeConfig{Size: 4096, Rights: verbena.MayRead | verbena.MayAtomic})
	if err != nil {
		panic(err)
	}
	defer x.Close()
	copy(x.Bytes()[64:], "the first row")
	binary.NativeEndian.PutUint64(x.Bytes(), 41) // how many have asked

	token := x.Token() // the server sends token.Append(nil); the client's ParseToken reads it
	row := make([]byte, 13)
	if err := client.Get(ctx, token, 64, row); err != nil {
		panic(err)
	}
	before, err := client.FetchAdd(ctx, token, 0, 1)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s, read by %d before\n", row, before)

	// A lock is taken by who replaces 0.
	for _, owner := range []uint64{7, 8} {
		held, err := client.CompareSwap(ctx, token, 8, 0, owner)
		if err != nil {
			panic(err)
		}
		fmt.Println("taken:", held == 0)
	}
	fmt.Println(errors.Is(client.Put(ctx, token, 64, row), verbena.ErrRights))
	// Output:
	// the first row, read by 41 before
	// taken: true
	// taken: false
	// true
}

// Several operations are posted at once and waited for together. The last one tells the
// peer, who finds what the others have put.
func ExampleBatch() {
	ctx := context.Background()
	client, server, done := twoEnds(ctx)
	defer done()

	x, err := server.Expose(ctx, verbena.ExposeConfig{Size: 4096, Rights: verbena.MayWrite})
	if err != nil {
		panic(err)
	}
	defer x.Close()

	b := client.Batch() // may be used again when Do has returned
	b.Put(x.Token(), 0, []byte("hello, "))
	b.Put(x.Token(), 7, []byte("world"))
	b.Notify(3, []byte("12 bytes"))
	if err := b.Do(ctx); err != nil {
		panic(err)
	}
	m, err := server.Receive(ctx)
	if err != nil {
		panic(err)
	}
	defer m.Release()
	fmt.Printf("%d: %s: %s\n", m.Tag, m.Bytes(), x.Bytes()[:12])
	// Output: 3: 12 bytes: hello, world
}

// Memory that the program has mapped is a Buffer: it is sent from where it lies, and the
// peer may read it meanwhile.
func ExampleEndpoint_Wrap() {
	ctx := context.Background()
	client, server, done := twoEnds(ctx)
	defer done()

	m, err := verbena.NewMapping(1 << 20)
	if err != nil {
		panic(err)
	}
	copy(m.Bytes(), "a page of the cache")
	b, err := server.Wrap(ctx, m.Bytes()[:4096])
	if err != nil {
		panic(err)
	}
	x, err := server.Expose(ctx, verbena.ExposeConfig{Buffer: b, Rights: verbena.MayRead})
	if err != nil {
		panic(err)
	}
	if err := server.SendBuffer(ctx, 1, []byte("page 9: "), b); err != nil { // takes b over
		panic(err)
	}
	got, err := client.Receive(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", got.Bytes()[:27])
	got.Release()
	into := make([]byte, 6)
	if err := client.Get(ctx, x.Token(), 2, into); err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", into)
	fmt.Println(errors.Is(m.Close(), verbena.ErrInUse)) // the exposure has it
	if err := x.Close(); err != nil {
		panic(err)
	}
	// Output:
	// page 9: a page of the cache
	// page o
	// true
}
