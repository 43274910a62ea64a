package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
)

// The services of docs/hdfs-data.md. Attackers speak them from that page alone.
const (
	dataService     = "hdfs-data/1"
	dataCallService = "hdfs-data-calls/1"
)

// What attackers put before what must never be said to them. It fails the run.
const breached = "BREACHED: "

// guessedBlock is the id of a file system's first block. Ids are easily guessed; tokens
// are not.
const guessedBlock = 1 << 30

// namesPool finds the block pool, which is no secret, in what a DataNode says to who asks for
// another one.
var namesPool = regexp.MustCompile(`this DataNode holds "([^"]+)"`)

// field appends fields of protobuf messages.
type field []byte

func (f field) number(n protowire.Number, v uint64) field {
	return protowire.AppendVarint(protowire.AppendTag(f, n, protowire.VarintType), v)
}

func (f field) bytes(n protowire.Number, v []byte) field {
	return protowire.AppendBytes(protowire.AppendTag(f, n, protowire.BytesType), v)
}

// clientHeader is a ClientOperationHeaderProto for a block that is guessed, with a token of
// the attacker's own making, or none.
func (a *attacker) clientHeader() []byte {
	a.mu.Lock()
	pool := cmp.Or(a.blockPool, "?")
	a.mu.Unlock()
	block := field(nil).bytes(1, []byte(pool)).number(2, guessedBlock+rand.Uint64N(64)).number(3, 1001)
	base := field(nil).bytes(1, block)
	if rand.IntN(2) == 0 {
		base = base.bytes(2, field(nil).bytes(1, noise(40)).bytes(2, noise(20)).bytes(3, []byte("HDFS_BLOCK_TOKEN")).bytes(4, nil))
	}
	return field(nil).bytes(1, base).bytes(2, []byte("eve"))
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return b
}

// setUp is the set-up of a block for one DataNode, with the stage PIPELINE_SETUP_CREATE.
func (a *attacker) setUp(window uint32) []byte {
	const create, crc32c = 6, 2
	op := field(nil).bytes(1, a.clientHeader()).number(4, create).number(5, 1).number(6, 0).number(7, 0).number(8, 0).
		bytes(9, field(nil).number(1, crc32c).number(2, 512))
	return append(binary.BigEndian.AppendUint32([]byte{1, 0, 0, 0}, window), op...)
}

// dataPacket is a packet of data with checksums of 0.
func dataPacket(seqno uint64, length int) []byte {
	sums := (length + 511) / 512 * 4
	b := binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, uint32(length))
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint64(b, seqno)
	b = binary.BigEndian.AppendUint64(b, uint64(sums)<<32)
	return append(b, make([]byte, sums+length)...)
}

func (a *attacker) dialData(ctx context.Context, number int) (*verbena.Endpoint, error) {
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ep, err := a.runtime.Dial(dctx, a.address, dataService, verbena.DialConfig{Transport: a.transport(number)})
	if err == nil {
		a.done.Add(1)
	}
	return ep, err
}

// dataBreach breaks the protocol: it wants the DataNode to end the endpoint.
func (a *attacker) dataBreach(ctx context.Context, number int) (err error) {
	ep, err := a.dialData(ctx, number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	whole := a.setUp(1000)
	broken := slices.Clone(whole)
	broken[8+rand.IntN(3)] ^= 0xff // the first field's tag and length
	longer := dataPacket(1, 4<<10)
	binary.BigEndian.PutUint32(longer[4:], 1<<31)
	kinds := [][]byte{
		{}, {2, 0, 0}, noise(7), make([]byte, 100), append([]byte{9, 0, 0, 0}, noise(200)...), // no kind
		{17, 0, 0, 0, 0, 0, 0, 0}, {18, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, append([]byte{19, 0, 0, 0, 0, 0, 0, 0}, noise(32)...), // of the other end
		append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, whole[8:]...), append([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, whole[8:]...), // windows of 0 and 4 Gi
		broken, whole[:len(whole)-1], append(slices.Clone(whole), make([]byte, 65<<10)...),
		{4, 0, 0, 0, 0, 0, 0, 0, 1}, {3, 0, 0, 0, 0, 0, 0, 1}, {1, 0, 0, 0},
	}
	dctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if ep.Send(dctx, 1+uint32(rand.IntN(3)), kinds[rand.IntN(len(kinds))]) == nil && rand.IntN(2) == 0 {
		_ = ep.Send(dctx, 1, longer) // the endpoint may have ended
	}
	for {
		m, err := ep.Receive(dctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case dctx.Err() != nil:
			return errors.New(breached + "20 s after a breach of the protocol the endpoint lives on")
		case err != nil:
			return err
		}
		a.judgeAnswer(m.Bytes())
		m.Release()
	}
}

// judgeAnswer notes what the DataNode says of a set-up without a token.
func (a *attacker) judgeAnswer(b []byte) {
	switch {
	case len(b) < 8 || b[0] != 17:
		a.note(fmt.Errorf("a message of kind %x", b[:min(1, len(b))]))
	case b[3] == 0:
		a.note(errors.New(breached + "a set-up without a token was accepted"))
	case b[3] == 1:
		a.note(errors.New("the set-up was refused"))
	default:
		a.note(errors.New("the DataNode had no room for the set-up"))
	}
}

// dataUntrusted sets up blocks with the largest window and no good token, has packets
// follow at once, and asks to read.
func (a *attacker) dataUntrusted(ctx context.Context, number int) (err error) {
	ep, err := a.dialData(ctx, number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	const blocks = 16
	dctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for tag := range uint32(blocks) {
		if err := errors.Join(ep.Send(dctx, tag+1, a.setUp(64<<20)), ep.Send(dctx, tag+1, dataPacket(0, 60<<10))); err != nil {
			return err
		}
	}
	for range blocks {
		m, err := ep.Receive(dctx)
		if err != nil {
			return err
		}
		a.judgeAnswer(m.Bytes())
		m.Release()
	}
	return errors.Join(a.readUntrusted(dctx, number), a.ringsUntrusted(dctx, number))
}

// dataDeaf asks and asks, by hellos or by set-ups without a token, and receives no answer. The
// DataNode is to end the endpoint, for which the attacker waits.
func (a *attacker) dataDeaf(ctx context.Context, number int) (err error) {
	ep, err := a.dialData(ctx, number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	hello := append([]byte{4, 0, 0, 0, 0, 0, 0, 0}, noise(32)...)
	setUp := a.setUp(1000)
	dctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for tag := uint32(1); ; tag++ {
		if number/len(a.transports)%2 == 0 {
			err = ep.Send(dctx, 0, hello)
		} else {
			err = ep.Send(dctx, tag, setUp)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case dctx.Err() != nil:
			return errors.New(breached + "the endpoint of a peer that never receives lives on for a minute")
		case err != nil:
			return err
		}
	}
}

func (a *attacker) readUntrusted(ctx context.Context, number int) (err error) {
	pool, err := a.runtime.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
		Service: dataCallService, Dial: verbena.DialConfig{Transport: a.transport(number)}, DialTimeout: 10 * time.Second, Endpoints: 1,
	}, Attempts: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	for method := range uint32(5) { // 1 to 4, and none
		request := binary.BigEndian.AppendUint64(nil, 0)
		request = binary.BigEndian.AppendUint32(request, 1+uint32(rand.IntN(64<<10)))
		request = append(binary.BigEndian.AppendUint32(request, 0), a.clientHeader()...)
		m, err := pool.Call(ctx, a.address, verbena.Intent{}, method, request)
		var told *verbena.CallError
		switch {
		case err == nil:
			if len(m.Bytes()) > 0 {
				a.note(fmt.Errorf("%smethod %d answers without a token", breached, method))
			}
			m.Release()
		case errors.As(err, &told):
			a.note(fmt.Errorf("the read was refused: %w", told))
			if found := namesPool.FindStringSubmatch(told.Error()); found != nil {
				a.mu.Lock()
				a.blockPool = found[1]
				a.mu.Unlock()
			}
		default:
			return err
		}
	}
	return nil
}

// The calls that read through rings: one of the DataNode's, which the client reads by Get, and one of the
// client's, which the DataNode writes to.
const (
	methodRing = 4
	methodPush = 5
	ringBytes  = 8 * (512 + 8) << 10
)

// ringsUntrusted asks for a long range through both kinds of rings, without a good token.
func (a *attacker) ringsUntrusted(ctx context.Context, number int) (err error) {
	dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ep, err := a.runtime.Dial(dctx, a.address, dataCallService, verbena.DialConfig{Transport: a.transport(number)})
	if err != nil {
		return err
	}
	caller, err := verbena.NewCaller(ep, nil)
	if err != nil {
		return errors.Join(err, ep.Close())
	}
	memory, err := verbena.NewMapping(ringBytes)
	if err != nil {
		return errors.Join(err, caller.Close())
	}
	own, err := ep.Expose(ctx, verbena.ExposeConfig{Memory: memory.Bytes(), Rights: verbena.MayWrite})
	if err != nil {
		return errors.Join(err, caller.Close(), memory.Close())
	}
	defer func() { err = errors.Join(err, own.Close(), caller.Close(), memory.Close()) }()
	for _, method := range []uint32{methodRing, methodPush} {
		request := binary.BigEndian.AppendUint64(nil, 0)
		request = binary.BigEndian.AppendUint64(request, 1+rand.Uint64N(64<<20))
		request = binary.BigEndian.AppendUint64(request, 0)
		if method == methodPush {
			request = own.Token().Append(request)
		}
		stream, err := caller.Stream(ctx, method, append(request, a.clientHeader()...))
		if err != nil {
			return err
		}
		n, err := io.ReadFull(stream, make([]byte, 1))
		var told *verbena.CallError
		switch {
		case n > 0:
			a.note(fmt.Errorf("%smethod %d answers without a token", breached, method))
		case errors.As(err, &told):
			a.note(fmt.Errorf("the ring was refused: %w", told))
		}
		if err := stream.Close(); n == 0 && told == nil {
			return err
		}
	}
	if slices.ContainsFunc(memory.Bytes(), func(b byte) bool { return b != 0 }) {
		a.note(errors.New(breached + "bytes came into the ring of a reader without a token"))
	}
	return nil
}

// dataReads is what an honest reader of long ranges does; it may be stopped and killed.
func (a *attacker) dataReads(ctx context.Context, number int) (err error) {
	c, leave, err := a.filesClient(number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	name, content := fmt.Sprintf("/read-%d", number), noise(6<<20)
	w, err := c.Create(ctx, name, hdfs.CreateOptions{Replace: true, BlockSize: 8 << 20})
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		got, err := c.ReadFile(ctx, name)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, content) {
			a.note(errors.New(breached + "a reader got other bytes"))
		}
		a.done.Add(1)
	}
	return ctx.Err()
}

// dataWrites is what an honest writer does; it may be stopped and killed.
func (a *attacker) dataWrites(ctx context.Context, number int) (err error) {
	c, leave, err := a.filesClient(number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	for i := 0; ctx.Err() == nil; i++ {
		if err := c.WriteFile(ctx, fmt.Sprintf("/attack/%d-%d", number, i%4), noise(3<<20), 0o644); err != nil {
			return err
		}
		a.done.Add(1)
	}
	return ctx.Err()
}

// filesClient is an honest client over the transport of one of the attackers; leave closes it.
func (a *attacker) filesClient(number int) (c *hdfs.Client, leave func() error, err error) {
	dialer := hdfs.NewDialer(a.runtime, a.transport(number))
	if c, err = newFilesClient(a.nameNode, dialer); err != nil {
		return nil, nil, errors.Join(err, dialer.Close())
	}
	return c, func() error { return errors.Join(c.Close(), dialer.Close()) }, nil
}

func newFilesClient(nameNode string, dialer *hdfs.Dialer) (*hdfs.Client, error) {
	name, err := superuser()
	if err != nil {
		return nil, err
	}
	return hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{nameNode}, User: name, Dialer: dialer, NoLocalReads: true, BlockSize: 1 << 20})
}

// filesRow is what writers and readers of files saw during one attack.
type filesRow struct {
	attack, transport string
	times             []time.Duration // of a file, written and read back; sorted
	errs              []error
}

// files writes files over each transport, and reads them back, until stop is called,
// which returns what was seen. One file is there from before the attack.
func (s *siege) files(ctx context.Context, attack string) (stop func() []filesRow, err error) {
	content := named("/attacked", 1_300_001)
	rows := make([]filesRow, len(s.transports))
	dialers := make([]*hdfs.Dialer, len(rows))
	clients := make([]*hdfs.Client, len(rows))
	end := func() (err error) {
		for i := range rows {
			if clients[i] != nil {
				err = errors.Join(err, clients[i].Close())
			}
			if dialers[i] != nil {
				err = errors.Join(err, dialers[i].Close())
			}
		}
		return err
	}
	for i, transport := range s.transports {
		rows[i] = filesRow{attack: attack, transport: transport}
		dialers[i] = hdfs.NewDialer(s.rt, transport)
		if clients[i], err = newFilesClient(s.nameNode, dialers[i]); err != nil {
			return nil, errors.Join(err, end())
		}
	}
	if err := clients[0].WriteFile(ctx, "/attacked", content, 0o600); err != nil {
		return nil, errors.Join(err, end())
	}
	work, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range rows {
		wg.Go(func() {
			row, c, name := &rows[i], clients[i], "/honest-"+rows[i].transport
			for work.Err() == nil {
				began := time.Now()
				octx, done := context.WithTimeout(context.WithoutCancel(work), bystanderPatience) // what has begun goes on
				err := c.WriteFile(octx, name, content, 0o644)
				for _, each := range []string{name, "/attacked"} {
					var got []byte
					if err == nil {
						if got, err = c.ReadFile(octx, each); err == nil && !bytes.Equal(got, content) {
							err = fmt.Errorf("%s: %d bytes came back of %d, or others", each, len(got), len(content))
						}
					}
				}
				done()
				if err != nil {
					row.errs = append(row.errs, err)
				} else {
					row.times = append(row.times, time.Since(began))
				}
				_ = wait(work, longPace) // the end is seen above
			}
			slices.Sort(row.times)
		})
	}
	return func() []filesRow {
		cancel()
		wg.Wait()
		if err := end(); err != nil {
			rows[0].errs = append(rows[0].errs, err)
		}
		return rows
	}, nil
}

// judgeFiles keeps what writers and readers of files saw.
func (s *siege) judgeFiles(rows []filesRow) {
	for _, row := range rows {
		for _, err := range row.errs[:min(3, len(row.errs))] {
			s.wrong = append(s.wrong, fmt.Errorf("%q: files over %s: %w", row.attack, row.transport, err))
		}
		if len(row.times) == 0 {
			s.wrong = append(s.wrong, fmt.Errorf("%q: no file was written and read over %s", row.attack, row.transport))
		}
	}
	if !s.again {
		s.fileRows = append(s.fileRows, rows...)
	}
}

func (s *siege) printFiles() {
	if len(s.fileRows) == 0 {
		return
	}
	s.c.printf(`
While the DataNode is attacked, a file of 1.3 MB is written over each transport, and it and another one are read back and compared, with %v between.

| attack | transport | files | median ms | worst ms | errors |
|---|---|---:|---:|---:|---:|
`, longPace)
	for _, r := range s.fileRows {
		s.c.printf("| %s | %s | %d | %d | %d | %d |\n", r.attack, r.transport, len(r.times), median(r.times).Milliseconds(), worst(r.times).Milliseconds(), len(r.errs))
	}
}
