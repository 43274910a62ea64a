package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/internal/tmpfs"
	"github.com/verbena-data/verbena/providers"
)

// A loader is our client in a process of its own. It obeys the same lines as Load.java:
// a command with its arguments, answered by numbers, or by an exclamation mark and why not.
type loader struct {
	nameNode, transport, user string
	packet                    int
	legacy, native, local     bool
	messages                  bool // no Gets
	client                    *hdfs.Client
	warmed                    *hdfs.FileReader // what hot is to read
	buffer                    []byte
}

// bufferSize is TestDFSIO's: 1,000,000 bytes go in one call.
const bufferSize = 1_000_000

func loadCommand() *cobra.Command {
	l := &loader{}
	cmd := &cobra.Command{
		Use: "load", Short: "Be our client: obey commands on standard input", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&l.nameNode, "namenode", "", "`address` of the NameNode")
	flags.StringVar(&l.transport, "transport", verbena.TransportTCP, "what the bytes go over")
	flags.StringVar(&l.user, "user", "", "who to act as")
	flags.BoolVar(&l.legacy, "legacy", false, "blocks by HDFS's data transfer protocol alone")
	flags.BoolVar(&l.native, "native", false, "endpoints over TCP, too, and with them the native data path")
	flags.BoolVar(&l.local, "local", false, "read blocks of this host by their descriptors")
	flags.BoolVar(&l.messages, "no-windows", false, "small reads by messages alone")
	flags.IntVar(&l.packet, "packet", 0, "`bytes` of a packet (default: the client's)")
	return cmd
}

func (l *loader) run(ctx context.Context) (err error) {
	cfg := hdfs.ClientConfig{NameNodes: []string{l.nameNode}, User: l.user, PacketSize: l.packet, LegacyTransfers: l.legacy, NoLocalReads: !l.local, NoWindows: l.messages}
	if l.transport != verbena.TransportTCP || l.native {
		rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rt.Close()) }()
		cfg.Dialer = hdfs.NewDialer(rt, l.transport)
		defer func() { err = errors.Join(err, cfg.Dialer.Close()) }()
	}
	if l.client, err = hdfs.NewClient(cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.client.Close()) }()
	l.buffer = make([]byte, bufferSize)
	for i := range l.buffer {
		l.buffer[i] = byte(i)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		if len(words) == 0 {
			continue
		}
		numbers, err := l.obey(ctx, words[0], words[1:])
		if err != nil {
			fmt.Println("!" + strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println(strings.Trim(fmt.Sprint(numbers), "[]"))
	}
	return in.Err()
}

// obey carries one command out. Its numbers are nanoseconds.
func (l *loader) obey(ctx context.Context, command string, args []string) ([]int64, error) {
	path, numbers := "", make([]int64, 4)
	for i, arg := range args {
		if i == 0 {
			path = arg
		} else if i <= len(numbers) {
			n, err := strconv.ParseInt(arg, 10, 64)
			if err != nil {
				return nil, err
			}
			numbers[i-1] = n
		}
	}
	began := time.Now()
	var err error
	switch command {
	case "write":
		err = l.write(ctx, path, numbers[0], int(numbers[1]))
	case "read":
		err = l.read(ctx, path, numbers[0])
	case "block":
		for i := range numbers[0] {
			if err = l.write(ctx, fmt.Sprintf("%s/%d", path, i), numbers[1], int(numbers[2])); err != nil {
				break
			}
		}
	case "small":
		err = l.small(ctx, path, numbers[0], numbers[1], int(numbers[2]))
	case "pread":
		return l.pread(ctx, path, int(numbers[0]), int(numbers[1]), numbers[2])
	case "warm":
		return l.warm(ctx, path, int(numbers[0]), int(numbers[1]), numbers[2])
	case "hot":
		return l.hot(int(numbers[0]), int(numbers[1]), numbers[2])
	case "dfsio":
		return l.dfsio(ctx, path, numbers[0], numbers[1], int(numbers[2]), numbers[3] == 1)
	case "stat":
		return l.timed(int(numbers[0]), func(int) error { _, err := l.client.Stat(ctx, path); return err })
	case "alone":
		err = l.alone(path, int(numbers[0]), numbers[1])
	case "delete":
		err = l.client.RemoveAll(ctx, path)
	case "floor":
		err = l.floor(path, numbers[0])
	default:
		err = fmt.Errorf("no command %q", command)
	}
	return []int64{time.Since(began).Nanoseconds()}, err
}

// write stores length bytes, as TestDFSIO's mapper does.
func (l *loader) write(ctx context.Context, path string, length int64, replication int) error {
	w, err := l.client.Create(ctx, path, hdfs.CreateOptions{Replace: true, Replication: replication})
	if err != nil {
		return err
	}
	for left := length; left > 0; {
		n, err := w.Write(l.buffer[:min(left, bufferSize)])
		if err != nil {
			w.Abort()
			return err
		}
		left -= int64(n)
	}
	return w.Close()
}

// read reads a file from end to end.
func (l *loader) read(ctx context.Context, path string, length int64) error {
	f, err := l.client.Open(ctx, path)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer := make([]byte, bufferSize)
	for got := int64(0); ; {
		n, err := f.Read(buffer)
		got += int64(n)
		switch {
		case err == io.EOF && got == length:
			return nil
		case err == io.EOF:
			return fmt.Errorf("%s ends after %d bytes of %d", path, got, length)
		case err != nil:
			return err
		}
	}
}

// warm opens a file for hot and makes passes of a tenth of hot's reads, which neither its time nor
// its processor time has in it: one, or more until a client that may make small reads by Get makes
// nine in ten of them so. If it does not within warmFor, hot says so. The file stays open since each
// Open may read from another DataNode, whose memory the client has no windows of yet.
func (l *loader) warm(ctx context.Context, path string, count, size int, seed int64) (numbers []int64, err error) {
	if l.warmed, err = l.client.Open(ctx, path); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < warmFor; {
		var warm bool
		if numbers, warm, err = l.pass(max(1, count/10), size, seed+1); err != nil || warm {
			break
		}
	}
	return numbers, err
}

// hot makes reads as pread in the first hotSpan bytes of what warm has opened. A client that may
// make small reads by Get has to make nine in ten of them so.
func (l *loader) hot(count, size int, seed int64) ([]int64, error) {
	if l.warmed == nil {
		return nil, errors.New("hot without warm")
	}
	defer func() {
		_ = l.warmed.Close() // it was only read
		l.warmed = nil
	}()
	numbers, warm, err := l.pass(count, size, seed)
	if err == nil && !warm {
		err = fmt.Errorf("fewer than 9 of 10 reads were made by Get, behind %v that were to warm up: %+v since the client began", warmFor, l.client.WindowReads())
	}
	return numbers, err
}

// pass reads, and tells whether the reads were made as they have to be.
func (l *loader) pass(count, size int, seed int64) (numbers []int64, warm bool, err error) {
	before := l.client.WindowReads().Reads
	numbers, err = l.readAt(l.warmed, count, size, seed, hotSpan)
	gets := l.transport != verbena.TransportTCP && !l.messages && !l.legacy
	return numbers, !gets || l.client.WindowReads().Reads-before >= uint64(count)*9/10, err
}

// warmFor is for how long reads warm up at most: windows are asked for beside the reads, and one
// that was refused is asked for again after a second.
const warmFor = 10 * time.Second

// pread makes reads in a whole file, which has to be what write stores.
func (l *loader) pread(ctx context.Context, path string, count, size int, seed int64) ([]int64, error) {
	f, err := l.client.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return l.readAt(f, count, size, seed, math.MaxInt64)
}

// readAt reads size bytes at random places in the first span bytes of a file, and tells the median
// and the 99th percentile.
func (l *loader) readAt(f *hdfs.FileReader, count, size int, seed, span int64) ([]int64, error) {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	b := make([]byte, size)
	return l.timed(count, func(int) error {
		at := random.Int64N(min(f.Size(), span) - int64(size) + 1)
		_, err := f.ReadAt(b, at)
		if err == nil && b[0] != byte(at%bufferSize) {
			err = fmt.Errorf("byte %d of the file is %#x", at, b[0])
		}
		return err
	})
}

// timed calls f and tells the median and the 99th percentile.
func (l *loader) timed(count int, f func(i int) error) ([]int64, error) {
	took := make([]int64, count)
	for i := range took {
		began := time.Now()
		if err := f(i); err != nil {
			return nil, err
		}
		took[i] = time.Since(began).Nanoseconds()
	}
	slices.Sort(took)
	return []int64{took[count/2], took[count*99/100]}, nil
}

// small writes and closes count files of size bytes by several writers.
func (l *loader) small(ctx context.Context, dir string, count, size int64, writers int) error {
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		errs = make([]error, writers)
	)
	for w := range writers {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= count {
					return
				}
				if errs[w] = l.write(ctx, fmt.Sprintf("%s/%d", dir, i), size, 0); errs[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// alonePacket is how many bytes of data alone takes at once, as packets over shm have.
const alonePacket = 1016 << 10

// alone does with count blocks of length bytes, whole chunks, what a client and a DataNode do with them, but
// without anything between the two: it copies them into packets, makes checksums, compares
// these, and writes data and checksums into files below dir, which stay. It writes over the data
// files of the call before, which are in large pages as those of removed blocks are where a DataNode
// keeps them; files of checksums are new ones. So what a client and DataNodes take beyond that is
// communication.
func (l *loader) alone(dir string, count int, length int64) error {
	const chunk = 512
	packets := make([][]byte, 4) // a window's
	sums, again := make([]byte, alonePacket/chunk*4), make([]byte, alonePacket/chunk*4)
	for i := range packets {
		packets[i] = make([]byte, alonePacket)
	}
	for b := range count {
		data, err := os.OpenFile(fmt.Sprintf("%s/blk_%d", dir, b), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer data.Close()
		meta, err := os.Create(fmt.Sprintf("%s/meta_%d", dir, b))
		if err != nil {
			return err
		}
		defer meta.Close()
		for at, n := int64(0), 0; at < length; n++ {
			packet := packets[n%len(packets)][:min(length-at, alonePacket)]
			for done, summed := 0, 0; done < len(packet); {
				from := int((at + int64(done)) % bufferSize)
				done += copy(packet[done:min(len(packet), done+32<<10)], l.buffer[from:])
				whole := done / chunk * chunk // these are in a cache, as at the client
				crc32c.Sums(sums[summed/chunk*4:whole/chunk*4], packet[summed:whole], chunk)
				summed = whole
			}
			chunks := len(packet) / chunk
			crc32c.Sums(again[:4*chunks], packet, chunk)
			if !bytes.Equal(again[:4*chunks], sums[:4*chunks]) {
				return errors.New("the checksums of a packet differ from those that were made before")
			}
			if _, err := data.WriteAt(packet, at); err != nil {
				return err
			}
			if _, err := meta.WriteAt(sums[:4*chunks], at/chunk*4); err != nil {
				return err
			}
			at += int64(len(packet))
		}
		_ = tmpfs.Enlarge(int(data.Fd()), length) // as a DataNode tries; where it can't be, neither can
	}
	return nil
}

// floor writes length bytes into three files, and nothing else: what the page cache costs
// whoever keeps three replicas on one host.
func (l *loader) floor(dir string, length int64) (err error) {
	piece := make([]byte, 256<<10)
	binary.LittleEndian.PutUint64(piece, uint64(length))
	for i := range 3 {
		f, err := os.OpenFile(fmt.Sprintf("%s/floor-%d", dir, i), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		for left := length; left > 0 && err == nil; left -= int64(len(piece)) {
			_, err = f.Write(piece[:min(left, int64(len(piece)))])
		}
		if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
			return err
		}
	}
	return nil
}
