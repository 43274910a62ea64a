package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
)

func javaCommand(c *common) *cobra.Command {
	var classpath string
	cmd := &cobra.Command{
		Use:   "java",
		Short: "Let Apache Hadoop's own Java client work on the file system, and compare",
		Long: `Apache Hadoop's file system shell (org.apache.hadoop.fs.FsShell) stores, appends,
cuts, renames, reads and removes files; what it shows and what it stored is
compared with what Verbena's own client sees. Needs java, and Maven to fetch
org.apache.hadoop:hadoop-client, or its jars in --classpath.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return java(ctx, c, dir, classpath) })
		},
	}
	cmd.Flags().StringVar(&classpath, "classpath", "", "jars of hadoop-client and what it needs (default: fetched with Maven)")
	return cmd
}

// fetchJars returns the class path of what the user has, or of jars in the cache.
func fetchJars(ctx context.Context, classpath, name string, artifacts ...maven.Artifact) (string, error) {
	if classpath != "" {
		return classpath, nil
	}
	dir, err := maven.Cached(ctx, name, artifacts, func() { fmt.Fprintln(progress, "fetching the jars of", name, maven.Hadoop) })
	if err != nil {
		return "", fmt.Errorf("%w: or give the jars with --classpath", err)
	}
	return filepath.Join(dir, "*"), nil
}

func java(ctx context.Context, c *common, dir, classpath string) (err error) {
	classpath, err = fetchJars(ctx, classpath, "hadoop-client", maven.Artifact{Group: "org.apache.hadoop", Name: "hadoop-client", Version: maven.Hadoop})
	if err != nil {
		return err
	}
	data, address := filepath.Join(dir, "data"), filepath.Join(dir, "up.address")
	up, err := processes.Start(ctx, "verbena up", address, c.binary, "up", "--dir", data, "--listen", "127.0.0.1:0", "--address-file", address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Stop()) }()
	classpath = filepath.Join(data, "conf") + string(filepath.ListSeparator) + classpath
	d, err := newDialers()
	if err != nil {
		return err
	}
	defer d.Close()
	own, err := d.own(up.Address, "shm")
	if err != nil {
		return err
	}

	local := filepath.Join(dir, "local")
	content := make([]byte, 3_000_017)
	if _, err := io.ReadFull(newContent(javaFile), content); err != nil {
		return err
	}
	if err := os.WriteFile(local, content, 0o644); err != nil {
		return err
	}
	c.printf("# Apache Hadoop's Java client, %s\n\n`go run ./soak java`; against `verbena up` and the configuration that it writes, compared with what Verbena's client sees over shm.\n\n| command | outcome |\n|---|---|\n", maven.Hadoop)
	for _, step := range javaSteps(ctx, own, dir, local, content) {
		shell := exec.CommandContext(ctx, "java", "-cp", classpath, "org.apache.hadoop.fs.FsShell")
		shell.Args = append(shell.Args, strings.Fields(step.args)...)
		var said bytes.Buffer
		shell.Stderr = &said
		out, err := shell.Output()
		if err == nil && step.check != nil {
			err = step.check(string(out))
		}
		shown := strings.NewReplacer(local, "LOCAL", dir, "DIR").Replace(step.args)
		if err != nil {
			c.printf("| `%s` | FAILED |\n", shown)
			return fmt.Errorf("FsShell %s: %w\n%s", step.args, err, said.String())
		}
		c.printf("| `%s` | as it should |\n", shown)
		fmt.Fprintf(progress, "FsShell %s: ok\n", shown)
	}
	return nil
}

// A javaStep is a command of Hadoop's shell, and what must hold after it.
type javaStep struct {
	args  string
	check func(output string) error // nil: that it succeeds is enough
}

const javaFile = "/java/data"

// javaSteps are the commands for a local file with that content.
func javaSteps(ctx context.Context, own *hdfs.Client, dir, local string, content []byte) []javaStep {
	const name, cut = javaFile, 1_234_567
	whole := append(append([]byte(nil), content...), content...)
	has := func(want []byte) func(string) error {
		return func(string) error {
			return until(ctx, 30*time.Second, func() error { // a cut inside a block takes a recovery
				got, err := own.ReadFile(ctx, name)
				if err == nil && !bytes.Equal(got, want) {
					err = fmt.Errorf("%d bytes that differ from the %d stored", len(got), len(want))
				}
				return err
			})
		}
	}
	shows := func(part string) func(string) error {
		return func(out string) error {
			if !strings.Contains(out, part) {
				return fmt.Errorf("it shows %q, which lacks %q", out, part)
			}
			return nil
		}
	}
	return []javaStep{
		{"-mkdir -p /java", nil},
		{"-put " + local + " " + name, has(content)},
		{"-ls /java", shows("3000017")},
		{"-cat " + name, func(out string) error {
			if !strings.HasSuffix(out, string(content)) {
				return fmt.Errorf("%d bytes that differ", len(out))
			}
			return nil
		}},
		{"-checksum " + name, func(out string) error {
			sum, err := own.ChecksumOf(ctx, name, hdfs.MD5MD5CRC)
			if err != nil {
				return err
			}
			return shows(hex.EncodeToString(sum.Encoded))(out)
		}},
		{"-D dfs.checksum.combine.mode=COMPOSITE_CRC -checksum " + name, shows(fmt.Sprintf("%08x", crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))))},
		{"-appendToFile " + local + " " + name, has(whole)},
		{"-D dfs.checksum.type=NULL -put " + local + " /java/unsummed", nil},
		{"-D dfs.checksum.type=NULL -appendToFile " + local + " /java/unsummed", nil},
		{"-get /java/unsummed " + filepath.Join(dir, "unsummed"), func(string) error {
			got, err := os.ReadFile(filepath.Join(dir, "unsummed"))
			if err == nil && !bytes.Equal(got, whole) {
				err = errors.New("other bytes came back")
			}
			return err
		}},
		{"-rm -skipTrash /java/unsummed", shows("Deleted /java/unsummed")},
		{"-setrep 2 " + name, shows("Replication 2 set")},
		{"-chmod 600 " + name, nil},
		{"-chown ada:staff " + name, nil},
		{"-stat %a/%u/%g/%r/%b " + name, shows(fmt.Sprintf("600/ada/staff/2/%d", len(whole)))},
		{"-truncate -w " + fmt.Sprint(cut) + " " + name, has(whole[:cut])},
		{"-get " + name + " " + filepath.Join(dir, "back"), func(string) error {
			got, err := os.ReadFile(filepath.Join(dir, "back"))
			if err == nil && !bytes.Equal(got, whole[:cut]) {
				err = errors.New("other bytes came back")
			}
			return err
		}},
		{"-mv " + name + " /java/moved", nil},
		{"-count /java", shows(fmt.Sprintf("%d /java", cut))},
		{"-df /", shows("hdfs://")},
		{"-rm -r -skipTrash /java", shows("Deleted /java")},
	}
}
