package native

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// token is one for so many bytes.
func token(t testing.TB, n int) verbena.Token {
	t.Helper()
	return rightsOf(t, verbena.MayRead, n)
}

func rightsOf(t testing.TB, rights verbena.Rights, n int) verbena.Token {
	t.Helper()
	b := make([]byte, verbena.TokenSize)
	b[0], b[1] = 1, byte(rights)
	b[21], b[22], b[23] = byte(n>>16), byte(n>>8), byte(n)
	w, err := verbena.ParseToken(b)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Whatever part of a window is read, the bytes that were asked for come out of it, and none
// once the window is spoiled.
func TestWindowParts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, bpc := range []uint32{512, 4096, 1 << 20, 64} {
		sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, bpc)
		if err != nil {
			t.Fatal(err)
		}
		for _, length := range []int{WindowSize, 1, 511, 512, 513, 100_000} {
			data := make([]byte, length)
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			sums := make([]byte, 4*sum.Chunks(int64(length)))
			sum.Sum(sums, data)
			w := Window{Sum: sum, Offset: 3 * WindowSize, Length: length, Lease: time.Second}
			memory := make([]byte, WindowBytes(sum, length))
			w.Token = token(t, len(memory))
			LayWindow(memory, data, sums, sum)
			again, err := ParseWindow(AppendWindow(nil, &w))
			if err != nil || again.Token != w.Token || again.Offset != w.Offset || again.Length != w.Length || again.Lease != w.Lease {
				t.Fatalf("%+v, %v", again, err)
			}
			for range 200 {
				off := random.IntN(length)
				n := 1 + random.IntN(min(length-off, 10_000))
				from, to, ok := w.Part(w.Offset+int64(off), n)
				got := make([]byte, n)
				if !ok || !w.Take(memory[from:to], w.Offset+int64(off), got) || !bytes.Equal(got, data[off:off+n]) {
					t.Fatalf("chunks of %d: %d bytes at %d of %d are others", bpc, n, off, length)
				}
				if w.Take(memory[from:to-1], w.Offset+int64(off), got) {
					t.Fatal("a part that is too short")
				}
			}
			for _, bad := range [][2]int64{{-1, 1}, {0, 0}, {0, int64(length) + 1}, {int64(length), 1}} {
				if _, _, ok := w.Part(w.Offset+bad[0], int(bad[1])); ok {
					t.Errorf("%d bytes at %d of %d", bad[1], bad[0], length)
				}
			}
			SpoilWindow(memory, sum)
			for off := 0; off < length; off += 1 + length/50 {
				from, to, _ := w.Part(w.Offset+int64(off), 1)
				if w.Take(memory[from:to], w.Offset+int64(off), make([]byte, 1)) {
					t.Fatal("a window that was taken back")
				}
			}
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	f.Add(AppendWindow(nil, &Window{Sum: transfer.CRC32C(), Offset: WindowSize, Length: 512, Lease: time.Second, Token: token(f, 516)}), int64(WindowSize), 10)
	f.Add(AppendWindow(nil, &Window{Sum: transfer.CRC32C(), Length: WindowSize, Lease: time.Second, Token: token(f, WindowSize+WindowSize/512*4)}), int64(5), WindowSize-5)
	f.Fuzz(func(t *testing.T, b []byte, off int64, n int) {
		w, err := ParseWindow(b)
		if err != nil {
			return
		}
		if !bytes.Equal(AppendWindow(nil, &w), b) {
			t.Errorf("%x came back as %+v", b, w)
		}
		if from, to, ok := w.Part(off, n); ok && (from < 0 || to <= from || to > w.Token.Len()) {
			t.Errorf("%d bytes at %d lie from %d to %d", n, off, from, to)
		} else if ok {
			w.Take(make([]byte, to-from), off, make([]byte, n))
		}
	})
}
