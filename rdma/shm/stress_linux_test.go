package shm

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// Messages of random sizes go to another process and come back, many under way,
// polled in random batches, with and without sleeping in between. All come back
// in order and unharmed.
func TestEchoStress(t *testing.T) {
	for _, name := range []string{"echo", "wait", "echo shared", "wait shared"} {
		t.Run(name, func(t *testing.T) {
			part, shared := strings.CutSuffix(name, " shared")
			if shared {
				t.Setenv(sharedVariable, "1")
			}
			s, _ := with(t, part)
			total := 20_000
			if testing.Short() {
				total = 2000
			}
			const window = 48 // fewer than the echo's buffers
			source, err := s.domain.Allocate(window*bufferBytes, 0)
			if err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(1, uint64(len(part))))
			pattern := make([]byte, bufferBytes+256)
			for i := range pattern {
				pattern[i] = byte(random.Uint32())
			}
			lengths := make([]int, total)
			sent, back := 0, 0
			var c [32]rdma.Completion
			for idle := 0; back < total; {
				for sent < total && sent-back < window && random.IntN(4) != 0 {
					length := random.IntN(1 << random.IntN(17))
					lengths[sent] = length
					at := sent % window * bufferBytes
					copy(source.Bytes()[at:at+length], pattern[sent%256:])
					cut := random.IntN(length + 1)
					request := rdma.SendRequest{ID: uint64(sent), Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: source, Offset: at, Length: cut}, {Region: source, Offset: at + cut, Length: length - cut}}}
					if sent%16 == 15 {
						request.Flags = rdma.Signaled
					}
					s.send(request)
					sent++
				}
				n, err := s.cq.Poll(c[:1+random.IntN(len(c))])
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range c[:n] {
					if c.Status != rdma.StatusSuccess {
						t.Fatalf("%+v: %v", c, s.qp.Err())
					}
					if c.Op != rdma.OpRecv {
						continue
					}
					got := s.memory.Bytes()[int(c.ID%buffers)*bufferBytes:][:c.Length]
					if int(c.Length) != lengths[back] || !bytes.Equal(got, pattern[back%256:][:c.Length]) {
						t.Fatalf("message %d of %d bytes came back as %d bytes, or others", back, lengths[back], c.Length)
					}
					if err := s.repost(c.ID); err != nil {
						t.Fatal(err)
					}
					back++
				}
				if n > 0 {
					idle = 0
				} else if idle++; idle > 200 && part == "wait" {
					if err := s.cq.Arm(false); err != nil {
						t.Fatal(err)
					}
					if n, err := s.cq.Poll(c[:0]); n != 0 || err != nil {
						t.Fatal(err)
					}
					idle = 0
				} else {
					pause(idle & 63)
				}
			}
		})
	}
}
