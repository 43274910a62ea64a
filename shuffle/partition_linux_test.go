package shuffle_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/testnet"
	"github.com/verbena-data/verbena/shuffle"
)

var allPartitions = flag.Bool("partitions", false, "cut networks for good over TCP, too: half a minute")

// jobOnCable starts a job with two processes on either host of a cable.
func jobOnCable(t *testing.T, r role) (*testnet.Cable, []*process) {
	cable := testnet.New(t)
	return cable, startJobOn(t, r, func(rank int) (string, func(func())) {
		h := cable.A
		if rank >= r.Size/2 {
			h = cable.B
		}
		return h.Address, h.Do
	})
}

// farTransports are how processes on different hosts are connected; with the empty one those on the same host use
// shared memory.
var farTransports = []string{verbena.TransportTCP, "iwarp", ""}

// When all packets between two hosts vanish in the middle of a job, for good, and neither is told, each process of it ends
// within the time that a peer may be silent, and says that one on the other host was lost.
func TestHostsAreCutOff(t *testing.T) {
	for _, transport := range farTransports {
		t.Run("transport "+transport, func(t *testing.T) {
			if transport == verbena.TransportTCP && !*allPartitions {
				t.Skip("over TCP a peer may be silent for half a minute: it runs with -partitions")
			}
			t.Parallel()
			cable, job := jobOnCable(t, role{Size: 4, Threads: 2, Transport: transport, PeerTimeout: "1500ms"})
			cable.Cut()
			for rank, p := range job {
				far := 2 - rank/2*2 // or the one behind it
				line := p.line(t)
				one, other := fmt.Sprintf("end process %d: %v", far, shuffle.ErrPeerLost), fmt.Sprintf("end process %d: %v", far+1, shuffle.ErrPeerLost)
				if !strings.HasPrefix(line, one) && !strings.HasPrefix(line, other) {
					t.Errorf("process %d: %q", rank, line)
				}
			}
		})
	}
}

// When packets arrive again before that time is over, the job goes on, and every record has arrived once.
func TestHostsAreCutOffForAWhile(t *testing.T) {
	for _, transport := range farTransports {
		t.Run("transport "+transport, func(t *testing.T) {
			t.Parallel()
			cable, job := jobOnCable(t, role{Size: 4, Threads: 2, Transport: transport, Records: 2000, Hold: true})
			for rank, p := range job {
				if line := p.line(t); line != "half" {
					t.Fatalf("process %d: %q", rank, line)
				}
			}
			before := resent(t, cable.A) + resent(t, cable.B)
			cable.Cut()
			for _, p := range job {
				fmt.Fprintln(p.in, "go on")
			}
			for tick := time.NewTicker(10 * time.Millisecond); resent(t, cable.A)+resent(t, cable.B) < before+4; {
				<-tick.C
			}
			cable.Heal()
			endWell(t, job, 8*8*2000)
		})
	}
}

// resent is how many TCP segments a host has sent again.
func resent(t *testing.T, h *testnet.Host) (n int) {
	var text []byte
	var err error
	h.Do(func() { text, err = os.ReadFile("/proc/thread-self/net/snmp") })
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "RetransSegs" {
				if n, err = strconv.Atoi(fields[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return n
}
