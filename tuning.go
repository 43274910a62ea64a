package verbena

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/waking"
)

// Tuning holds the sizes and limits of one transport. A field that is zero leaves
// the value to the next table: a dial's or a listener's comes before the group's,
// the group's before the runtime's, the runtime's before the built-in one.
type Tuning struct {
	// Eager is the longest message in bytes that goes into a receive of the peer.
	// Longer ones are read by the peer, in chunks, out of this side's memory. The
	// receives of a group are as long as its own tuning says; a dial or a listener
	// can lower Eager, not raise it.
	Eager int
	// Window is how many eager messages may be on their way at first, and MaxWindow
	// how many once a peer has shown that it needs more. On a device without
	// receiver-not-ready it is one at first, and Window as messages are held.
	Window, MaxWindow int
	// Chunk is how many bytes of a long message are offered at a time, and Chunks
	// how many offers of an endpoint may be open. Over TCP, Chunk is the length of
	// a fragment.
	Chunk, Chunks int
	// Spin is how long a waiting caller polls before it sleeps; negative: not at
	// all. It is the upper limit: a wait that polling did not shorten halves it, and
	// about four in a row stop polling but for a try now and then. Nobody polls
	// while more programs want to run than there are processors.
	Spin time.Duration
	// CallSpin is Spin of callers, who wait for the answer to a call, and of workers
	// that wait for requests. 0, where the built-in table has it so, means five times
	// Spin for callers and Spin for workers.
	CallSpin time.Duration
	// Stream is the longest message in bytes that rdmanet makes of a write. A write
	// of up to Pieces times Eager goes in messages of about Eager bytes instead,
	// which arrive sooner than one that the peer has to fetch.
	Stream, Pieces int
	// Packet is how many bytes a service puts into each of many messages that follow each
	// other, such as the packets of HDFS's blocks, with all that goes with them.
	Packet int
	// Own is how many endpoints of a group on a device have receives of their own; 0, as
	// in the built-in table: none. Further ones share theirs. On a device without shared
	// receives all have their own, whatever Own says.
	Own int
}

// A TuningTable holds the tuning of transports by name: "shm", "iwarp", "ibverbs",
// "tcp". [TuningTable.Set] fills it from text.
type TuningTable map[string]Tuning

// A TuningRow is a row of the built-in table.
type TuningRow struct {
	Transport string
	// Architecture is a GOARCH, or empty for all that have no row of their own.
	Architecture string
	Tuning       Tuning
	// Source tells what the values were measured on, or where they come from.
	Source string
}

// builtIn is the one table. A value is the measured place where the costs cross;
// 48 bytes more (64 of a chunk) let a layer above add its header to a round size
// and still fill a slab.
var builtIn = []TuningRow{
	{Transport: "shm", Architecture: "amd64", Tuning: shmOnAMD64, Source: "measured: writes to another process, and the demo, two cores of a Xeon and of an EPYC (docs/endpoints.md); packet: files with three replicas (docs/benchmarks/hdfs.md); max-window: calls of 64 callers (docs/benchmarks/rpc.md); spin: 30us, or more where sleepers take longer to wake each other"},
	{Transport: "shm", Tuning: shmOnAMD64, Source: "inherited from amd64: nothing else has been measured; verbena tune does"},
	{Transport: "iwarp", Architecture: "amd64", Tuning: iwarpOnAMD64, Source: "measured: as shm, over loopback; packet, too: half of it takes a quarter longer; call-spin: docs/benchmarks/hdfs-data.md; spin: 20us, or more where sleepers take longer to wake each other"},
	{Transport: "iwarp", Tuning: iwarpOnAMD64, Source: "inherited from amd64: nothing else has been measured; verbena tune does"},
	{Transport: "ibverbs", Tuning: unmeasured, Source: "inherited: no adapter has been measured; 16 KiB is four packets of InfiniBand's greatest MTU; packet from shm"},
	{Transport: TransportTCP, Source: "measured: fragments and packet over loopback; the rest is TCP's own",
		Tuning: Tuning{Packet: framedPacket, Chunk: 256 << 10, Stream: 128 << 10}},
	{Transport: "", Tuning: unmeasured, Source: "inherited from ibverbs, for providers that the table does not know"},
}

var (
	unmeasured   = Tuning{Packet: blockPacket, Eager: 16<<10 + 48, Window: 8, MaxWindow: 64, Chunk: 512<<10 + 64, Chunks: 4, Spin: 20 * time.Microsecond, Stream: 512 << 10, Pieces: 4}
	shmOnAMD64   = Tuning{Packet: blockPacket, Eager: 32<<10 + 48, Window: 4, MaxWindow: 128, Chunk: 512<<10 + 64, Chunks: 4, Spin: 30 * time.Microsecond, Stream: 512 << 10, Pieces: 4}
	iwarpOnAMD64 = Tuning{Packet: blockPacket, Eager: 32<<10 + 48, Window: 4, MaxWindow: 64, Chunk: 512<<10 + 64, Chunks: 4, Spin: 20 * time.Microsecond, CallSpin: -1, Stream: 512 << 10, Pieces: 4}
)

// blockPacket is a packet of an HDFS block: 1,016 KiB of data, which are whole pages of its
// file, with their checksums and room for a header. A packet lies in registered memory, so
// that all of it is one offer, the longest that there is. One of 1 MiB of data would be two,
// the second one of 8 KiB.
const blockPacket = wire.MaxChunk

// framedPacket is a packet over TCP: 252 KiB of data, which are whole pages, with their
// checksums and room for a header. All of it is one fragment, and fits a buffer of 256 KiB. A
// packet of 256 KiB would be two fragments, the second one of 2 KiB, in a buffer of 1 MiB.
const framedPacket = 252<<10 + 252<<10/512*4 + 64

// DefaultTuning returns the built-in table. The row without a transport is for
// providers that have none of their own.
func DefaultTuning() []TuningRow { return slices.Clone(builtIn) }

// A tuningField is a field as text knows it.
type tuningField struct {
	name        string
	least, most int64 // in the unit; of durations in nanoseconds
	number      func(*Tuning) *int
	duration    func(*Tuning) *time.Duration
	tcp         bool // it means something over TCP
}

var tuningFields = []tuningField{
	{name: "eager", least: 256, most: wire.MaxEager, number: func(t *Tuning) *int { return &t.Eager }},
	{name: "window", least: 2, most: wire.MaxWindow, number: func(t *Tuning) *int { return &t.Window }},
	{name: "max-window", least: 2, most: wire.MaxWindow, number: func(t *Tuning) *int { return &t.MaxWindow }},
	{name: "chunk", least: 4 << 10, most: wire.MaxChunk, number: func(t *Tuning) *int { return &t.Chunk }, tcp: true},
	{name: "chunks", least: 1, most: 64, number: func(t *Tuning) *int { return &t.Chunks }},
	{name: "spin", least: -1, most: int64(10 * time.Second), duration: func(t *Tuning) *time.Duration { return &t.Spin }},
	{name: "call-spin", least: -1, most: int64(10 * time.Second), duration: func(t *Tuning) *time.Duration { return &t.CallSpin }},
	{name: "stream", least: 4 << 10, most: 16 << 20, number: func(t *Tuning) *int { return &t.Stream }, tcp: true},
	{name: "pieces", least: 1, most: 64, number: func(t *Tuning) *int { return &t.Pieces }},
	{name: "packet", least: 4 << 10, most: 8 << 20, number: func(t *Tuning) *int { return &t.Packet }, tcp: true},
	{name: "own", least: 1, most: 1 << 20, number: func(t *Tuning) *int { return &t.Own }},
}

// TuningNames are the names of the fields, as [TuningTable.Set] takes them.
func TuningNames() []string {
	var names []string
	for _, f := range tuningFields {
		names = append(names, f.name)
	}
	return names
}

// Set sets a field from text: name is "shm.eager", value "32K", "64" or "20us". It
// refuses an unknown field and a value out of range, with the reason. Whether there
// is such a transport only a runtime can tell: see [New].
func (t TuningTable) Set(name, value string) error {
	transport, field, ok := strings.Cut(name, ".")
	if !ok || transport == "" {
		return fmt.Errorf("verbena: tuning %q: want TRANSPORT.FIELD, such as shm.eager", name)
	}
	i := slices.IndexFunc(tuningFields, func(f tuningField) bool { return f.name == field })
	if i < 0 {
		return fmt.Errorf("verbena: tuning %q: no field %q; there are %s", name, field, strings.Join(TuningNames(), ", "))
	}
	row := t[transport]
	f := &tuningFields[i]
	if f.duration != nil {
		d, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("verbena: tuning %s=%q: want a duration, such as 20us", name, value)
		}
		*f.duration(&row) = d
	} else {
		n, err := parseSize(value)
		if err != nil {
			return fmt.Errorf("verbena: tuning %s=%q: want a number, such as 64 or 32K", name, value)
		}
		*f.number(&row) = n
	}
	if err := row.check(transport); err != nil {
		return err
	}
	t[transport] = row
	return nil
}

func parseSize(s string) (int, error) {
	shift := 0
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		}
		if shift > 0 {
			s = s[:n-1]
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > math.MaxInt32>>shift || n < 0 {
		return 0, errors.Join(err, strconv.ErrRange)
	}
	return n << shift, nil
}

// check refuses values out of range. Zero is "not set".
func (t Tuning) check(transport string) error {
	for _, f := range tuningFields {
		var v int64
		show := strconv.FormatInt
		if f.duration != nil {
			v = int64(*f.duration(&t))
			show = func(v int64, _ int) string { return time.Duration(v).String() }
			if v < 0 {
				continue // not at all
			}
		} else {
			v = int64(*f.number(&t))
		}
		switch {
		case v == 0:
		case v < f.least || v > f.most:
			return fmt.Errorf("verbena: tuning %s.%s is %s, it can be %s to %s", transport, f.name, show(v, 10), show(max(f.least, 0), 10), show(f.most, 10))
		case transport == TransportTCP && !f.tcp:
			return fmt.Errorf("verbena: tuning %s.%s has no meaning over TCP", transport, f.name)
		}
	}
	if t.Window > 0 && t.MaxWindow > 0 && t.Window > t.MaxWindow {
		return fmt.Errorf("verbena: tuning %s.window is %d, above max-window, which is %d", transport, t.Window, t.MaxWindow)
	}
	return nil
}

// check refuses tables with rows that no transport of known has, or with values
// out of range.
func (t TuningTable) check(known []string) error {
	for _, transport := range slices.Sorted(maps.Keys(t)) {
		if !slices.Contains(known, transport) {
			return fmt.Errorf("verbena: tuning for %q, which is no transport of this runtime; there are %s", transport, strings.Join(known, ", "))
		}
		if err := t[transport].check(transport); err != nil {
			return err
		}
	}
	return nil
}

// tune returns the tuning of a transport: the built-in row, overridden by each of
// the tables in turn.
func tune(transport string, tables ...TuningTable) Tuning {
	t := DefaultTuningOf(transport).Tuning
	for _, table := range tables {
		t = t.override(table[transport])
	}
	t.MaxWindow = max(t.MaxWindow, t.Window)
	return t
}

// fitting returns the row for a transport on an architecture: that of both, or of the
// transport, or else the one of the architecture for transports without a row.
func fitting(rows []TuningRow, transport, architecture string) (best TuningRow) {
	most := -1
	for _, row := range rows {
		if row.Transport != "" && row.Transport != transport || row.Architecture != "" && row.Architecture != architecture {
			continue
		}
		fit := 0
		if row.Transport != "" {
			fit += 2
		}
		if row.Architecture != "" {
			fit++
		}
		if fit > most {
			most, best = fit, row
		}
	}
	return best
}

// DefaultTuningOf returns the row of the built-in table that a transport has on this
// architecture. Over shm and iwarp Spin is longer where sleepers take long to wake each other, which
// is measured when the process asks first, in some milliseconds.
func DefaultTuningOf(transport string) TuningRow {
	row := fitting(builtIn, transport, runtime.GOARCH)
	switch row.Transport {
	case "shm":
		row.Tuning.Spin = waking.Outlasting(row.Tuning.Spin, 1)
	case "iwarp":
		row.Tuning.Spin = waking.Outlasting(row.Tuning.Spin, waking.BySocket)
	}
	return row
}

// override returns t with the fields that o sets.
func (t Tuning) override(o Tuning) Tuning {
	for _, f := range tuningFields {
		if f.duration != nil {
			if v := *f.duration(&o); v != 0 {
				*f.duration(&t) = v
			}
		} else if v := *f.number(&o); v != 0 {
			*f.number(&t) = v
		}
	}
	return t
}

// Fields are the values that are set, as text, by the names that
// [TuningTable.Set] takes.
func (t Tuning) Fields() map[string]string {
	set := map[string]string{}
	for _, f := range tuningFields {
		if f.duration != nil {
			if d := *f.duration(&t); d != 0 {
				set[f.name] = d.String()
			}
		} else if n := *f.number(&t); n != 0 {
			set[f.name] = strconv.Itoa(n)
		}
	}
	return set
}

// polls tells whether anybody polls while waiting.
func (t *Tuning) polls() bool { return t.Spin > 0 || t.CallSpin > 0 }

func defaultWorkers() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), 8) }
