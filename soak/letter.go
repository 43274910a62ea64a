package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/internal/maven"
)

func letterCommand(c *common) *cobra.Command {
	l := letterRun{c: c}
	cmd := &cobra.Command{
		Use:   "letter",
		Short: "Compare the NameNode's answers with those of Apache HDFS, operation by operation",
		Long: `Random operations of several users on paths that often collide go to the NameNode
of Apache HDFS (MiniDFSCluster), which answers them; then Verbena's NameNode gets the
same operations, and must give the same answers: results, exception classes,
lengths, listings, owners, modes. Needs java, and Maven to fetch
org.apache.hadoop:hadoop-minicluster, or its jars in --classpath; run it from the
project's folder. --record keeps operations and answers in a file, which
go test ./hdfs/internal/namenode -run TestLetter -letter FILE replays without Java.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.binary = self // no binary of verbena takes part
			return c.run(cmd, l.run)
		},
	}
	cmd.Flags().StringVar(&l.classpath, "classpath", "", "jars of hadoop-minicluster and what it needs (default: fetched with Maven)")
	cmd.Flags().StringVar(&l.record, "record", "", "keep operations and answers in this file")
	cmd.Flags().IntVar(&l.operations, "operations", 20_000, "how many operations")
	cmd.Flags().BoolVar(&l.attributes, "attributes", false, "half of the operations on access control lists and the like")
	cmd.Flags().Uint64Var(&l.seed, "seed", 1, "what the operations are made from")
	return cmd
}

type letterRun struct {
	c                 *common
	classpath, record string
	operations        int
	attributes        bool
	seed              uint64
}

//go:embed letter/Oracle.java
var oracle []byte

// miniCluster is what runs a NameNode within a program.
var miniCluster = []maven.Artifact{
	{Group: "org.apache.hadoop", Name: "hadoop-minicluster", Version: maven.Hadoop},
	{Group: "junit", Name: "junit", Version: "4.13.2"},
	{Group: "org.mockito", Name: "mockito-core", Version: "4.11.0"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-core", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-annotations", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-databind", Version: "2.12.7.1"},
}

func (l *letterRun) run(ctx context.Context, dir string) (err error) {
	if l.classpath, err = fetchJars(ctx, l.classpath, "hadoop-minicluster", miniCluster...); err != nil {
		return err
	}
	operations := letterOperations(l.seed, l.operations, l.attributes)
	answers, err := l.ask(ctx, dir, operations)
	if err != nil {
		return err
	}
	record := filepath.Join(dir, "letter.gz")
	if l.record != "" {
		if record, err = filepath.Abs(l.record); err != nil {
			return err
		}
	}
	size, err := keepLetter(record, operations, answers)
	if err != nil {
		return err
	}
	refused := 0
	for _, a := range answers {
		if strings.HasPrefix(a, "!") {
			refused++
		}
	}
	attributes := ""
	if l.attributes {
		attributes = " --attributes"
	}
	l.c.printf("# Answers beside Apache HDFS %s\n\n`go run ./soak letter --operations %d --seed %d%s`\n\n", maven.Hadoop, l.operations, l.seed, attributes)
	l.c.printf("Apache's NameNode refused %d of %d operations. Operations and answers take %d KiB, compressed.\n", refused, len(operations), size>>10)
	replay := exec.CommandContext(ctx, "go", "test", "./hdfs/internal/namenode", "-count=1", "-run", "^TestLetter$", "-letter", record)
	out, err := replay.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the answers differ, or the replay failed: %w\n%s", err, out)
	}
	l.c.printf("Verbena's NameNode gave the same answers.\n")
	return nil
}

// ask has Apache's NameNode answer.
func (l *letterRun) ask(ctx context.Context, dir string, operations []string) ([]string, error) {
	source, err := writeJava(dir, "Oracle.java", oracle)
	if err != nil {
		return nil, err
	}
	java := javaCommandLine(ctx, dir, l.classpath, source, filepath.Join(dir, "apache"))
	java.Stdin = strings.NewReader(strings.Join(operations, "\n") + "\n")
	var out, said bytes.Buffer
	java.Stdout, java.Stderr = &out, &said
	fmt.Fprintln(progress, "asking Apache HDFS", len(operations), "operations")
	if err := java.Run(); err != nil {
		return nil, fmt.Errorf("java: %w\n%s", err, said.String())
	}
	answers := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(answers) != len(operations) {
		return nil, fmt.Errorf("%d answers to %d operations\n%s", len(answers), len(operations), said.String())
	}
	for i, a := range answers {
		if strings.HasPrefix(a, "!!") {
			return nil, fmt.Errorf("operation %d did not reach the NameNode, or was not understood: %q: %s", i, operations[i], a)
		}
	}
	return answers, nil
}

// keepLetter writes each operation and below it its answer, and returns the
// file's size.
func keepLetter(name string, operations, answers []string) (size int64, err error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriter(z)
	for i := range operations {
		fmt.Fprintf(w, "%s\n%s\n", operations[i], answers[i])
	}
	if err := w.Flush(); err != nil {
		return 0, err
	}
	if err := z.Close(); err != nil {
		return 0, err
	}
	return int64(buf.Len()), os.WriteFile(name, buf.Bytes(), 0o644)
}
