package main

import (
	"strings"
	"testing"
)

const crowdMetrics = `# HELP go_goroutines Number of goroutines that currently exist.
go_goroutines 31
process_open_fds 33
process_resident_memory_bytes 3.8e+07
verbena_endpoints{device="shm",transport="shm"} 7
verbena_endpoints{device="",transport="tcp"} 1
verbena_pool_registered_bytes{device="shm",group="hdfs",pool="receive",transport="shm"} 4096
verbena_pool_registered_bytes{device="shm",group="",pool="receive",transport="shm"} 1e+09
verbena_pool_used_bytes{device="shm",group="hdfs",pool="send",transport="shm"} 100
verbena_hdfs_datanode_native_reserved_bytes 262144
verbena_hdfs_datanode_replicas_open 4
verbena_hdfs_datanode_windows 12
`

// Series are added up, those of other groups left out, and a DataNode that does not tell something
// is an error, not a 0.
func TestLoadOfADataNode(t *testing.T) {
	got, err := parseLoad(strings.NewReader(crowdMetrics))
	if err != nil {
		t.Fatal(err)
	}
	want := crowdLoad{endpoints: 8, descriptors: 25, goroutines: 31, kept: 4, registered: 4096, used: 100, windows: 262144, resident: 38e6}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, without := range []string{"go_goroutines 31", "process_open_fds", "verbena_hdfs_datanode_native_reserved_bytes"} {
		if _, err := parseLoad(strings.NewReader(strings.ReplaceAll(crowdMetrics, "\n"+without, "\n#"))); err == nil {
			t.Errorf("without %s there is no error", without)
		}
	}
	if _, err := parseLoad(strings.NewReader("go_goroutines many\n")); err == nil {
		t.Error("what is no number is one")
	}
}

// The soak fails for what exceeds the flags, for what stays, and for what grows.
func TestCrowdIsJudged(t *testing.T) {
	p := &crowdPlan{clients: 10, receive: 1 << 20, send: 1 << 20, native: 10 * crowdWindow}
	before := crowdLoad{endpoints: 1, descriptors: 25, goroutines: 30, used: 1000}
	open := crowdLoad{endpoints: 11, descriptors: 60, goroutines: 70, registered: 2 << 20, used: 1 << 20, windows: 10 * crowdPacket}
	for _, c := range []struct {
		name   string
		change func(before, open, after *crowdLoad)
		want   string // in the error; empty: none
	}{
		{"in bounds", func(_, _, _ *crowdLoad) {}, ""},
		{"too few endpoints", func(_, open, _ *crowdLoad) { open.endpoints-- }, "of 10 clients"},
		{"registered", func(_, open, _ *crowdLoad) { open.registered++ }, "are registered"},
		{"windows", func(_, open, _ *crowdLoad) { open.windows = p.native + 1 }, "are reserved"},
		{"no windows", func(_, open, _ *crowdLoad) { open.windows = 0 }, "are reserved"},
		{"an endpoint stays", func(_, _, after *crowdLoad) { after.endpoints++ }, "endpoints"},
		{"descriptors stay", func(_, _, after *crowdLoad) { after.descriptors += 65 }, "descriptors"},
		{"goroutines stay", func(_, _, after *crowdLoad) { after.goroutines += 65 }, "goroutines"},
		{"a window stays", func(_, _, after *crowdLoad) { after.windows = 1 }, "of windows"},
		{"memory stays", func(_, _, after *crowdLoad) { after.used += 5 << 20 }, "in use"},
	} {
		b, o, a := before, open, before
		c.change(&b, &o, &a)
		err := judgeOpen(p, &b, &o)
		if err == nil {
			err = judgeAfter(&b, &a)
		}
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	again := open
	if again.descriptors = 66; judgeAgain(&open, &again) != nil {
		t.Error("a tenth more is too much")
	}
	if again.descriptors = 67; judgeAgain(&open, &again) == nil {
		t.Error("more than a tenth more is not too much")
	}
}
