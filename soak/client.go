package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/maven"
)

func clientCommand(c *common) *cobra.Command {
	var classpath string
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Let our own HDFS client work on Apache HDFS, and compare",
		Long: `Verbena's HDFS client works on Apache HDFS (MiniDFSCluster with four DataNodes),
over TCP, with block tokens and without, with both kinds of checksums: files are
stored, flushed, appended, cut, joined and read while they are written, a DataNode is
stopped in the middle of writes and reads, and hangs while hedged reads go on; ACLs,
extended attributes and the trash are changed by either client and compared as the other
one sees them. Then three NameNodes hand over to each other, and end, while files are
written, made, renamed and removed. Apache's own client reads what was stored, by
SHA-256, and its checksums of files are compared with ours. Needs java, and Maven to fetch org.apache.hadoop:hadoop-minicluster, or its jars in
--classpath.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.binary = self // no binary of verbena takes part
			return c.run(cmd, func(ctx context.Context, dir string) error { return ownClient(ctx, c, dir, classpath) })
		},
	}
	cmd.Flags().StringVar(&classpath, "classpath", "", "jars of hadoop-minicluster and what it needs (default: fetched with Maven)")
	return cmd
}

//go:embed client/Cluster.java
var apacheCluster []byte

// apache is a cluster of Apache's in a process of its own.
type apache struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
	nameNodes []string // the first is active
}

func startApache(ctx context.Context, dir, classpath string, tokens bool, nameNodes int) (*apache, error) {
	source := filepath.Join(dir, "Cluster.java")
	if err := os.WriteFile(source, apacheCluster, 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "log4j.properties"), []byte("log4j.rootLogger=OFF\n"), 0o644); err != nil {
		return nil, err
	}
	args := []string{"-Xmx1g", "-Djava.io.tmpdir=" + dir}
	for _, p := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		args = append(args, "--add-opens=java.base/"+p+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", dir+string(filepath.ListSeparator)+classpath, source, filepath.Join(dir, fmt.Sprintf("apache-%v-%d", tokens, nameNodes)), fmt.Sprint(tokens), fmt.Sprint(nameNodes))
	a := &apache{cmd: exec.CommandContext(ctx, "java", args...)}
	a.cmd.Env = append(os.Environ(), "HADOOP_USER_NAME=root")
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.out = bufio.NewReader(out)
	var said bytes.Buffer
	a.cmd.Stderr = &said
	fmt.Fprintln(progress, "starting Apache HDFS; block tokens:", tokens, "NameNodes:", nameNodes)
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("java: %w", err)
	}
	ports, err := a.out.ReadString('\n')
	if err != nil {
		stopped := a.stop() // said is whole
		return nil, errors.Join(fmt.Errorf("starting Apache HDFS: %w\n%s", err, bytes.TrimSpace(said.Bytes())), stopped)
	}
	for _, port := range strings.Fields(ports) {
		a.nameNodes = append(a.nameNodes, "127.0.0.1:"+port)
	}
	return a, nil
}

// ask gives a command and returns the answer.
func (a *apache) ask(words ...string) (string, error) {
	if _, err := fmt.Fprintln(a.in, strings.Join(words, " ")); err != nil {
		return "", err
	}
	answer, err := a.out.ReadString('\n')
	answer = strings.TrimSpace(answer)
	if why, refused := strings.CutPrefix(answer, "!"); refused {
		return "", fmt.Errorf("the cluster, %s: %s", strings.Join(words, " "), why)
	}
	return answer, err
}

func (a *apache) stop() error {
	a.in.Close()
	return a.cmd.Wait()
}

func ownClient(ctx context.Context, c *common, dir, classpath string) error {
	classpath, err := fetchJars(ctx, classpath, "hadoop-minicluster", miniCluster...)
	if err != nil {
		return err
	}
	c.printf("# Our HDFS client on Apache HDFS %s\n\n`go run ./soak client`; contents compared by SHA-256.\n\n| block tokens | checksum | what | outcome |\n|---|---|---|---|\n", maven.Hadoop)
	for _, tokens := range []bool{false, true} {
		if err := onApache(ctx, c, dir, classpath, tokens); err != nil {
			return err
		}
	}
	return onThreeNameNodes(ctx, c, dir, classpath)
}

func onApache(ctx context.Context, c *common, dir, classpath string, tokens bool) (err error) {
	a, err := startApache(ctx, dir, classpath, tokens, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	for _, kind := range []hdfs.ChecksumType{hdfs.ChecksumCRC32C, hdfs.ChecksumCRC32} {
		t, err := newApacheTrial(a, tokens, kind)
		if err != nil {
			return err
		}
		if err := errors.Join(t.run(ctx, c, t.steps()), t.client.Close()); err != nil {
			return err
		}
	}
	return nil
}

// apacheTrial is one client's work on Apache HDFS.
type apacheTrial struct {
	a      *apache
	cfg    hdfs.ClientConfig
	client *hdfs.Client
	tokens bool
	dir    string
}

func newApacheTrial(a *apache, tokens bool, kind hdfs.ChecksumType) (*apacheTrial, error) {
	t := &apacheTrial{a: a, tokens: tokens, dir: fmt.Sprintf("/%v-%v", tokens, kind)}
	t.cfg = hdfs.ClientConfig{NameNodes: a.nameNodes, User: "root", Checksum: kind, BlockSize: 4 << 20, Replication: 3}
	var err error
	t.client, err = hdfs.NewClient(t.cfg)
	return t, err
}

// run takes steps, and reports each.
func (t *apacheTrial) run(ctx context.Context, c *common, steps []apacheStep) error {
	for _, step := range steps {
		began := time.Now()
		err := step.do(ctx)
		outcome := "as it should"
		if err != nil {
			outcome = "FAILED"
		}
		c.printf("| %v | %v | %s | %s |\n", t.tokens, t.cfg.Checksum, step.what, outcome)
		fmt.Fprintf(progress, "tokens %v, %v: %s: %v, %v\n", t.tokens, t.cfg.Checksum, step.what, outcome, time.Since(began).Round(time.Millisecond))
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

type apacheStep struct {
	what string
	do   func(ctx context.Context) error
}

func (t *apacheTrial) steps() []apacheStep {
	return []apacheStep{
		{"store, and read by both clients", t.store},
		{"flush and sync, read while it is open, append", t.flushAndAppend},
		{"checksums of files, both kinds", t.checksums},
		{"cut and join", t.cutAndJoin},
		{"a DataNode stops while a file is written", t.stopWhileWriting},
		{"a DataNode stops while a file is read", t.stopWhileReading},
		{"listing, owner, mode, rename, remove", t.tree},
		{"a DataNode hangs while hedged reads go on", t.hedge},
		{"access control lists, changed and seen by both clients", t.acls},
		{"extended attributes, changed and seen by both clients", t.xattrs},
		{"trash, by both clients", t.trash},
	}
}

func named(name string, length int) []byte {
	b := make([]byte, length)
	_, _ = newContent(name).Read(b) // never fails
	return b
}

func (t *apacheTrial) write(ctx context.Context, name string, content []byte) error {
	w, err := t.client.Create(ctx, name, hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return errors.Join(err, w.Close())
	}
	return w.Close()
}

// has compares what a file has, as both clients see it.
func (t *apacheTrial) has(ctx context.Context, name string, want []byte) error {
	if err := t.shows(ctx, name, want); err != nil {
		return err
	}
	sum := sha256.Sum256(want)
	told, err := t.a.ask("read", name)
	if err == nil && told != hex.EncodeToString(sum[:]) {
		err = fmt.Errorf("%s: Apache's client reads other bytes", name)
	}
	return err
}

// shows compares what a file has, as our client sees it.
func (t *apacheTrial) shows(ctx context.Context, name string, want []byte) error {
	got, err := t.client.ReadFile(ctx, name)
	if err == nil && sha256.Sum256(got) != sha256.Sum256(want) {
		err = fmt.Errorf("%s: %d bytes come back, %d were stored, or others", name, len(got), len(want))
	}
	return err
}

func (t *apacheTrial) store(ctx context.Context) error {
	for _, length := range []int{0, 1, 512, 65_537, 4 << 20, 9<<20 + 12_345} {
		name := fmt.Sprintf("%s/stored-%d", t.dir, length)
		content := named(name, length)
		if err := t.write(ctx, name, content); err != nil {
			return err
		}
		if err := t.has(ctx, name, content); err != nil {
			return err
		}
	}
	return nil
}

func (t *apacheTrial) flushAndAppend(ctx context.Context) error {
	name := t.dir + "/flushed"
	content := named(name, 5_000_000)
	w, err := t.client.Create(ctx, name, hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	at := 0
	for i, length := range []int{1, 510, 3, 70_001, 0, 900_000, 1_234_567} {
		if i == 5 {
			if err := w.Close(); err != nil {
				return err
			}
			if w, err = t.client.Append(ctx, name, hdfs.AppendOptions{}); err != nil {
				return err
			}
		}
		if _, err := w.Write(content[at : at+length]); err != nil {
			return err
		}
		at += length
		if i%2 == 0 {
			err = w.Flush(ctx)
		} else {
			err = w.Sync(ctx, true)
		}
		if err != nil {
			return err
		}
		if err := t.shows(ctx, name, content[:at]); err != nil {
			return fmt.Errorf("after flush %d: %w", i, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if w, err = t.client.Append(ctx, name, hdfs.AppendOptions{NewBlock: true}); err != nil {
		return err
	}
	if _, err := w.Write(content[at:]); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return t.has(ctx, name, content)
}

func (t *apacheTrial) checksums(ctx context.Context) error {
	for _, length := range []int{0, 1, 65_537, 4 << 20, 9<<20 + 12_345} {
		name := fmt.Sprintf("%s/stored-%d", t.dir, length)
		for mode, as := range map[string]hdfs.ChecksumMode{"MD5MD5CRC": hdfs.MD5MD5CRC, "COMPOSITE_CRC": hdfs.CompositeCRC} {
			told, err := t.a.ask("checksum", name, mode)
			if err != nil {
				return err
			}
			sum, err := t.client.ChecksumOf(ctx, name, as)
			if err != nil {
				return err
			}
			if ours := sum.Algorithm + " " + hex.EncodeToString(sum.Encoded); ours != told {
				return fmt.Errorf("%s of %s: ours is %s, Apache's %s", mode, name, ours, told)
			}
		}
	}
	return nil
}

func (t *apacheTrial) cutAndJoin(ctx context.Context) error {
	name, more := t.dir+"/cut/whole", t.dir+"/cut/more"
	content := named(name, 9_000_000)
	if err := t.write(ctx, name, content); err != nil {
		return err
	}
	for _, length := range []int{8 << 20, 5_000_001} {
		if _, err := t.client.Truncate(ctx, name, int64(length)); err != nil {
			return err
		}
		if err := t.client.WaitClosed(ctx, name); err != nil {
			return err
		}
		if err := t.has(ctx, name, content[:length]); err != nil {
			return err
		}
	}
	if err := t.write(ctx, more, content[5_000_001:]); err != nil {
		return err
	}
	if err := t.client.Concat(ctx, name, more); err != nil {
		return err
	}
	return t.has(ctx, name, content)
}

// stopWhileWriting stops a DataNode of the pipeline in the middle of a block, after a
// flush, and another one in the next block.
func (t *apacheTrial) stopWhileWriting(ctx context.Context) error {
	name := t.dir + "/outlives"
	content := named(name, 11_000_000)
	w, err := t.client.Create(ctx, name, hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	at := 0
	for _, length := range []int{1_500_001, 5_000_000} {
		if _, err := w.Write(content[at : at+length]); err != nil {
			return err
		}
		at += length
		if err := w.Flush(ctx); err != nil {
			return err
		}
		where, err := t.client.BlockLocations(ctx, name, int64(at-1), 1)
		if err != nil {
			return err
		}
		if len(where) != 1 || len(where[0].DataNodes) < 2 {
			return fmt.Errorf("the block that is being written is at %+v", where)
		}
		if _, err := t.a.ask("stop", where[0].DataNodes[1].Address); err != nil {
			return err
		}
		if _, err := w.Write(content[at : at+700_000]); err != nil {
			return err
		}
		at += 700_000
		if err := w.Flush(ctx); err != nil {
			return err
		}
		if _, err := t.a.ask("start"); err != nil {
			return err
		}
	}
	if _, err := w.Write(content[at:]); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return t.has(ctx, name, content)
}

// stopWhileReading stops the DataNode from which a file is being read.
func (t *apacheTrial) stopWhileReading(ctx context.Context) error {
	name := t.dir + "/stored-9449529"
	f, err := t.client.Open(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	want := named(name, int(f.Size()))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got[:100_000]); err != nil {
		return err
	}
	where, err := t.client.BlockLocations(ctx, name, 0, 1)
	if err != nil {
		return err
	}
	if _, err := t.a.ask("stop", where[0].DataNodes[0].Address); err != nil {
		return err
	}
	if _, err := io.ReadFull(f, got[100_000:]); err != nil {
		return err
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		return errors.New("other bytes came back")
	}
	_, err = t.a.ask("start")
	return err
}

func (t *apacheTrial) tree(ctx context.Context) error {
	name := t.dir + "/tree/file"
	if err := t.client.WriteFile(ctx, name, []byte("hello"), 0o640); err != nil {
		return err
	}
	if err := t.client.Chown(ctx, name, "ada", "staff"); err != nil {
		return err
	}
	if err := t.client.Rename(ctx, name, name+"-moved", false); err != nil {
		return err
	}
	entries, err := t.client.ReadDir(ctx, t.dir+"/tree")
	if err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Name() != "file-moved" || entries[0].Owner() != "ada" || entries[0].Group() != "staff" || entries[0].Mode() != 0o640 {
		return fmt.Errorf("the directory has %+v", entries)
	}
	return t.client.RemoveAll(ctx, t.dir+"/tree")
}
