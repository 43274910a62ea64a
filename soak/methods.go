package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
)

func methodsCommand(c *common) *cobra.Command {
	var classpath string
	cmd := &cobra.Command{
		Use:   "methods",
		Short: "Compare the answers that operators get with those of Apache HDFS, method by method",
		Long: `Apache Hadoop's own client calls the methods of ClientProtocol, ClientDatanodeProtocol and
of the protocols for refreshing that are neither reading nor writing, as the superuser and as
somebody else: on Apache HDFS (MiniDFSCluster) and on verbena up. Results, exception
classes and texts must be the same. Needs java, and Maven to fetch
org.apache.hadoop:hadoop-minicluster, or its jars in --classpath.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return methods(ctx, c, dir, classpath) })
		},
	}
	cmd.Flags().StringVar(&classpath, "classpath", "", "jars of hadoop-minicluster and what it needs (default: fetched with Maven)")
	return cmd
}

//go:embed methods/Methods.java
var methodsSource []byte

func methods(ctx context.Context, c *common, dir, classpath string) (err error) {
	if classpath, err = fetchJars(ctx, classpath, "hadoop-minicluster", miniCluster...); err != nil {
		return err
	}
	source, err := writeJava(dir, "Methods.java", methodsSource)
	if err != nil {
		return err
	}
	ask := func(where string) ([]string, error) {
		java := javaCommandLine(ctx, dir, classpath, source, where)
		var said bytes.Buffer
		java.Stderr = &said
		fmt.Fprintln(progress, "asking", where)
		out, err := java.Output()
		if err != nil {
			return nil, fmt.Errorf("java: %w\n%s", err, said.String())
		}
		return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"), nil
	}
	want, err := ask(filepath.Join(dir, "apache"))
	if err != nil {
		return err
	}
	address := filepath.Join(dir, "up.address")
	up, err := processes.Start(ctx, "verbena up", address, c.binary, "up", "--dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--address-file", address,
		"--superuser", "root", "--property", "dfs.ls.limit=4")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Stop()) }()
	got, err := ask("hdfs://" + up.Address)
	if err != nil {
		return err
	}
	c.printf("# What operators are answered, beside Apache HDFS %s\n\n`go run ./soak methods`\n\n", maven.Hadoop)
	if len(got) != len(want) {
		return fmt.Errorf("%d answers, Apache's are %d", len(got), len(want))
	}
	differ := 0
	for i := range want {
		if got[i] != want[i] {
			differ++
			c.printf("- Apache: %s\n- Verbena: %s\n", want[i], got[i])
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d answers differ", differ, len(want))
	}
	c.printf("%d calls of %d methods had the same results, exception classes and texts.\n", len(want), distinct(want))
	return nil
}

// distinct counts the methods among the calls: each line begins with one's name, or with
// DataNode and its name.
func distinct(lines []string) int {
	seen := make(map[string]bool)
	for _, l := range lines {
		words := strings.FieldsFunc(strings.TrimPrefix(l, "DataNode "), func(r rune) bool { return r == ' ' || r == '\t' })
		seen[words[0]] = true
	}
	return len(seen)
}

// writeJava writes a source file, and beside it what keeps Hadoop from logging: that comes
// before the jars, which have a configuration of their own.
func writeJava(dir, name string, source []byte) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, "log4j.properties"), []byte("log4j.rootLogger=OFF\n"), 0o644); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, source, 0o644)
}

// javaCommandLine runs a source file that speaks to Hadoop, as the user root.
func javaCommandLine(ctx context.Context, dir, classpath, source string, args ...string) *exec.Cmd {
	java := exec.CommandContext(ctx, "java", "-Xmx1g", "-Djava.io.tmpdir="+dir)
	for _, p := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		java.Args = append(java.Args, "--add-opens=java.base/"+p+"=ALL-UNNAMED")
	}
	java.Args = append(append(java.Args, "-cp", dir+string(filepath.ListSeparator)+classpath, source), args...)
	java.Env = append(os.Environ(), "HADOOP_USER_NAME=root")
	return java
}
