package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/hostid"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

// An attacker is a process that does one kind of harm to a server, until SIGTERM.
type attacker struct {
	address    string
	nameNode   string
	transports []string
	count      int    // connections at a time
	from       string // address, where the system's choice will not do
	remote     bool
	runtime    *verbena.Runtime

	done atomic.Uint64 // connections or messages
	mu   sync.Mutex
	told map[string]int // what the server said, or what became of connections
	// blockPool is that of the DataNode, when it has told.
	blockPool string
}

// attackerReport is the last line of an attacker's output.
type attackerReport struct {
	Done uint64
	Told map[string]int
}

const reportMark = "REPORT "

var attackerKinds = map[string]func(*attacker, context.Context, int) error{
	"silent":     (*attacker).silent,
	"half-hello": (*attacker).halfHello,
	"accepted":   (*attacker).accepted,
	"shm-silent": (*attacker).silentSockets,
	"storm":      (*attacker).storm,
	"offers":     (*attacker).offers,
	"deaf":       (*attacker).deaf,
	"traffic":    (*attacker).traffic,

	"data-breach":    (*attacker).dataBreach,
	"data-untrusted": (*attacker).dataUntrusted,
	"data-writes":    (*attacker).dataWrites,
	"data-reads":     (*attacker).dataReads,
	"data-deaf":      (*attacker).dataDeaf,
}

func attackerCommand() *cobra.Command {
	a := &attacker{told: map[string]int{}}
	var uid int
	var ready string
	cmd := &cobra.Command{
		Use:    "attacker KIND ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, ok := attackerKinds[args[0]]
			if !ok {
				return fmt.Errorf("no attack is called %s", args[0])
			}
			a.address = args[1]
			if err := os.WriteFile(ready, nil, 0o644); err != nil {
				return err
			}
			if uid > 0 {
				if err := become(uid); err != nil {
					return err
				}
			}
			list, err := attackProviders(a.remote)
			if err != nil {
				return err
			}
			rt, err := verbena.New(verbena.Config{Providers: list})
			if err != nil {
				return err
			}
			a.runtime = rt // the end of the process ends it, as abruptly as attackers end
			for i := range a.count {
				go a.keep(cmd.Context(), kind, i)
			}
			<-cmd.Context().Done()
			a.mu.Lock()
			defer a.mu.Unlock()
			out, err := json.Marshal(attackerReport{Done: a.done.Load(), Told: a.told})
			fmt.Fprintln(os.Stderr, reportMark+string(out))
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&a.transports, "transports", nil, "to use in turn")
	flags.IntVar(&a.count, "count", 1, "connections at a time")
	flags.StringVar(&a.nameNode, "namenode", "", "address of the NameNode")
	flags.StringVar(&a.from, "from", "", "address to connect from")
	flags.BoolVar(&a.remote, "remote", false, "iWARP with other hosts")
	flags.IntVar(&uid, "uid", 0, "user to become")
	flags.StringVar(&ready, "ready", "", "file to write when it has started")
	return cmd
}

// attackProviders are the default ones, with or without other hosts.
func attackProviders(remote bool) ([]rdma.Provider, error) {
	settings := map[string]string{}
	if remote && slices.Contains(providers.Names(), "iwarp") {
		settings["iwarp.remote"] = "true"
	}
	return providers.New(providers.Config{Settings: settings})
}

func become(uid int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leaving all groups: %w", err)
	}
	if err := syscall.Setgid(uid); err != nil {
		return fmt.Errorf("becoming group %d: %w", uid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("becoming user %d: %w", uid, err)
	}
	return nil
}

// keep repeats an attack on one connection, and notes how each ended.
func (a *attacker) keep(ctx context.Context, attack func(*attacker, context.Context, int) error, number int) {
	for ctx.Err() == nil {
		err := attack(a, ctx, number)
		if ctx.Err() != nil {
			return
		}
		a.note(err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
		}
	}
}

// note counts an end by what was said, without the numbers that differ.
func (a *attacker) note(err error) {
	text := "ended in order"
	if err != nil {
		text = plain(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.told) < 100 || a.told[text] > 0 {
		a.told[text]++
	}
}

// plain is an error without what differs between connections: the digits.
func plain(err error) string {
	text := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '#'
		}
		return r
	}, err.Error())
	for strings.Contains(text, "##") {
		text = strings.ReplaceAll(text, "##", "#")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = text[:300]
	}
	return text
}

func (a *attacker) transport(number int) string { return a.transports[number%len(a.transports)] }

func (a *attacker) connect(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	if a.from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(a.from)}
	}
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := d.DialContext(dctx, "tcp", a.address)
	if err == nil {
		a.done.Add(1)
	}
	return conn, err
}

// listen waits until the server ends the connection, and returns what it said.
func listen(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if answer, err := hello.ReadAnswer(conn); err == nil && answer.Refusal != nil {
		return answer.Refusal
	}
	_, err := io.Copy(io.Discard, conn)
	if err == nil {
		err = errors.New("the server closed the connection")
	}
	return err
}

func (a *attacker) silent(ctx context.Context, _ int) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	return listen(ctx, conn)
}

func (a *attacker) hello(transport string) ([]byte, error) {
	host := hostid.ID()
	h := hello.Hello{Least: hello.LeastVersion, Greatest: hello.Version, Service: attackService, Host: host[:], Candidates: []hello.Candidate{{Name: transport}}}
	return h.Encode()
}

func (a *attacker) halfHello(ctx context.Context, number int) error {
	out, err := a.hello(a.transport(number))
	if err != nil {
		return err
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Write(out[:1+rand.IntN(len(out)-1)]); err != nil {
		return errors.Join(err, conn.Close())
	}
	return listen(ctx, conn)
}

// greet says a whole hello and reads the answer.
func (a *attacker) greet(ctx context.Context, transport string) (net.Conn, *hello.Accept, error) {
	out, err := a.hello(transport)
	if err != nil {
		return nil, nil, err
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err = conn.Write(out); err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // the Read tells
		var answer hello.Answer
		if answer, err = hello.ReadAnswer(conn); err == nil && answer.Refusal != nil {
			err = answer.Refusal
		}
		if err == nil {
			return conn, answer.Accept, conn.SetReadDeadline(time.Time{})
		}
	}
	return nil, nil, errors.Join(err, conn.Close())
}

func (a *attacker) accepted(ctx context.Context, number int) error {
	conn, _, err := a.greet(ctx, a.transport(number))
	if err != nil {
		return err
	}
	return listen(ctx, conn)
}

// silentSockets connects to the port that shm has of its own.
func (a *attacker) silentSockets(ctx context.Context, _ int) error {
	greeted, accept, err := a.greet(ctx, "shm")
	if err != nil {
		return err
	}
	_ = greeted.Close() // it has told the address
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", accept.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err = io.Copy(io.Discard, conn); err == nil {
		err = errors.New("the server closed the shm socket")
	}
	return err
}

// storm dials, says something, and closes.
func (a *attacker) storm(ctx context.Context, _ int) error {
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ep, err := a.runtime.Dial(dctx, a.address, attackService, verbena.DialConfig{})
	if err != nil {
		return err
	}
	a.done.Add(1)
	transport := ep.Selection().Transport
	if err := errors.Join(exchange(dctx, ep, make([]byte, 100)), ep.Close()); err != nil {
		return err
	}
	return errors.New("served over " + transport)
}

func exchange(ctx context.Context, ep *verbena.Endpoint, message []byte) error {
	if err := ep.Send(ctx, 1, message); err != nil {
		return err
	}
	m, err := ep.Receive(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	if len(m.Bytes()) != len(message) {
		return fmt.Errorf("%d bytes came back of %d", len(m.Bytes()), len(message))
	}
	return nil
}

// offers announces long messages of which 4 KiB come, and never more.
func (a *attacker) offers(ctx context.Context, number int) error {
	transport := a.transport(number)
	conn, accept, err := a.greet(ctx, transport)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if transport == verbena.TransportTCP {
		return announceOverTCP(ctx, conn)
	}
	return a.announce(ctx, transport, conn, accept)
}

const announced = 4 << 10

// offerParameters are an attacker's own, as any end may have them.
var offerParameters = wire.Parameters{Window: 8, Control: 2, Chunks: 4, Receive: 16 << 10, MaxMessage: 1 << 20}

func announceOverTCP(ctx context.Context, conn net.Conn) error {
	frame := func(kind, flags byte, length, total int) []byte {
		b := make([]byte, 16)
		b[0], b[1] = kind, flags
		binary.BigEndian.PutUint32(b[8:], uint32(length))
		binary.BigEndian.PutUint32(b[12:], uint32(total))
		return b
	}
	const opening, data, first = 1, 2, 1
	if _, err := conn.Write(append(frame(opening, 0, wire.ParametersSize, 0), offerParameters.Append(nil)...)); err != nil {
		return err
	}
	header := make([]byte, 16+wire.ParametersSize)
	if _, err := io.ReadFull(conn, header); err != nil {
		return err
	}
	peer, err := wire.ParseParameters(header[16:])
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(frame(data, first, announced, int(peer.MaxMessage)), make([]byte, announced)...)); err != nil {
		return err
	}
	return listen(ctx, conn)
}

// announce does it with a queue pair that speaks the endpoint protocol just so far.
func (a *attacker) announce(ctx context.Context, transport string, conn net.Conn, accept *hello.Accept) (err error) {
	device, err := openFabric(ctx, transport)
	if err != nil {
		return err
	}
	domain, err := device.OpenDomain(rdma.DomainConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, domain.Close()) }()
	queue, err := domain.NewCompletionQueue(256)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	region, err := domain.Allocate(64<<10, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	qp, err := domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: queue, RecvCompletions: queue, SendDepth: 8, RecvDepth: 32})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, qp.Close()) }()
	for range 32 {
		if _, err := qp.PostRecv([]rdma.RecvRequest{{SGEs: []rdma.SGE{{Region: region, Offset: 32 << 10, Length: 16 << 10}}}}); err != nil {
			return err
		}
	}
	private := append(slices.Clone(accept.Token), offerParameters.Append(nil)...)
	cctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var reply []byte
	if stream, ok := device.(rdma.StreamDevice); ok && device.Attributes().Has(rdma.CapStreams) {
		reply, err = stream.ConnectStream(cctx, qp, conn, private)
	} else {
		reply, err = qp.Connect(cctx, accept.Address, private)
	}
	if err != nil {
		return err
	}
	peer, err := wire.ParseParameters(reply)
	if err != nil {
		return err
	}
	b := region.Bytes()
	header := wire.Packet{Kind: wire.Offered, Length: wire.OfferSize}
	header.Put(b)
	offer := wire.Offer{Address: region.Address() + 8<<10, Key: region.Key(), Length: announced, Total: peer.MaxMessage}
	offer.Put(b[wire.HeaderSize:])
	if _, err := qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: region, Length: wire.HeaderSize + wire.OfferSize}}}}); err != nil {
		return err
	}
	select {
	case <-qp.Done():
		return errors.New("the server ended the connection")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *attacker) dial(ctx context.Context, number int) (*verbena.Endpoint, error) {
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return a.runtime.Dial(dctx, a.address, attackService, verbena.DialConfig{Transport: a.transport(number)})
}

// deaf sends, short and long messages, and does not receive the answers.
func (a *attacker) deaf(ctx context.Context, number int) error {
	ep, err := a.dial(ctx, number)
	if err != nil {
		return err
	}
	size := 8 << 10
	if number/len(a.transports)%2 == 1 {
		size = 1 << 20
	}
	message := make([]byte, size)
	for {
		if err := ep.Send(ctx, 1, message); err != nil {
			return errors.Join(err, ep.Close())
		}
		a.done.Add(1)
	}
}

// traffic is what an honest client does.
func (a *attacker) traffic(ctx context.Context, number int) error {
	ep, err := a.dial(ctx, number)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		size := 16 << 10
		if i%8 == 7 {
			size = 1 << 20
		}
		if err := exchange(ctx, ep, make([]byte, size)); err != nil {
			return errors.Join(err, ep.Close())
		}
		a.done.Add(1)
	}
}
