package foreign

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/verbena-data/verbena/rdma"
)

// PerftestPort is where perftest listens unless it is told otherwise.
const PerftestPort = "18515"

// perftestVersion is what perftest of Debian 12 says of itself; both sides tell.
const perftestVersion = "6.06"

// A Latency is a test that the client runs; client and server are told the same.
type Latency struct {
	Write      bool // ib_write_lat, else ib_send_lat
	Size       int  // bytes of a message
	Iterations int
}

// destination is perftest's struct pingpong_dest, in network byte order and with
// the padding of C: what one side tells the other of its test's queue pair.
type destination struct {
	queuePair uint32
	memory    rdma.Remote
}

const destinationSize = 56

func (d destination) encode() []byte {
	b := make([]byte, destinationSize)
	binary.BigEndian.PutUint32(b[8:], d.queuePair)
	binary.BigEndian.PutUint32(b[16:], d.memory.Key)
	binary.BigEndian.PutUint64(b[24:], d.memory.Address)
	return b
}

func decodeDestination(b []byte) (destination, error) {
	if len(b) != destinationSize {
		return destination{}, fmt.Errorf("a handshake of %d bytes, not %d", len(b), destinationSize)
	}
	return destination{
		queuePair: binary.BigEndian.Uint32(b[8:]),
		memory:    rdma.Remote{Key: binary.BigEndian.Uint32(b[16:]), Address: binary.BigEndian.Uint64(b[24:])},
	}, nil
}

// ServePerftest is the server of one run of ib_send_lat -R or ib_write_lat -R.
// Parameters travel as Sends on a first connection, on which the client always
// speaks first and gets an answer of the same form; the test runs on a second.
func ServePerftest(ctx context.Context, device rdma.Device, listener rdma.Listener, test Latency) (err error) {
	control, err := acceptEnd(ctx, device, listener, 4096)
	if err != nil {
		return fmt.Errorf("perftest server: control connection: %w", err)
	}
	defer func() { err = errors.Join(err, control.domain.Close()) }()
	version := make([]byte, 16)
	copy(version, perftestVersion)
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for _, x := range []struct {
		what   string
		answer []byte
	}{
		{"version", version},
		{"cycle buffer", number(uint32(4096))},
		{"cache line", number(uint32(64))},
		{"path MTU", []byte("3\x00")}, // 1024 bytes, by verbs' enumeration
	} {
		said, err := control.receive(ctx)
		if err != nil {
			return fmt.Errorf("perftest server: %s: %w", x.what, err)
		}
		if len(said) != len(x.answer) {
			return fmt.Errorf("perftest server: %s of %d bytes, not %d: %q", x.what, len(said), len(x.answer), said)
		}
		if x.what == "version" && string(said) != string(version) {
			return fmt.Errorf("perftest server: the client is of version %q; this speaks that of %q", said, version)
		}
		if err := control.send(ctx, x.answer); err != nil {
			return fmt.Errorf("perftest server: %s: %w", x.what, err)
		}
	}
	var mine destination
	shake := func() (destination, error) {
		said, err := control.receive(ctx)
		if err != nil {
			return destination{}, fmt.Errorf("perftest server: handshake: %w", err)
		}
		theirs, err := decodeDestination(said)
		if err != nil {
			return theirs, fmt.Errorf("perftest server: %w", err)
		}
		return theirs, control.send(ctx, mine.encode())
	}
	// The client waits for this answer before it connects.
	if _, err := shake(); err != nil {
		return err
	}
	data, err := acceptEnd(ctx, device, listener, max(test.Size, 16))
	if err != nil {
		return fmt.Errorf("perftest server: test's connection: %w", err)
	}
	defer func() { err = errors.Join(err, data.domain.Close()) }()
	target, err := data.domain.Allocate(max(test.Size, 4096), rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		return fmt.Errorf("perftest server: %w", err)
	}
	mine = destination{data.qp.Number(), rdma.Remote{Address: target.Address(), Key: target.Key()}}
	shakes := 5 // after connecting, each queue pair, before and after printing, before the test
	var theirs destination
	for range shakes {
		if theirs, err = shake(); err != nil {
			return err
		}
	}
	if test.Write {
		return data.writeLatency(ctx, target, theirs, test)
	}
	if err := data.sendLatency(ctx, test); err != nil {
		return err
	}
	_, err = shake() // the client tells that it is done
	return err
}

// sendLatency answers each message by one.
func (e *end) sendLatency(ctx context.Context, test Latency) error {
	for i := range test.Iterations {
		message, err := e.receive(ctx)
		if err != nil {
			return fmt.Errorf("perftest server: message %d: %w", i, err)
		}
		if len(message) != test.Size {
			return fmt.Errorf("perftest server: message %d is of %d bytes, not %d", i, len(message), test.Size)
		}
		if err := e.send(ctx, message); err != nil {
			return fmt.Errorf("perftest server: answer %d: %w", i, err)
		}
	}
	return nil
}

// writeLatency writes first; each side waits until the last byte of its memory
// is the count of rounds.
func (e *end) writeLatency(ctx context.Context, target rdma.Region, theirs destination, test Latency) error {
	out, err := e.domain.Allocate(test.Size, 0)
	if err != nil {
		return fmt.Errorf("perftest server: %w", err)
	}
	flag := &target.Bytes()[test.Size-1]
	for i := range test.Iterations {
		out.Bytes()[test.Size-1] = byte(i + 1)
		err := e.perform(ctx, rdma.SendRequest{Op: rdma.OpWrite, Remote: theirs.memory, SGEs: []rdma.SGE{{Region: out, Length: test.Size}}})
		if err != nil {
			return fmt.Errorf("perftest server: round %d: %w", i, err)
		}
		var none [1]rdma.Completion
		for *flag != byte(i+1) {
			// Some providers move their data in Poll.
			if _, err := e.receives.Poll(none[:]); err != nil {
				return fmt.Errorf("perftest server: round %d: %w", i, err)
			}
			runtime.Gosched()
			if ctx.Err() != nil {
				return fmt.Errorf("perftest server: round %d: the client's Write does not come: %w", i, errors.Join(ctx.Err(), e.qp.Err()))
			}
			if i+1 == test.Iterations && e.qp.State() != rdma.StateConnected {
				break // the client ends as soon as its last Write is complete
			}
		}
		if *flag != byte(i+1) {
			return fmt.Errorf("perftest server: the last Write did not land before the connection's end")
		}
	}
	return nil
}

// acceptEnd accepts one connection.
func acceptEnd(ctx context.Context, device rdma.Device, listener rdma.Listener, slot int) (*end, error) {
	request, err := listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	e, err := newEnd(device, slot, 0)
	if err != nil {
		return nil, errors.Join(err, request.Reject(nil))
	}
	if err := request.Accept(ctx, e.qp, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("accept %s: %w", request.RemoteAddress(), err), e.domain.Close())
	}
	return e, nil
}
