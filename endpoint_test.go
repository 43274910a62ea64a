package verbena

import (
	"bytes"
	"fmt"
	"io"
	"testing"
)

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8 + seed)
	}
	return b
}

func TestMessagesOfAllSizes(t *testing.T) {
	sizes := []int{0, 1, 47, 48, 49, 255, 1 << 10, 16<<10 - 1, 16 << 10, 16<<10 + 1, 32<<10 + 1, 256 << 10, 512<<10 + 3, 5 << 20, 64 << 20}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		client, server := p.connect(t, "")
		if got := client.Selection().Transport; got != w.transport {
			t.Fatalf("transport %s, want %s: %s", got, w.transport, client.Selection())
		}
		sent := make(chan error, 1)
		go func() {
			for i, size := range sizes {
				if err := client.Send(p.ctx, uint32(i), pattern(size, i)); err != nil {
					sent <- fmt.Errorf("%d bytes: %w", size, err)
					return
				}
			}
			sent <- client.Close()
		}()
		for i, size := range sizes {
			m, err := server.Receive(p.ctx)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(size, i)) {
				t.Fatalf("message %d of %d bytes came as tag %d of %d bytes, or changed", i, size, m.Tag, len(m.Bytes()))
			}
			m.Release()
		}
		if _, err := server.Receive(p.ctx); err != io.EOF {
			t.Fatalf("after the last message: %v, want io.EOF", err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
