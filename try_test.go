package verbena

import (
	"bytes"
	"testing"
)

// What TrySend and TrySendRange have taken arrives whole and in order, and nothing of
// what they have refused; a peer that receives nothing holds nobody up.
func TestTrySend(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		if m := b.TryReceive(); m != nil {
			t.Fatalf("a message of %d bytes that nobody has sent", len(m.Bytes()))
		}
		var want [][]byte
		refused := false
		for i := 0; i < 10_000 && !refused; i++ {
			message := pattern([]int{0, 20, 3_000, 200_000}[i%4], i)
			var took bool
			if i%4 == 3 {
				buffer, err := a.Buffer(p.ctx, len(message)+10)
				if err != nil {
					t.Fatal(err)
				}
				copy(buffer.Bytes()[10:], message)
				if took = a.TrySendRange(7, buffer, 10, len(buffer.Bytes())); !took {
					buffer.Release()
				}
			} else {
				took = a.TrySend(7, message)
			}
			if took {
				want = append(want, message)
			} else {
				refused = true
			}
		}
		if !refused || len(want) == 0 {
			t.Fatalf("%d messages were taken, refused %v", len(want), refused)
		}
		if a.TrySend(7, make([]byte, a.MaxMessage()+1)) {
			t.Error("a message was taken that is too long")
		}
		for i, bytesWanted := range want {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Tag != 7 || !bytes.Equal(m.Bytes(), bytesWanted) {
				t.Fatalf("message %d has tag %d and %d bytes, want %d", i, m.Tag, len(m.Bytes()), len(bytesWanted))
			}
			m.Release()
		}
		if err := a.Send(p.ctx, 8, nil); err != nil {
			t.Fatal(err)
		}
		if m, err := b.Receive(p.ctx); err != nil || m.Tag != 8 {
			t.Fatalf("behind those that were taken: %v", err)
		} else {
			m.Release()
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if a.TrySend(7, nil) {
			t.Error("a closed endpoint takes a message")
		}
		if m := a.TryReceive(); m != nil {
			t.Error("a closed endpoint gives a message")
		}
	})
}
