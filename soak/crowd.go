package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

const (
	crowdWindow  = 256 << 10 // bytes of packets that a client has on their way
	crowdPacket  = 64 << 10
	crowdBlock   = 1 << 20
	crowdAtOnce  = 16          // clients of a process that work at one time
	crowdSettled = time.Minute // for what has gone to be given back
)

// A crowdPlan says how many clients come, and what the DataNode may take for them.
type crowdPlan struct {
	clients, processes, rounds int
	size                       int // bytes of each client's file
	transports                 []string
	receive, send, native      int64 // bytes; see memory.receive, memory.send and --native-memory
}

func crowdCommand(c *common) *cobra.Command {
	var p crowdPlan
	cmd := &cobra.Command{
		Use:   "crowd",
		Short: "Have very many clients at one DataNode at once, each with endpoints of its own",
		Long: `The clients are in several processes, and keep to one transport. Each has a block open
at the DataNode at the same time as all others, reads what it has flushed, writes the rest and
reads all of it, by calls and at random places. A fifth of the processes is killed while their blocks
are open, the others leave in order. The DataNode may register no more than it was told, and when all have left it has
as many endpoints, descriptors and goroutines as before, and in a second round no more of anything.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return crowd(ctx, c, dir, &p) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&p.clients, "clients", 1000, "at one time")
	flags.IntVar(&p.processes, "processes", 20, "that they are spread over")
	flags.IntVar(&p.rounds, "rounds", 2, "how often they come")
	flags.IntVar(&p.size, "size", 300_000, "`bytes` of each client's file")
	flags.StringSliceVar(&p.transports, "transports", []string{"shm"}, "which to try, one after the other: shm, iwarp, tcp")
	flags.Int64Var(&p.receive, "receive", 1<<30, "`bytes` that each server may register for what arrives (memory.receive)")
	flags.Int64Var(&p.send, "send", 512<<20, "`bytes` that it may register for what it sends (memory.send)")
	flags.Int64Var(&p.native, "native", 320<<20, "`bytes` of windows that the DataNode may reserve (--native-memory)")
	return cmd
}

func crowd(ctx context.Context, c *common, dir string, p *crowdPlan) error {
	if p.processes < 2 || p.clients < p.processes || p.rounds < 1 || p.size < 2 {
		return fmt.Errorf("%d clients in %d processes, %d rounds, files of %d bytes: want two processes at least, a client in each, a round and two bytes", p.clients, p.processes, p.rounds, p.size)
	}
	c.printf("# Very many clients at one DataNode\n\n`go run ./soak crowd --clients %d --processes %d --rounds %d --transports %s`; files of %d bytes. The DataNode may register %d MiB for what arrives and %d for what it sends, and reserve %d MiB for windows.\n\n",
		p.clients, p.processes, p.rounds, strings.Join(p.transports, ","), p.size, p.receive>>20, p.send>>20, p.native>>20)
	c.printf("| transport | round | | endpoints | descriptors | goroutines | registered, MiB | used of that, MiB | windows, MiB | resident, MiB |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, transport := range p.transports {
		if err := crowdOver(ctx, c, dir, transport, p); err != nil {
			return fmt.Errorf("%s: %w", transport, err)
		}
	}
	c.printf("\nOpen is when each client has a block open, with half of its bytes flushed; read is when those that were not killed (a fifth of the processes, by SIGKILL) have written and read everything; after is when all have left. A client has an endpoint for its blocks, and up to five for its reads and what it asks before them. Registered counts pools of the file system's group alone, and descriptors are those beside the two of each replica that the DataNode keeps open for the next read, 256 at most.\n")
	return nil
}

// crowdOver has the clients come over one transport, to servers of its own.
func crowdOver(ctx context.Context, c *common, dir, transport string, p *crowdPlan) (err error) {
	memory := []string{"--set", fmt.Sprint("memory.receive=", p.receive), "--set", fmt.Sprint("memory.send=", p.send)}
	dir = filepath.Join(dir, transport)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s, err := startCluster(ctx, c.binary, dir, 0, 1, memory...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	dn := &node{name: "datanode", dir: s.dir, args: append([]string{
		"datanode", "--namenode", s.nameNode, "--no-local-reads", "--metrics", "127.0.0.1:0", "--native-memory", fmt.Sprint(p.native),
	}, memory...)}
	s.nodes = append(s.nodes, dn)
	if err := s.start(ctx, dn); err != nil {
		return err
	}
	at := regexp.MustCompile(`http://\S+/metrics`).FindString(dn.proc.Log())
	if at == "" {
		return fmt.Errorf("the DataNode does not tell where its metrics are: %s", dn.proc.Log())
	}
	tell := func(round int, when string) (l crowdLoad, err error) {
		if l, err = loadAt(ctx, at); err == nil {
			c.printf("| %s | %d | %s | %d | %d | %d | %.1f | %.1f | %.1f | %.1f |\n", transport, round, when,
				l.endpoints, l.descriptors, l.goroutines, mebibytes(l.registered), mebibytes(l.used), mebibytes(l.windows), mebibytes(l.resident))
		}
		return l, err
	}
	before, err := tell(0, "before")
	if err != nil {
		return err
	}
	var first crowdLoad
	for round := range p.rounds {
		members, err := crowdIn(ctx, s.nameNode, transport, round, p)
		if err != nil {
			return err
		}
		open, err := tell(round+1, "open")
		if err == nil {
			err = judgeOpen(p, &before, &open)
		}
		if err = errors.Join(err, crowdOn(members)); err == nil {
			if read, rerr := tell(round+1, "read"); rerr != nil {
				err = rerr
			} else {
				err = judgeRegistered(p, &read)
			}
		}
		if err = errors.Join(err, crowdOut(members)); err != nil {
			return err
		}
		var after crowdLoad
		err = until(ctx, crowdSettled, func() error {
			if after, err = loadAt(ctx, at); err != nil {
				return err
			}
			return judgeAfter(&before, &after)
		})
		if _, terr := tell(round+1, "after"); err == nil {
			err = terr
		}
		if err != nil {
			return err
		}
		if round == 0 {
			// What the first crowd has had made for good: pools' regions, threads, pooled heap.
			first = open
		} else if err := judgeAgain(&first, &open); err != nil {
			return err
		}
	}
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

// A crowdLoad is what a DataNode has at a moment.
type crowdLoad struct {
	endpoints, descriptors, goroutines  int64
	kept                                int64 // replicas that stay open for the next read, 256 at most
	registered, used, windows, resident int64 // bytes
}

// loadAt reads a DataNode's metrics.
func loadAt(ctx context.Context, url string) (l crowdLoad, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return l, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return l, err
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections() // it is one of the descriptors
	return parseLoad(resp.Body)
}

// parseLoad adds up the series of Prometheus' text format.
func parseLoad(r io.Reader) (l crowdLoad, err error) {
	of := map[string]*int64{
		"verbena_endpoints": &l.endpoints, "process_open_fds": &l.descriptors, "go_goroutines": &l.goroutines,
		"verbena_hdfs_datanode_replicas_open": &l.kept,
		"verbena_pool_registered_bytes":       &l.registered, "verbena_pool_used_bytes": &l.used,
		"verbena_hdfs_datanode_native_reserved_bytes": &l.windows, "process_resident_memory_bytes": &l.resident,
	}
	seen := map[string]bool{}
	s := bufio.NewScanner(r)
	for s.Scan() {
		name, value, ok := strings.Cut(s.Text(), " ")
		if at := strings.LastIndex(s.Text(), "} "); at >= 0 {
			name, value, ok = s.Text()[:at+1], s.Text()[at+2:], true
		}
		name, labels, _ := strings.Cut(name, "{")
		into := of[name]
		if !ok || into == nil || labels != "" && strings.Contains(labels, `group="`) && !strings.Contains(labels, `group="`+hdfs.GroupName+`"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return l, fmt.Errorf("%s: %w", s.Text(), err)
		}
		*into += int64(n)
		seen[name] = true
	}
	l.descriptors -= 2 * l.kept // the file of the data and that of the checksums
	for name := range of {
		if !seen[name] && !strings.HasPrefix(name, "verbena_pool") && err == nil { // without a device there are no pools
			err = fmt.Errorf("the DataNode tells no %s", name)
		}
	}
	return l, errors.Join(err, s.Err())
}

// judgeOpen tells what is too much while all clients have a block open.
func judgeOpen(p *crowdPlan, before, open *crowdLoad) error {
	var errs []error
	if n := open.endpoints - before.endpoints; n < int64(p.clients) {
		errs = append(errs, fmt.Errorf("%d endpoints more than before, of %d clients", n, p.clients))
	}
	errs = append(errs, judgeRegistered(p, open))
	if least := int64(p.clients) * crowdPacket; open.windows < least || open.windows > p.native {
		errs = append(errs, fmt.Errorf("%d bytes of windows are reserved, want %d to the %d that the flag allows", open.windows, least, p.native))
	}
	return errors.Join(errs...)
}

func judgeRegistered(p *crowdPlan, l *crowdLoad) error {
	if l.registered > p.receive+p.send {
		return fmt.Errorf("%d bytes are registered, the flags allow %d", l.registered, p.receive+p.send)
	}
	return nil
}

// judgeAfter tells what clients that have left have left behind.
func judgeAfter(before, after *crowdLoad) error {
	var errs []error
	for _, c := range []struct {
		what          string
		before, after int64
		more          int64 // that may stay: what pools keep for the next crowd: regions, each a descriptor, and idle workers of calls
	}{
		{"endpoints", before.endpoints, after.endpoints, 0},
		{"descriptors", before.descriptors, after.descriptors, 64},
		{"goroutines", before.goroutines, after.goroutines, 64},
		{"bytes of windows", before.windows, after.windows, 0},
		{"bytes of registered memory in use", before.used, after.used, 4 << 20},
	} {
		if c.after > c.before+c.more {
			errs = append(errs, fmt.Errorf("%d %s, before there were %d", c.after, c.what, c.before))
		}
	}
	return errors.Join(errs...)
}

// judgeAgain tells of what the same crowd needs more when it comes again: a tenth more may be by
// chance, and some regions of registered memory, which follow how many clients are busy at the
// moment.
func judgeAgain(first, again *crowdLoad) error {
	var errs []error
	for _, c := range []struct {
		what         string
		first, again int64
		more         int64 // beside the tenth
	}{
		{"endpoints", first.endpoints, again.endpoints, 0}, {"descriptors", first.descriptors, again.descriptors, 0}, {"goroutines", first.goroutines, again.goroutines, 0},
		{"registered bytes", first.registered, again.registered, 32 << 20},
	} {
		if c.again > c.first+c.first/10+c.more {
			errs = append(errs, fmt.Errorf("%d %s, in the first round %d did", c.again, c.what, c.first))
		}
	}
	return errors.Join(errs...)
}

// A crowdMember is a process with some of the clients.
type crowdMember struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	log  bytes.Buffer
	dies bool
}

// crowdIn starts the clients, and returns when each has a block open.
func crowdIn(ctx context.Context, nameNode, transport string, round int, p *crowdPlan) (members []*crowdMember, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "%s: %d clients in %d processes come\n", transport, p.clients, p.processes)
	defer func() {
		if err != nil {
			for _, m := range members {
				_ = m.end(true)
			}
			members = nil
		}
	}()
	for i := range p.processes {
		first, last := i*p.clients/p.processes, (i+1)*p.clients/p.processes
		m := &crowdMember{cmd: exec.CommandContext(ctx, self, "crowd-member", nameNode, transport, fmt.Sprint(round), fmt.Sprint(first), fmt.Sprint(last), fmt.Sprint(p.size)), dies: i%5 == 4 || i == p.processes-1}
		if m.in, err = m.cmd.StdinPipe(); err != nil {
			return members, err
		}
		out, err := m.cmd.StdoutPipe()
		if err != nil {
			return members, err
		}
		m.out, m.cmd.Stderr = bufio.NewScanner(out), &m.log
		if err := m.cmd.Start(); err != nil {
			return members, err
		}
		members = append(members, m)
	}
	for _, m := range members {
		if err := m.says("open"); err != nil {
			return members, err
		}
	}
	return members, nil
}

// crowdOn kills some, and has the others go on until they have read everything.
func crowdOn(members []*crowdMember) error {
	errs := make([]error, len(members))
	var group errgroup.Group
	for i, m := range members {
		group.Go(func() error {
			if m.dies {
				errs[i] = m.end(true)
				return nil
			}
			if _, errs[i] = io.WriteString(m.in, "on\n"); errs[i] == nil {
				errs[i] = m.says("right")
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return errors.Join(errs...)
}

// crowdOut has those that live leave.
func crowdOut(members []*crowdMember) error {
	errs := make([]error, len(members))
	var group errgroup.Group
	for i, m := range members {
		if !m.dies {
			group.Go(func() error { errs[i] = m.end(false); return nil })
		}
	}
	_ = group.Wait() // the errors are in errs
	return errors.Join(errs...)
}

// says waits for a line of a member.
func (m *crowdMember) says(word string) error {
	if m.out.Scan() && m.out.Text() == word {
		return nil
	}
	return fmt.Errorf("a process of clients says %q where %q is due: %s", m.out.Text(), word, m.log.String())
}

// end ends a member, or kills it.
func (m *crowdMember) end(kill bool) error {
	if kill {
		_ = m.cmd.Process.Kill() // it may have ended
		_ = m.cmd.Wait()
		return nil
	}
	_ = m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		return fmt.Errorf("a process of clients: %w: %s", err, m.log.String())
	}
	return nil
}

// crowdMemberCommand is a process of crowd: it opens blocks, says so, waits for a line, goes on, says that all
// was right, and leaves when its input ends.
func crowdMemberCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "crowd-member NAMENODE TRANSPORT ROUND FIRST LAST SIZE",
		Hidden: true,
		Args:   cobra.ExactArgs(6),
		RunE: func(cmd *cobra.Command, args []string) error {
			var n [4]int
			for i, text := range args[2:] {
				var err error
				if n[i], err = strconv.Atoi(text); err != nil {
					return err
				}
			}
			return beCrowd(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), args[0], args[1], n[0], n[1], n[2], n[3])
		},
	}
}

// A crowdClient is one client with its endpoints and its file.
type crowdClient struct {
	index   int
	name    string
	content []byte
	dialer  *hdfs.Dialer
	client  *hdfs.Client
	file    *hdfs.FileWriter
}

func beCrowd(ctx context.Context, in io.Reader, out io.Writer, nameNode, transport string, round, first, last, size int) error {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		return err
	}
	var all []*crowdClient
	for i := first; i < last; i++ {
		random := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(round)})
		c := &crowdClient{index: i, name: fmt.Sprintf("/crowd-%d-%d", round, i), content: make([]byte, size)}
		_, _ = random.Read(c.content) // it never fails
		all = append(all, c)
	}
	each := func(what string, do func(c *crowdClient) error) error {
		var group errgroup.Group
		group.SetLimit(crowdAtOnce)
		for _, c := range all {
			group.Go(func() error {
				if err := do(c); err != nil {
					return fmt.Errorf("client %d, %s: %w", c.index, what, err)
				}
				return nil
			})
		}
		return group.Wait()
	}
	if err := each("open", func(c *crowdClient) error { return c.open(ctx, rt, nameNode, transport) }); err != nil {
		return err
	}
	fmt.Fprintln(out, "open")
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	if err := each("go on", func(c *crowdClient) error { return c.goOn(ctx) }); err != nil {
		return err
	}
	fmt.Fprintln(out, "right")
	if _, err := lines.ReadString('\n'); err != io.EOF {
		return fmt.Errorf("a line where none was due: %w", err)
	}
	return errors.Join(each("leave", func(c *crowdClient) error { return errors.Join(c.client.Close(), c.dialer.Close()) }), rt.Close())
}

// open begins the client's file, and has half of it flushed.
func (c *crowdClient) open(ctx context.Context, rt *verbena.Runtime, nameNode, transport string) (err error) {
	user, err := superuser()
	if err != nil {
		return err
	}
	c.dialer = hdfs.NewDialer(rt, transport)
	if c.client, err = hdfs.NewClient(hdfs.ClientConfig{
		NameNodes: []string{nameNode}, User: user, Dialer: c.dialer, NoLocalReads: true, Patience: 2 * time.Minute,
		BlockSize: crowdBlock, Window: crowdWindow, PacketSize: crowdPacket, Logger: slog.New(slog.DiscardHandler), // an error tells what matters
	}); err != nil {
		return err
	}
	if c.file, err = c.client.Create(ctx, c.name, hdfs.CreateOptions{Replication: 1}); err != nil {
		return err
	}
	if _, err := c.file.Write(c.content[:len(c.content)/2]); err != nil {
		return err
	}
	if err := c.file.Flush(ctx); err != nil {
		return err
	}
	blocks, err := c.client.BlockLocations(ctx, c.name, 0, -1)
	if err != nil {
		return err
	}
	for _, at := range blocks[0].DataNodes {
		if got, want := c.client.ExplainTransfers(at.Address), "hdfs-data/1 over "+transport; got != want {
			return fmt.Errorf("its block goes by %s, want %s", got, want)
		}
	}
	return nil
}

// goOn reads what is flushed, writes the rest and reads everything.
func (c *crowdClient) goOn(ctx context.Context) error {
	if err := c.compare(ctx, c.content[:len(c.content)/2]); err != nil {
		return fmt.Errorf("of the open file: %w", err)
	}
	if _, err := c.file.Write(c.content[len(c.content)/2:]); err != nil {
		return err
	}
	if err := c.file.Close(); err != nil {
		return err
	}
	return c.compare(ctx, c.content)
}

// compare reads the client's file, in order and at random places.
func (c *crowdClient) compare(ctx context.Context, want []byte) (err error) {
	f, err := c.client.Open(ctx, c.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("other bytes than the %d that were written", len(want))
	}
	for range 10 {
		at := rand.IntN(len(want))
		small := got[:min(4096, len(want)-at)]
		if _, err := f.ReadAtContext(ctx, small, int64(at)); err != nil {
			return err
		}
		if !bytes.Equal(small, want[at:at+len(small)]) {
			return fmt.Errorf("other bytes at %d", at)
		}
	}
	return nil
}
