package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/internal/transcript"
)

// shellTranscript is what the comparison performs, and what Hadoop has answered.
const shellTranscript = "cmd/verbena/internal/fscmd/testdata/fsshell.txt"

func shellCommand(c *common) *cobra.Command {
	var classpath string
	var record bool
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "Compare verbena fs with Hadoop's file system shell, command by command",
		Long: `Apache Hadoop's FsShell and verbena fs perform the commands of
` + shellTranscript + `, each on a file
system of its own (verbena up). Output, exit codes and error texts must be the same, but
for what the transcript says differs on purpose. Needs java, and Maven to fetch
org.apache.hadoop:hadoop-client, or its jars in --classpath.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return shell(ctx, c, dir, classpath, record) })
		},
	}
	cmd.Flags().StringVar(&classpath, "classpath", "", "jars of hadoop-client and what it needs (default: fetched with Maven)")
	cmd.Flags().BoolVar(&record, "record", false, "write Hadoop's answers to the transcript")
	return cmd
}

//go:embed shell/Shell.java
var shellSource []byte

// performer performs one command on the file system at an address.
type performer func(transcript.Call) (transcript.Answer, error)

func shell(ctx context.Context, c *common, dir, classpath string, record bool) error {
	text, err := os.ReadFile(shellTranscript)
	if err != nil {
		return fmt.Errorf("%w: run this from the project's folder", err)
	}
	steps, err := transcript.Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", shellTranscript, err)
	}
	classpath, err = fetchJars(ctx, classpath, "hadoop-client", maven.Artifact{Group: "org.apache.hadoop", Name: "hadoop-client", Version: maven.Hadoop})
	if err != nil {
		return err
	}
	theirs, err := performAll(ctx, c, filepath.Join(dir, "hadoop"), steps, func(work, address string) (performer, func() error, error) {
		return startShell(ctx, work, classpath, address)
	})
	if err != nil {
		return err
	}
	changed := 0
	for i := range steps {
		if steps[i].Answer != theirs[i] {
			changed++
			steps[i].Answer = theirs[i]
		}
	}
	if record {
		if err := os.WriteFile(shellTranscript, []byte(transcript.Format(steps)), 0o644); err != nil {
			return err
		}
	}
	ours, err := performAll(ctx, c, filepath.Join(dir, "verbena"), steps, func(_, address string) (performer, func() error, error) {
		return func(call transcript.Call) (transcript.Answer, error) {
			args := append([]string{"fs", "--namenode", address}, generic(call)...)
			cmd := exec.CommandContext(ctx, c.binary, append(args, call.Args...)...)
			cmd.Env = append(os.Environ(), "HADOOP_USER_NAME="+call.User)
			return answerOf(cmd)
		}, func() error { return nil }, nil
	})
	if err != nil {
		return err
	}
	c.printf("# verbena fs beside Apache Hadoop's shell, %s\n\n`go run ./soak shell`\n\n", maven.Hadoop)
	same, meant, differ := 0, 0, 0
	for i := range steps {
		switch s := &steps[i]; {
		case ours[i] == s.Answer:
			same++
		case s.Differs != "":
			meant++
		default:
			differ++
			c.printf("- `%s`\n  - Hadoop: %d, %q, %q\n  - Verbena: %d, %q, %q\n", s.Command(), s.Answer.Code, s.Answer.Out, s.Answer.Err, ours[i].Code, ours[i].Out, ours[i].Err)
		}
	}
	c.printf("%d commands had the same output, exit code and error text; %d differ on purpose.\n", same, meant)
	switch {
	case differ > 0:
		return fmt.Errorf("%d of %d commands differ", differ, len(steps))
	case changed > 0 && !record:
		return fmt.Errorf("%d commands are answered by Hadoop otherwise than %s says: record them anew with --record", changed, shellTranscript)
	}
	return nil
}

// performAll performs all commands on a file system of their own.
func performAll(ctx context.Context, c *common, dir string, steps []transcript.Step, start func(work, address string) (performer, func() error, error)) (answers []transcript.Answer, err error) {
	work := filepath.Join(dir, "local")
	if err := transcript.LocalFiles(work); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "up.address")
	up, err := processes.Start(ctx, "verbena up", file, c.binary, "up", "--dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--address-file", file, "--superuser", "root")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, up.Stop()) }()
	perform, stop, err := start(dir, up.Address)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	place := transcript.Place{Local: work, NameNode: up.Address}
	for _, s := range steps {
		a, err := place.Perform(s.Args, perform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Command(), err)
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// generic are the options for a command's properties, which both programs have in front of it.
func generic(call transcript.Call) (options []string) {
	for _, p := range call.Properties {
		options = append(options, "-D", p)
	}
	return options
}

// answerOf runs a command, which may fail.
func answerOf(cmd *exec.Cmd) (a transcript.Answer, err error) {
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return transcript.Answer{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: said.String()}, err
}

// startShell starts the JVM that performs commands of Hadoop's shell.
func startShell(ctx context.Context, dir, classpath, address string) (performer, func() error, error) {
	source, err := writeJava(dir, "Shell.java", shellSource)
	if err != nil {
		return nil, nil, err
	}
	java := javaCommandLine(ctx, dir, classpath, source, "hdfs://"+address)
	said := &strings.Builder{}
	java.Stderr = said
	in, err := java.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := java.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := java.Start(); err != nil {
		return nil, nil, fmt.Errorf("java: %w", err)
	}
	perform := func(call transcript.Call) (a transcript.Answer, err error) {
		fmt.Fprintln(progress, "FsShell", call.Args)
		args := append(generic(call), "-"+call.Args[0])
		args = append(args, call.Args[1:]...)
		b := binary.BigEndian.AppendUint32(nil, uint32(len(args)))
		for _, arg := range append([]string{call.User}, args...) {
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(arg))), arg...)
		}
		if _, err := in.Write(b); err != nil {
			return a, fmt.Errorf("java: %w\n%s", err, said)
		}
		number := func() (n int) {
			var b [4]byte
			if err == nil {
				_, err = io.ReadFull(out, b[:])
			}
			return int(binary.BigEndian.Uint32(b[:]))
		}
		text := func() string {
			b := make([]byte, number())
			if err == nil {
				_, err = io.ReadFull(out, b)
			}
			return string(b)
		}
		a = transcript.Answer{Code: number(), Out: text(), Err: text()}
		if err != nil {
			err = fmt.Errorf("java: %w\n%s", err, said)
		}
		return a, err
	}
	return perform, func() error { in.Close(); return java.Wait() }, nil
}
