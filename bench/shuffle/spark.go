package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/processes"
)

//go:embed Pairs.java
var pairsJava []byte

// sparkVersion is that of pyspark, in which PyPI has the whole distribution.
const sparkVersion = "3.5.9"

// A pairsLoad is what GroupBy and SortBy are measured with.
type pairsLoad struct {
	mappers, each, value int // as many reducers
	memory               string
	executor             int    // MiB of each of Spark's two
	cache                string // Spark's storage level
}

func sparkRows() []*jobRow {
	// The pairs do not fit into the caches of executors of 1 GiB: Spark keeps the rest on
	// disk, which costs it less than to make them again.
	small := pairsLoad{8, 125_000, 1024, "2GiB", 1024, "MEMORY_AND_DISK"}
	large := small
	large.memory, large.executor, large.cache = "6GiB", 3072, "MEMORY_ONLY"
	named := func(operation, name string, p pairsLoad, target beside.Target) *jobRow {
		r := &jobRow{what: name + ", 1,000,000 pairs of 1 KiB", beside: fmt.Sprintf("Spark 3.5, local-cluster[2,1,%d], second run", p.executor), target: target, targetCPU: target}
		r.run = func(ctx context.Context, j *jobs) error { return r.spark(ctx, j, operation, p) }
		return r
	}
	return []*jobRow{
		named("groupby", "GroupBy", small, beside.AtMost(0.2)),
		named("sortby", "SortBy", small, beside.Target{}),
		named("groupby", "GroupBy", large, beside.Target{}),
		named("sortby", "SortBy", large, beside.Target{}),
	}
}

// spark measures rounds, each with a Spark that has done the same once before.
func (r *jobRow) spark(ctx context.Context, j *jobs, operation string, p pairsLoad) error {
	if j.quick {
		p.each /= 4
		r.what = strings.Replace(r.what, "1,000,000", "250,000", 1)
	}
	for range j.rounds {
		if err := r.sparkRound(ctx, j, operation, p); err != nil {
			return err
		}
	}
	return nil
}

func (r *jobRow) sparkRound(ctx context.Context, j *jobs, operation string, p pairsLoad) (err error) {
	if err := host.WarmMemory(warm); err != nil {
		return err
	}
	s, err := startSpark(ctx, j.dir, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, _, err := s.run(operation); err != nil {
		return err
	}
	if err := level(); err != nil {
		return err
	}
	theirs, results, err := s.run(operation)
	if err != nil {
		return err
	}
	if err := level(); err != nil {
		return err
	}
	ours, groups, err := j.pairs(ctx, operation, p)
	if err != nil {
		return err
	}
	pairs := int64(p.mappers * p.each)
	// Keys are random: as good as all differ.
	if operation == "groupby" && (results > pairs || groups > pairs || min(results, groups) < pairs*99/100) || operation == "sortby" && results != pairs {
		return fmt.Errorf("of %d pairs Spark has %d results and we have %d keys", pairs, results, groups)
	}
	r.ours, r.theirs = append(r.ours, ours), append(r.theirs, theirs)
	return nil
}

// A spark is a Spark cluster with its driver.
type spark struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	logs string
}

// opens are the packages that Spark's own launcher opens for it on Java 17.
var opens = []string{
	"java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
	"java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
}

// startSpark starts Spark and returns when the pairs are made.
func startSpark(ctx context.Context, dir string, p pairsLoad) (*spark, error) {
	jars, err := sparkJars(ctx)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "spark")
	program, err := compilePairs(ctx, home, jars)
	if err != nil {
		return nil, err
	}
	args := []string{"-Xmx1g", "-XX:+IgnoreUnrecognizedVMOptions", "-Djdk.reflect.useDirectMethodHandle=false"}
	for _, pkg := range opens {
		args = append(args, "--add-opens=java.base/"+pkg+"=ALL-UNNAMED")
	}
	for name, value := range map[string]string{
		"master": fmt.Sprintf("local-cluster[2,1,%d]", p.executor), "executor.memory": fmt.Sprintf("%dm", p.executor), "app.name": "pairs",
		"ui.enabled": "false", "jars": program, "local.dir": filepath.Join(home, "local"),
	} {
		args = append(args, "-Dspark."+name+"="+value)
	}
	args = append(args, "-cp", program+string(filepath.ListSeparator)+filepath.Join(jars, "*"), "Pairs",
		fmt.Sprint(p.mappers), fmt.Sprint(p.each), fmt.Sprint(p.value), fmt.Sprint(p.mappers), p.cache)
	s := &spark{cmd: exec.CommandContext(ctx, "java", args...), logs: filepath.Join(home, "log")}
	s.cmd.Env = append(os.Environ(), "SPARK_HOME="+home, "SPARK_SCALA_VERSION=2.12", "SPARK_LOCAL_IP=127.0.0.1")
	s.cmd.Dir = home
	log, err := os.Create(s.logs)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd.Stderr = log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Spark: %w", err)
	}
	if line, err := s.line(); err != nil || line != "ready" {
		return nil, errors.Join(fmt.Errorf("what Spark said is %q: %w", line, err), s.stop())
	}
	return s, nil
}

func (s *spark) line() (string, error) {
	if s.out.Scan() {
		return s.out.Text(), nil
	}
	log, _ := os.ReadFile(s.logs) // what there is
	return "", fmt.Errorf("the driver of Spark has ended: %w: %s", errors.Join(s.out.Err(), io.ErrUnexpectedEOF), host.Tail(string(log)))
}

// run has Spark do it once. The time is that of the map and the result stage.
func (s *spark) run(operation string) (c cost, results int64, err error) {
	before, err := s.processorTime()
	if err != nil {
		return c, 0, err
	}
	if _, err := fmt.Fprintln(s.in, operation); err != nil {
		return c, 0, err
	}
	line, err := s.line()
	if err != nil {
		return c, 0, err
	}
	var mapped, reduced float64 // ms
	if _, err := fmt.Sscan(line, &mapped, &reduced, &results); err != nil {
		return c, 0, fmt.Errorf("what Spark said is %q: %w", line, err)
	}
	after, err := s.processorTime()
	return cost{(mapped + reduced) / 1e3, after - before}, results, err
}

// processorTime is that of the driver, in which master and workers run, and of the
// executors, its children.
func (s *spark) processorTime() (seconds float64, err error) {
	pids := []int{s.cmd.Process.Pid}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[0]))
	if err != nil {
		return 0, err
	}
	for _, file := range children {
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		for _, text := range strings.Fields(string(raw)) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				return 0, err
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) != 3 {
		return 0, fmt.Errorf("want a driver of Spark and two executors, there are %d processes", len(pids))
	}
	for _, pid := range pids {
		t, err := processes.CPUTime(pid)
		if err != nil {
			return 0, err
		}
		seconds += t.Seconds()
	}
	return seconds, nil
}

// stop ends it and removes its files.
func (s *spark) stop() error {
	_ = s.in.Close()
	err := s.cmd.Wait()
	return errors.Join(err, os.RemoveAll(filepath.Dir(s.logs)))
}

// sparkJars returns the folder of Spark's jars, which pip fetches once.
func sparkJars(ctx context.Context) (string, error) {
	for tool, from := range map[string]string{"java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%s is missing (Debian: apt-get install %s): %w", tool, from, err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "verbena-jars", "pyspark-"+sparkVersion)
	jars := filepath.Join(dir, "pyspark", "jars")
	if _, err := os.Stat(jars); err == nil {
		return jars, nil
	}
	fmt.Fprintln(os.Stderr, "fetching Spark", sparkVersion)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "fetching-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // it has been renamed if all went well
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", work, "pyspark=="+sparkVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Spark by pip (Debian: apt-get install python3-pip): %w: %s", err, host.Tail(string(out)))
	}
	if err := os.Rename(work, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return jars, nil
}

// compilePairs makes a home for Spark, and the jar of Pairs.java in it.
func compilePairs(ctx context.Context, home, jars string) (program string, err error) {
	classes := filepath.Join(home, "classes")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink(jars, filepath.Join(home, "jars")); err != nil {
		return "", err
	}
	source, program := filepath.Join(home, "Pairs.java"), filepath.Join(home, "pairs.jar")
	if err := os.WriteFile(source, pairsJava, 0o644); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"javac", "-nowarn", "-cp", filepath.Join(jars, "*"), "-d", classes, source},
		{"jar", "cf", program, "-C", classes, "."},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", args[0], err, host.Tail(string(out)))
		}
	}
	return program, nil
}
