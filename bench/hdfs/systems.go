package main

import (
	"archive/zip"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
)

// dataNodes is how many each system has, and how many replicas a block.
const dataNodes = 3

// A child is a process whose processor time counts.
type child interface {
	CPU() (time.Duration, error)
	Stop() error
}

// A system is a NameNode with its DataNodes.
type system struct {
	name     string
	nameNode string
	data     string   // directory with the DataNodes' blocks
	socket   string   // of short-circuit reads: a path with _PORT in it
	metrics  []string // addresses of the DataNodes', if they have some
	servers  []child
}

func (s *system) stop() error {
	var errs []error
	for i := len(s.servers) - 1; i >= 0; i-- {
		errs = append(errs, s.servers[i].Stop())
	}
	return errors.Join(errs...)
}

// cpu is the processor time of the servers and of more processes.
func (s *system) cpu(more ...child) (time.Duration, error) {
	var total time.Duration
	for _, list := range [][]child{s.servers, more} {
		for _, p := range list {
			t, err := p.CPU()
			if err != nil {
				return 0, err
			}
			total += t
		}
	}
	return total, nil
}

// stored is how many bytes of blocks the DataNodes keep. The files of removed ones that ours keep
// for new ones, in directories named spare, are not counted: they are to be written over.
func (s *system) stored() (total int64, err error) {
	err = filepath.WalkDir(s.data, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "spare" {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				total += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			err = nil
		}
		return err
	})
	return total, err
}

// settle waits until the DataNodes have removed what was deleted, which is nearly all that they
// had.
func (s *system) settle(ctx context.Context) error { return s.settleTo(ctx, 0) }

// settleTo waits until the DataNodes keep little more than kept bytes.
func (s *system) settleTo(ctx context.Context, kept int64) error {
	const little = 64 << 20
	for began := time.Now(); ; {
		n, err := s.stored()
		if n < kept+little || err != nil {
			return err
		}
		if time.Since(began) > 2*time.Minute {
			return fmt.Errorf("the DataNodes of %s still keep %d bytes of files that were deleted", s.name, n-kept)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// ready waits until all DataNodes are up, and a file can be written.
func (s *system) ready(ctx context.Context, user string) error {
	c, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{s.nameNode}, User: user})
	if err != nil {
		return err
	}
	defer c.Close()
	for began := time.Now(); ; {
		up, err := c.DataNodes(ctx)
		if err == nil && len(up) == dataNodes {
			if err = c.WriteFile(ctx, "/ready", []byte("yes"), 0); err == nil {
				return nil
			}
		}
		if time.Since(began) > 2*time.Minute {
			return fmt.Errorf("%s has %d DataNodes after two minutes: %w", s.name, len(up), err)
		}
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// startOurs runs our servers; DataNodes reach each other over transport. They get flags, too.
func startOurs(ctx context.Context, binary, dir, transport, user string, flags ...string) (s *system, err error) {
	s = &system{name: "ours over " + transport, data: filepath.Join(dir, "data")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := os.MkdirAll(s.data, 0o755); err != nil {
		return nil, err
	}
	start := func(name, data string, args ...string) (string, error) {
		address := filepath.Join(dir, name+".address")
		p, err := processes.Start(ctx, name, address, binary, append(args, "--dir", data, "--cluster-secret", filepath.Join(dir, "secret"),
			"--listen", "127.0.0.1:0", "--address-file", address, "--superuser", user, "--rule", "bench: only="+transport)...)
		if err != nil {
			return "", err
		}
		s.servers = append(s.servers, p)
		return p.Address, nil
	}
	if s.nameNode, err = start("namenode", filepath.Join(dir, "namenode"), "namenode", "--property", "dfs.heartbeat.interval=1s", "--safe-mode", "1s"); err != nil {
		return nil, err
	}
	for i := range dataNodes {
		name := fmt.Sprint("datanode-", i)
		metrics, err := freeAddress()
		if err != nil {
			return nil, err
		}
		if _, err := start(name, filepath.Join(s.data, name), append([]string{"datanode", "--namenode", s.nameNode, "--metrics", metrics}, flags...)...); err != nil {
			return nil, err
		}
		s.metrics = append(s.metrics, metrics)
	}
	return s, s.ready(ctx, user)
}

// hadoopJars are what runs Apache HDFS, its tests' programs included. Jackson is pinned:
// what Maven chooses lacks a class that -format needs.
var hadoopJars = []maven.Artifact{
	{Group: "org.apache.hadoop", Name: "hadoop-minicluster", Version: maven.Hadoop},
	{Group: "junit", Name: "junit", Version: "4.13.2"},
	{Group: "org.mockito", Name: "mockito-core", Version: "4.11.0"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-core", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-annotations", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-databind", Version: "2.12.7.1"},
}

// nativeJars have libhadoop.so, which Apache's own jars lack: checksums by the processor's
// instruction, and short-circuit reads.
var nativeJars = []maven.Artifact{{Group: "io.trino.hadoop", Name: "hadoop-apache", Version: "3.3.5-3"}}

// hadoop is where Apache's programs are.
type hadoop struct{ jars, native, user string }

func fetchHadoop(ctx context.Context, dir, user string) (*hadoop, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return nil, fmt.Errorf("the servers of Apache HDFS need Java (Debian: apt-get install openjdk-17-jdk-headless): %w", err)
	}
	fetching := func() { fmt.Fprintln(os.Stderr, "fetching the jars of Apache HDFS", maven.Hadoop) }
	jars, err := maven.Cached(ctx, "hadoop-minicluster", hadoopJars, fetching)
	if err != nil {
		return nil, err
	}
	native, err := maven.Cached(ctx, "hadoop-native", nativeJars, fetching)
	if err != nil {
		return nil, err
	}
	h := &hadoop{jars: jars, native: filepath.Join(dir, "native"), user: user}
	return h, extractNative(filepath.Join(native, "hadoop-apache-3.3.5-3.jar"), h.native)
}

// extractNative takes libhadoop.so for this machine out of a jar.
func extractNative(jar, dir string) error {
	machine, ok := map[string]string{"amd64": "amd64", "arm64": "aarch64"}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no libhadoop.so for %s", runtime.GOARCH)
	}
	z, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer z.Close()
	in, err := z.Open("nativelib/Linux-" + machine + "/libhadoop.so")
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(dir, "libhadoop.so"))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// java is a command that runs a class of Hadoop's, or a source file, with the
// configuration in conf.
func (h *hadoop) java(ctx context.Context, conf string, heap string, args ...string) *exec.Cmd {
	all := []string{"-Xmx" + heap, "-Djava.net.preferIPv4Stack=true", "-Djava.library.path=" + h.native}
	for _, pkg := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		all = append(all, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	all = append(all, "-cp", conf+string(filepath.ListSeparator)+filepath.Join(h.jars, "*"))
	cmd := exec.CommandContext(ctx, "java", append(all, args...)...)
	cmd.Env = append(os.Environ(), "HADOOP_USER_NAME="+h.user)
	return cmd
}

// configure writes a directory with Hadoop's configuration.
func configure(dir, nameNode string, properties map[string]string) error {
	// The servers' web pages have to be on the class path, which no jar from Maven has.
	for _, pages := range []string{"hdfs", "datanode"} {
		if err := os.MkdirAll(filepath.Join(dir, "webapps", pages), 0o755); err != nil {
			return err
		}
	}
	var text strings.Builder
	for name, value := range properties {
		fmt.Fprintf(&text, "<property><name>%s</name><value>%s</value></property>\n", name, value)
	}
	for name, content := range map[string]string{
		"core-site.xml":    "<configuration><property><name>fs.defaultFS</name><value>hdfs://" + nameNode + "</value></property></configuration>",
		"hdfs-site.xml":    "<configuration>" + text.String() + "</configuration>",
		"log4j.properties": "log4j.rootLogger=WARN,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\nlog4j.appender.out.target=System.err\nlog4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// program is a process of Java's.
type program struct{ cmd *exec.Cmd }

func (p program) CPU() (time.Duration, error) { return processes.CPUTime(p.cmd.Process.Pid) }

// Stop kills it: nothing of it is needed any more.
func (p program) Stop() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return err
}

// startApache formats and runs Apache HDFS. sockets is a directory that no other user may
// write, nor any above it: Hadoop wants it so for short-circuit reads.
func startApache(ctx context.Context, h *hadoop, dir, sockets string) (s *system, err error) {
	s = &system{name: "Apache HDFS " + maven.Hadoop, data: filepath.Join(dir, "data"), socket: filepath.Join(sockets, "dn._PORT")}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; its logs are in %s", errors.Join(err, s.stop()), dir)
		}
	}()
	if s.nameNode, err = freeAddress(); err != nil {
		return nil, err
	}
	common := map[string]string{
		"hadoop.tmp.dir": filepath.Join(dir, "tmp"), "dfs.namenode.name.dir": filepath.Join(dir, "name"), "dfs.namenode.http-address": "127.0.0.1:0",
		"dfs.namenode.datanode.registration.ip-hostname-check": "false", "dfs.heartbeat.interval": "1", "dfs.namenode.redundancy.interval.seconds": "1s",
		"dfs.datanode.hostname": "127.0.0.1", "dfs.client.read.shortcircuit": "true", "dfs.domain.socket.path": s.socket,
		"dfs.namenode.safemode.extension": "0",
	}
	start := func(name, heap, class string, properties map[string]string) error {
		conf := filepath.Join(dir, name)
		for name, value := range common {
			properties[name] = value
		}
		if err := os.MkdirAll(conf, 0o755); err != nil {
			return err
		}
		if err := configure(conf, s.nameNode, properties); err != nil {
			return err
		}
		if name == "namenode" {
			if out, err := h.java(ctx, conf, heap, class, "-format", "-force", "-nonInteractive").CombinedOutput(); err != nil {
				return fmt.Errorf("format Apache's NameNode: %w: %s", err, out)
			}
		}
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		defer log.Close()
		cmd := h.java(ctx, conf, heap, class)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			return err
		}
		s.servers = append(s.servers, program{cmd})
		return nil
	}
	if err := start("namenode", "2g", "org.apache.hadoop.hdfs.server.namenode.NameNode", map[string]string{}); err != nil {
		return nil, err
	}
	for i := range dataNodes {
		name := fmt.Sprint("datanode-", i)
		if err := os.MkdirAll(s.data, 0o755); err != nil {
			return nil, err
		}
		if err := start(name, "1g", "org.apache.hadoop.hdfs.server.datanode.DataNode", map[string]string{
			"dfs.datanode.data.dir": filepath.Join(s.data, name), "dfs.datanode.address": "127.0.0.1:0",
			"dfs.datanode.ipc.address": "127.0.0.1:0", "dfs.datanode.http.address": "127.0.0.1:0",
		}); err != nil {
			return nil, err
		}
	}
	return s, s.ready(ctx, h.user)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// A client is a process that obeys commands.
type client struct {
	program
	name string
	in   io.WriteCloser
	out  *bufio.Reader
}

func startClient(name string, cmd *exec.Cmd) (*client, error) {
	c := &client{program: program{cmd}, name: name}
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, cmd.Start()
}

// ourClient starts our client, which is this command itself; packet is the size of packets, 0
// for its default. Flags choose how blocks are reached.
func ourClient(ctx context.Context, self, name, nameNode, transport, user string, packet int, log io.Writer, flags ...string) (*client, error) {
	if transport == "" {
		transport = verbena.TransportTCP
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"load", "--namenode", nameNode, "--transport", transport, "--user", user, "--packet", fmt.Sprint(packet)}, flags...)...)
	cmd.Stderr = log
	return startClient(name, cmd)
}

// javaClient starts Apache's client with properties NAME=VALUE.
func javaClient(ctx context.Context, name string, h *hadoop, dir, nameNode string, log io.Writer, properties ...string) (*client, error) {
	conf := filepath.Join(dir, "conf-"+strings.ReplaceAll(name, " ", "-"))
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return nil, err
	}
	if err := configure(conf, nameNode, nil); err != nil {
		return nil, err
	}
	source := filepath.Join(dir, "Load.java")
	if err := os.WriteFile(source, loadSource, 0o644); err != nil {
		return nil, err
	}
	cmd := h.java(ctx, conf, "1g", append([]string{source, nameNode}, properties...)...)
	cmd.Stderr = log
	return startClient(name, cmd)
}

// ask gives a command and returns the numbers of its answer.
func (c *client) ask(args ...any) ([]int64, error) {
	command := strings.TrimSuffix(fmt.Sprintln(args...), "\n")
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.name, command, err)
	}
	answer, err := c.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.name, command, err)
	}
	if why, refused := strings.CutPrefix(strings.TrimSpace(answer), "!"); refused {
		return nil, fmt.Errorf("%s: %s: %s", c.name, command, why)
	}
	var numbers []int64
	for _, f := range strings.Fields(answer) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: answer %q", c.name, command, answer)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("%s: %s: an empty answer", c.name, command)
	}
	return numbers, nil
}
