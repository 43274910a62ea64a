package main

import (
	"archive/zip"
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
)

func shortCircuitCommand(c *common) *cobra.Command {
	var classpath string
	var megabytes, reads int
	cmd := &cobra.Command{
		Use:   "shortcircuit",
		Short: "Read blocks of this host by descriptor: either client from either DataNode, and measure",
		Long: `Apache's client reads a file from Verbena's DataNode, and Verbena's from Apache's, by
descriptor (HDFS's short-circuit reads) and over TCP; either reads from its own DataNode,
too. The content is compared by SHA-256; the servers' numbers tell that no read went by
them. Each read is measured: 4 KiB at random places, and the whole file. Needs java, and
Maven to fetch the jars of hadoop-minicluster, or --classpath, and a libhadoop.so.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error {
				return shortCircuit(ctx, c, dir, classpath, megabytes<<20, reads)
			})
		},
	}
	cmd.Flags().StringVar(&classpath, "classpath", "", "jars of hadoop-minicluster and what it needs (default: fetched with Maven)")
	cmd.Flags().IntVar(&megabytes, "megabytes", 256, "MiB of the file")
	cmd.Flags().IntVar(&reads, "reads", 20_000, "reads of 4 KiB; the first half is not counted")
	return cmd
}

//go:embed shortcircuit/Local.java
var localReads []byte

// localTrial is one run.
type localTrial struct {
	c                      *common
	dir, java, lib, source string // java: the class path
	content                [sha256.Size]byte
	size, reads            int
}

// outcomeOfRead is what one reader has measured.
type outcomeOfRead struct {
	page       time.Duration // of 4 KiB, the median
	wall       time.Duration // of the whole file
	cpu        time.Duration // of it, the reader's
	descriptor bool          // all bytes came by descriptor
}

// localServer is a file system of one DataNode on this host.
type localServer struct {
	name, address, socket string
	served                func(context.Context) (int, error) // reads over connections
	pid                   int
	stop                  func() error
}

func shortCircuit(ctx context.Context, c *common, dir, classpath string, size, reads int) error {
	classpath, err := fetchJars(ctx, classpath, "hadoop-minicluster", miniCluster...)
	if err != nil {
		return err
	}
	t := &localTrial{c: c, dir: dir, java: dir + string(filepath.ListSeparator) + classpath, source: filepath.Join(dir, "Local.java"), size: size, reads: reads}
	if t.lib, err = nativeLibrary(ctx, dir); err != nil {
		return err
	}
	for name, content := range map[string][]byte{t.source: localReads, filepath.Join(dir, "log4j.properties"): []byte("log4j.rootLogger=OFF\n")} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	c.printf("# Reads on the DataNode's host, beside Apache Hadoop %s\n\n`go run ./soak shortcircuit`: a file of %d MiB in the page cache, on one DataNode; %d reads of 4 KiB at random places, the first half of which is not counted. "+
		"Contents are compared by SHA-256. CPU is that of client and server for the whole file, the best of three reads for Verbena's client and the last of three for Java's.\n\n"+
		"| server | client | way | 4 KiB, p50 | whole file | CPU | DataNode's reads |\n|---|---|---|---|---|---|---|\n", maven.Hadoop, size>>20, reads)
	for _, start := range []func(context.Context) (*localServer, error){t.startApache, t.startVerbena} {
		if err := t.on(ctx, start); err != nil {
			return err
		}
	}
	return nil
}

// on has both clients read from a server, both ways.
func (t *localTrial) on(ctx context.Context, start func(context.Context) (*localServer, error)) (err error) {
	s, err := start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := t.write(ctx, s); err != nil {
		return err
	}
	for _, reader := range []struct {
		name string
		read func(context.Context, *localServer, bool) (outcomeOfRead, error)
	}{{"Java", t.byJava}, {"Verbena", t.byOwn}} {
		for _, descriptor := range []bool{true, false} {
			before, err := s.served(ctx)
			if err != nil {
				return err
			}
			busy := cpuOf(s.pid)
			out, err := reader.read(ctx, s, descriptor)
			if err != nil {
				return fmt.Errorf("%s reads from %s: %w", reader.name, s.name, err)
			}
			busy = cpuOf(s.pid) - busy
			after, err := s.served(ctx)
			if err != nil {
				return err
			}
			if descriptor != (after == before) || out.descriptor != descriptor {
				return fmt.Errorf("%s reads from %s, by descriptor: %v, but the DataNode has served %d reads, and the client says of descriptors: %v", reader.name, s.name, descriptor, after-before, out.descriptor)
			}
			way := map[bool]string{true: "descriptor", false: "TCP"}[descriptor]
			server := busy * time.Duration(t.size) / time.Duration(3*t.size+4096*t.reads)
			t.c.printf("| %s | %s | %s | %.1f µs | %.0f MB/s | %.2f s | %d |\n", s.name, reader.name, way, float64(out.page.Nanoseconds())/1e3,
				float64(t.size)/1e6/out.wall.Seconds(), (out.cpu + server).Seconds(), after-before)
			fmt.Fprintf(progress, "%s, %s, %s: %+v, server %v\n", s.name, reader.name, way, out, server)
		}
	}
	return nil
}

func (t *localTrial) write(ctx context.Context, s *localServer) error {
	client, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{s.address}, User: "root", BlockSize: 64 << 20, Replication: 1})
	if err != nil {
		return err
	}
	defer client.Close()
	w, err := client.Create(ctx, "/local", hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	digest := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(w, digest), newContent("local"), int64(t.size)); err != nil {
		return errors.Join(err, w.Close())
	}
	t.content = [sha256.Size]byte(digest.Sum(nil))
	return w.Close()
}

// command runs Local.java.
func (t *localTrial) command(ctx context.Context, args ...string) *exec.Cmd {
	words := []string{"-Xmx1g", "-Djava.io.tmpdir=" + t.dir, "-Djava.library.path=" + t.lib}
	for _, p := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		words = append(words, "--add-opens=java.base/"+p+"=ALL-UNNAMED")
	}
	cmd := exec.CommandContext(ctx, "java", append(append(words, "-cp", t.java, t.source), args...)...)
	cmd.Env = append(os.Environ(), "HADOOP_USER_NAME=root")
	return cmd
}

func (t *localTrial) byJava(ctx context.Context, s *localServer, descriptor bool) (out outcomeOfRead, err error) {
	socket := s.socket
	if !descriptor {
		socket = "-"
	}
	cmd := t.command(ctx, "read", "hdfs://"+s.address, socket, "/local", fmt.Sprint(t.reads))
	var said strings.Builder
	cmd.Stderr = &said
	answer, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("java: %w\n%s", err, said.String())
	}
	var sum string
	var local int64
	if _, err := fmt.Sscan(string(answer), &sum, &local, &out.page, &out.wall, &out.cpu); err != nil {
		return out, fmt.Errorf("java says %q: %w", answer, err)
	}
	if sum != hex.EncodeToString(t.content[:]) {
		return out, errors.New("other bytes came back")
	}
	out.descriptor = local >= int64(3*t.size) // its statistics; the positional reads come on top
	return out, nil
}

func (t *localTrial) byOwn(ctx context.Context, s *localServer, descriptor bool) (out outcomeOfRead, err error) {
	cfg := hdfs.ClientConfig{NameNodes: []string{s.address}, User: "root", NoLocalReads: !descriptor}
	if s.name != "Verbena" {
		cfg.DomainSocket = s.socket
	}
	client, err := hdfs.NewClient(cfg)
	if err != nil {
		return out, err
	}
	defer client.Close()
	f, err := client.Open(ctx, "/local")
	if err != nil {
		return out, err
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := f.WriteTo(digest); err != nil {
		return out, err
	}
	if [sha256.Size]byte(digest.Sum(nil)) != t.content {
		return out, errors.New("other bytes came back")
	}
	buffer := make([]byte, 1<<20)
	for range 2 {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return out, err
		}
		began, used := time.Now(), cpuOf(os.Getpid())
		for err = nil; err == nil; _, err = f.Read(buffer) {
		}
		if err != io.EOF {
			return out, err
		}
		if wall := time.Since(began); out.wall == 0 || wall < out.wall {
			out.wall, out.cpu = wall, cpuOf(os.Getpid())-used
		}
	}
	took := make([]time.Duration, t.reads)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range took {
		at := random.Int64N(int64(t.size) - 4096)
		began := time.Now()
		if _, err := f.ReadAt(buffer[:4096], at); err != nil {
			return out, err
		}
		took[i] = time.Since(began)
	}
	took = took[len(took)/2:]
	slices.Sort(took)
	out.page = took[len(took)/2]
	reads := client.LocalReads()
	out.descriptor = descriptor && reads.Passed == 0 && reads.Reads >= uint64(t.reads)
	return out, nil
}

func (t *localTrial) startApache(ctx context.Context) (*localServer, error) {
	s := &localServer{name: "Apache", socket: filepath.Join(t.dir, "apache._PORT")}
	cmd := t.command(ctx, "serve", filepath.Join(t.dir, "apache"), s.socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	fmt.Fprintln(progress, "starting Apache HDFS")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("java: %w", err)
	}
	out := bufio.NewReader(pipe)
	number := func() (int, error) {
		line, err := out.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line))
	}
	s.stop = func() error { in.Close(); return cmd.Wait() }
	port, err := number()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting Apache HDFS: %w", err), s.stop(), errors.New(said.String()))
	}
	s.address, s.pid = fmt.Sprintf("127.0.0.1:%d", port), cmd.Process.Pid
	s.served = func(context.Context) (int, error) {
		if _, err := fmt.Fprintln(in, "reads"); err != nil {
			return 0, err
		}
		return number()
	}
	return s, nil
}

var servedReads = regexp.MustCompile(`(?m)^verbena_hdfs_datanode_reads_total (\S+)$`)

func (t *localTrial) startVerbena(ctx context.Context) (*localServer, error) {
	s := &localServer{name: "Verbena", socket: filepath.Join(t.dir, "verbena._PORT")}
	metrics, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address := filepath.Join(t.dir, "up.address")
	up, err := processes.Start(ctx, "verbena up", address, t.c.binary, "up", "--dir", filepath.Join(t.dir, "verbena"), "--listen", "127.0.0.1:0", "--datanodes", "1",
		"--superuser", "root", "--domain-socket", s.socket, "--metrics", metrics, "--address-file", address)
	if err != nil {
		return nil, err
	}
	s.address, s.stop, s.pid = up.Address, up.Stop, up.Pid()
	s.served = func(ctx context.Context) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metrics+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err
		}
		m := servedReads.FindSubmatch(text)
		if m == nil {
			return 0, errors.New("verbena's metrics do not tell its reads")
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		return int(n), err
	}
	return s, nil
}

// nativeLibrary unpacks libhadoop.so, without which Java has no Unix sockets.
func nativeLibrary(ctx context.Context, dir string) (string, error) {
	jars, err := fetchJars(ctx, "", "libhadoop", maven.Artifact{Group: "io.trino.hadoop", Name: "hadoop-apache", Version: "3.3.5-3"})
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(jars), "hadoop-apache-*.jar"))
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", fmt.Errorf("libhadoop.so: no jar of hadoop-apache in %s: remove that directory, and it is fetched again", filepath.Dir(jars))
	}
	z, err := zip.OpenReader(found[0])
	if err != nil {
		return "", err
	}
	defer z.Close()
	in, err := z.Open("nativelib/Linux-amd64/libhadoop.so")
	if err != nil {
		return "", err
	}
	defer in.Close()
	lib := filepath.Join(dir, "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return "", err
	}
	out, err := os.Create(filepath.Join(lib, "libhadoop.so"))
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return lib, errors.Join(err, out.Close())
}

// cpuOf is the processor time that a process has used; 0 if it is not known.
func cpuOf(pid int) time.Duration {
	used, err := processes.CPUTime(pid)
	if err != nil {
		return 0
	}
	return used
}

// freeAddress is one at which nobody listened a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
