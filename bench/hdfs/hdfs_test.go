package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/rdma"
)

// Of clients that were chosen only the rows that compare two of them are shown.
func TestRowsOfChosenClients(t *testing.T) {
	b := &bench{size: 1, clients: regexp.MustCompile("java")}
	round := figures{}
	for _, e := range entries {
		for _, op := range e.does {
			if b.clients.MatchString(e.name) {
				round[e.name+"/"+op] = figure{numbers: []int64{1e6}, cpu: 1}
			}
		}
	}
	rows := b.rows([]figures{round})
	if len(rows) == 0 || len(rows) == len(comparisons) {
		t.Errorf("%d of %d rows", len(rows), len(comparisons))
	}
	for _, r := range rows {
		if !strings.Contains(r.What, "Java") || r.Ratio != 1 {
			t.Errorf("%+v", r)
		}
	}
}

// Who reads what another client writes brings that one along.
func TestChosenClientsHaveTheirFiles(t *testing.T) {
	b := &bench{clients: regexp.MustCompile("^iwarp get$")}
	for name, want := range map[string]bool{"iwarp get": true, "iwarp": true, "shm": false, "shm get": false} {
		if got := b.wants(name); got != want {
			t.Errorf("%s is wanted: %v", name, got)
		}
	}
}

// Every comparison is of something that a client does.
func TestComparisonsAreMeasured(t *testing.T) {
	known := map[string]bool{"floor": true}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.name] = true
		if e.reads != "" && !names[e.reads] {
			t.Errorf("%s reads the file of %s, which has not been written then", e.name, e.reads)
		}
		for _, op := range e.does {
			known[e.name+"/"+op] = true
			if !slices.ContainsFunc(operations, func(o operation) bool { return o.name == op }) {
				t.Errorf("no operation %q", op)
			}
		}
	}
	if err := check(known); err != nil {
		t.Error(err)
	}
	if err := check(map[string]bool{}); err == nil {
		t.Error("comparisons without clients pass")
	}
}

func TestRowsAreMedians(t *testing.T) {
	b := &bench{size: 1}
	var rounds []figures
	for _, ours := range []int64{4e6, 1e6, 2e6} {
		f := figures{}
		for _, c := range comparisons {
			f[c.ours], f[c.theirs] = figure{numbers: []int64{4e6}, cpu: 40}, figure{numbers: []int64{4e6}, cpu: 40}
		}
		for _, c := range comparisons {
			if c.theirs == "java/write" && c.ours == "shm/write" {
				f[c.ours] = figure{numbers: []int64{ours}, cpu: float64(ours) / 1e5}
			}
		}
		rounds = append(rounds, f)
	}
	rows := b.rows(rounds)
	if len(rows) != len(comparisons) {
		t.Fatalf("%d rows", len(rows))
	}
	cpu, rate := rows[0], rows[1]
	if cpu.Ours != 20 || cpu.Theirs != 40 || cpu.Ratio != 0.5 || cpu.Low != 0.25 || cpu.High != 1 || *cpu.Met {
		t.Errorf("%+v", cpu)
	}
	if math.Abs(rate.Ours-(1<<20)/0.002) > 1 || rate.Ratio != 2 || rate.Low != 1 || rate.High != 4 || *rate.Met || rate.Unit != beside.Bandwidth {
		t.Errorf("%+v", rate)
	}
	if table := b.table(rows); strings.Count(table, "\n") != len(rows)+4 {
		t.Error(table)
	}
}

func TestBestPacketIsMarked(t *testing.T) {
	took := map[cell]*taken{}
	for i, packet := range packetSizes {
		for _, col := range columns {
			took[cell{1, packet, col.name}] = &taken{seconds: []float64{float64(10 - i), 1000, 0}, cpu: []float64{float64(20 + i)}}
		}
	}
	table := packetTable([]int64{1}, took)
	best := fmt.Sprintf("**%d.00**", 11-len(packetSizes))
	if strings.Count(table, best) != len(columns) || strings.Count(table, "**20.00**") != len(columns) || strings.Count(table, "**") != 4*len(columns) {
		t.Error(table)
	}
	// The sizes in use are rows, each marked in its columns.
	for size, marks := range map[string]int{"1016 KiB": 3, "252 KiB": 1, "256 KiB": 1, "1 MiB": 0, "64 KiB": 0} {
		_, row, found := strings.Cut(table, "| 1 GiB | "+size+" |")
		row, _, _ = strings.Cut(row, "\n")
		if !found || strings.Count(row, "†") != marks {
			t.Errorf("packets of %s: %s", size, row)
		}
	}
	// What was not measured has no column.
	for at := range took {
		if at.column == adapters {
			delete(took, at)
		}
	}
	if table := packetTable([]int64{1}, took); strings.Contains(table, adapters) || !strings.Contains(table, "iwarp") {
		t.Error(table)
	}
}

// device stands in for an adapter.
type device struct{ rdma.Device }

// adapterProvider has devices.
type adapterProvider struct {
	rdma.Provider
	devices []rdma.Device
	err     error
}

func (p adapterProvider) Name() string                                   { return adapters }
func (p adapterProvider) Devices(context.Context) ([]rdma.Device, error) { return p.devices, p.err }

// Adapters have a column where there are any; where there are none, a line says why.
func TestColumnOfAdapters(t *testing.T) {
	for _, test := range []struct {
		providers []rdma.Provider
		there     bool
		says      string
	}{
		{nil, false, "not built in"},
		{[]rdma.Provider{adapterProvider{err: errors.New("modprobe it")}}, false, "modprobe it"},
		{[]rdma.Provider{adapterProvider{}}, false, "no adapter"},
		{[]rdma.Provider{adapterProvider{devices: []rdma.Device{device{}}}}, true, ""},
	} {
		var log strings.Builder
		here := columnsHere(t.Context(), test.providers, &log)
		there := slices.ContainsFunc(here, func(c column) bool { return c.name == adapters })
		if there != test.there || !strings.Contains(log.String(), test.says) || (log.Len() == 0) != there || len(here) < len(columns)-1 {
			t.Errorf("%v: %d columns, %q", test.providers, len(here), log.String())
		}
	}
}

func TestStagesAreMedians(t *testing.T) {
	took := map[string][]stages{}
	for _, col := range columnsWith(func(name string) bool { return name != adapters }) {
		for _, ms := range []float64{9, 1, 2} {
			of := stages{"communication": ms * 1e6, "processing": 1e6, "io": 3e6, "namenode": 0}
			of.beyond(time.Duration(ms)*9*time.Millisecond, 4*time.Millisecond)
			took[col.name] = append(took[col.name], of)
		}
	}
	table := stagesTable(took)
	for _, row := range []string{
		"| communication | 2.0 | 2.0 | 2.0 | 2.0 |", "| all | 6.0 | 6.0 | 6.0 | 6.0 |", "| processor time, client and DataNodes | 18.0 | 18.0 | 18.0 | 18.0 |",
		"| the same work in one process | 4.0 | 4.0 | 4.0 | 4.0 |", "| CPU of communication | 14.0 | 14.0 | 14.0 | 14.0 |",
	} {
		if !strings.Contains(table, row) {
			t.Errorf("no %s in\n%s", row, table)
		}
	}
	if strings.Count(table, "\n") != 3+len(stageNames)+3 {
		t.Error(table)
	}
}

// What is done without a transport is what a client and a DataNode do: the blocks' bytes and
// their checksums are in files.
func TestBlocksAlone(t *testing.T) {
	l := &loader{buffer: make([]byte, bufferSize)}
	for i := range l.buffer {
		l.buffer[i] = byte(i * i >> 8)
	}
	const length, chunk = 3 << 20, 512
	dir := t.TempDir()
	for range 2 { // the second time over the files of the first
		for i := range l.buffer {
			l.buffer[i]++
		}
		if err := l.alone(dir, 2, length); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []string{"0", "1"} {
		data, err := os.ReadFile(filepath.Join(dir, "blk_"+b))
		if err != nil {
			t.Fatal(err)
		}
		sums, err := os.ReadFile(filepath.Join(dir, "meta_"+b))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != length || len(sums) != length/chunk*4 {
			t.Fatalf("block %s has %d bytes and %d of checksums", b, len(data), len(sums))
		}
		for i := range data {
			if data[i] != l.buffer[i%bufferSize] {
				t.Fatalf("byte %d of block %s is %#x, want %#x", i, b, data[i], l.buffer[i%bufferSize])
			}
		}
		for i := range length / chunk {
			if got, want := binary.BigEndian.Uint32(sums[4*i:]), crc32.Checksum(data[chunk*i:chunk*(i+1)], crc32.MakeTable(crc32.Castagnoli)); got != want {
				t.Fatalf("checksum %d of block %s is %#x, want %#x", i, b, got, want)
			}
		}
	}
}

// With --json each part prints a line of JSON for each of its rows and nothing else, and writes no file.
func TestRowsAsJSON(t *testing.T) {
	b := &bench{json: true, rounds: 1, out: t.TempDir()}
	took, written := map[cell]*taken{}, map[string][]stages{}
	for _, col := range columns {
		written[col.name] = []stages{{"communication": 5}}
		for _, packet := range packetSizes {
			took[cell{2, packet, col.name}] = &taken{seconds: []float64{1}, cpu: []float64{3}}
		}
	}
	d := &dfsio{bench: b, sizes: []int64{256}}
	runs := d.runs([]string{"one"}, map[spot][]rates{{256, "one", true}: {{Throughput: 7}}})
	for part, c := range map[string]struct {
		print func(w io.Writer) error
		lines int
		first string
	}{
		"packets": {func(w io.Writer) error { return publish(b, w, "packets", "text", packetFiles([]int64{2}, took), nil) },
			len(columns) * len(packetSizes), `{"file_gib":2,"packet_bytes":65536,"transport":"shm","seconds":[1],"cpu_seconds":[3]}`},
		"stages": {func(w io.Writer) error { return publish(b, w, "stages", "text", stageRows(written), nil) },
			len(columns), `{"transport":"shm","block_ns":[{"communication":5}]}`},
		"dfsio": {func(w io.Writer) error { return publish(b, w, "dfsio", "text", runs, nil) },
			2, `{"all_files_mib":256,"read":false,"client":"one","rates":null}`},
	} {
		var out bytes.Buffer
		if err := c.print(&out); err != nil {
			t.Errorf("%s: %v", part, err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != c.lines || lines[0] != c.first {
			t.Errorf("%s: %d lines, want %d; the first one is %s", part, len(lines), c.lines, lines[0])
		}
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: %s", part, line)
			}
		}
	}
	if files, err := os.ReadDir(b.out); err != nil || len(files) > 0 {
		t.Errorf("%v was written: %v", files, err)
	}
}

// Files without a byte are refused before anything is started.
func TestPacketsOfNoFile(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, files := range []string{"0", "-1", "1,0"} {
		cmd := root()
		cmd.SetArgs([]string{"packets", "--files", files})
		if err := cmd.ExecuteContext(over); err == nil || !strings.Contains(err.Error(), "want 1 GiB or more") {
			t.Errorf("--files %s: %v", files, err)
		}
	}
}

// The command finds the parts of the page that it writes.
func TestPageHasParts(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks/hdfs.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"rows", "packets", "stages", "dfsio"} {
		if _, err := beside.Between(string(page), part, ""); err != nil {
			t.Error(err)
		}
	}
}

// The plots beside the page are those of its figures.
func TestPlotsAreOfTheFigures(t *testing.T) {
	const dir = "../../docs/benchmarks"
	r, err := readResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "hdfs.md"))
	if err != nil {
		t.Fatal(err)
	}
	plots := r.plots()
	if len(plots) != 5 {
		t.Errorf("%d plots", len(plots))
	}
	for name, p := range plots {
		var drawn bytes.Buffer
		if err := p.Write(&drawn); err != nil {
			t.Error(name, err)
			continue
		}
		there, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(there, drawn.Bytes()) {
			t.Errorf("%s is not what hdfs.json says (%v): draw it anew by go -C bench run ./hdfs draw", name, err)
		}
		if !strings.Contains(string(page), "]("+name+")") {
			t.Errorf("the page does not show %s", name)
		}
	}
}

// What a run measures takes the place of what was there; all else stays, and is drawn again.
func TestResultsStay(t *testing.T) {
	b := &bench{out: t.TempDir(), rounds: 2}
	took := map[string][]stages{}
	for _, col := range columns {
		took[col.name] = []stages{{"communication": 1e6, "io": 3e6}}
	}
	if err := b.save(func(r *results) { r.Stages = &stageResults{b.conditions(), took} }); err != nil {
		t.Fatal(err)
	}
	rows := []beside.Row{
		beside.Medians("read, shm, CPU", "TCP", beside.Nanoseconds, []float64{1}, []float64{4}, beside.AtMost(0.5)),
		beside.Medians("read, shm, bandwidth", "TCP", beside.Bandwidth, []float64{4}, []float64{2}, beside.AtLeast(2.5)),
		beside.Medians("stat", "TCP", beside.Nanoseconds, []float64{1}, []float64{1}, beside.Target{}),
	}
	if err := b.save(func(r *results) { r.Rows = &rowResults{b.conditions(), 1, rows} }); err != nil {
		t.Fatal(err)
	}
	r, err := readResults(b.out)
	if err != nil {
		t.Fatal(err)
	}
	if r.Stages == nil || r.Stages.Rounds != 2 || r.Stages.Transports["shm"][0]["io"] != 3e6 || r.Rows == nil || len(r.Rows.Rows) != 3 {
		t.Errorf("%+v", r)
	}
	for _, name := range []string{"hdfs-rows.svg", "hdfs-stages.svg"} {
		if _, err := os.Stat(filepath.Join(b.out, name)); err != nil {
			t.Error(err)
		}
	}
	// Rows with targets are drawn, in the order of what is better, by whether they meet them.
	groups := r.Rows.plot().Groups
	if len(groups) != 2 || len(groups[0].Bars) != 1 || len(groups[1].Bars) != 1 {
		t.Fatalf("%+v", groups)
	}
	less, more := groups[0].Bars[0], groups[1].Bars[0]
	if less.Name != "read, shm" || less.Note != "CPU, beside TCP" || less.Parts[0] != 0.25 || less.Target != 0.5 || more.Parts[1] != 2 || more.Target != 2.5 {
		t.Errorf("%+v and %+v", less, more)
	}
}

// Our client obeys each of the commands on a small cluster of ours.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root, err := host.ModuleRoot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "verbena")
	if err := host.Build(ctx, root, binary, []string{"build"}, "./cmd/verbena"); err != nil {
		t.Fatal(err)
	}
	s, err := startOurs(ctx, binary, filepath.Join(dir, "shm"), "shm", "root")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	self := filepath.Join(dir, "bench")
	if err := host.Build(ctx, filepath.Join(root, "bench"), self, []string{"build"}, "./hdfs"); err != nil {
		t.Fatal(err)
	}
	c, err := ourClient(ctx, self, "shm", s.nameNode, "shm", "root", 64<<10, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	b := &bench{quick: true, size: 3, work: dir}
	at := &contender{client: c, reads: "shm", system: s}
	for _, op := range append(operations, operation{name: "floor", args: func(b *bench) []any { return []any{b.size << 20} }}) {
		f, err := b.measure(t.Context(), at, op)
		if err != nil {
			t.Fatal(err)
		}
		if f.numbers[0] <= 0 || f.cpu <= 0 {
			t.Errorf("%s: %+v", op.name, f)
		}
	}
	if n, err := s.stored(); err != nil || n < dataNodes*3<<20 {
		t.Errorf("%d bytes are stored, %v", n, err)
	}
	for _, read := range []int{0, 1} {
		if took, err := c.ask("dfsio", "/shm/dfsio", 3, 1<<20, 2, read); err != nil || len(took) != 4 || took[0] <= 0 || took[3] <= 0 {
			t.Errorf("TestDFSIO, reading %d: %v, %v", read, took, err)
		}
	}
	if _, err := c.ask("read", "/shm/large", 5); err == nil || !strings.Contains(err.Error(), "3145728 bytes of 5") {
		t.Errorf("a file of another length: %v", err)
	}
	if _, err := c.ask("dance", "/"); err == nil {
		t.Error("it dances")
	}
	if _, err := c.ask("delete", "/shm"); err != nil {
		t.Error(err)
	}
}
