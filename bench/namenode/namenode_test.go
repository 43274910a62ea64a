package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// The requests have the fields of ClientNamenodeProtocol.proto.
func TestRequests(t *testing.T) {
	for _, k := range kinds {
		req := k.build("c", "/d", 7)
		field, wire, n := protowire.ConsumeTag(req)
		src, m := protowire.ConsumeString(req[n:])
		if field != 1 || wire != protowire.BytesType || m < 0 || !strings.HasPrefix(src, "/d/") {
			t.Errorf("%s asks for field %d, %q", k.method, field, src)
		}
		for rest := []byte(req); len(rest) > 0; rest = rest[n:] {
			if _, _, n = protowire.ConsumeField(rest); n < 0 {
				t.Fatalf("%s: %v", k.method, protowire.ParseError(n))
			}
		}
	}
}

func TestRowsAreMedians(t *testing.T) {
	b := &bench{clients: 2}
	round := func(rate, cpu float64) map[string]figure {
		out := map[string]figure{}
		for _, k := range kinds {
			out[k.method] = figure{rate, cpu}
		}
		return out
	}
	rows := b.rows([2][]map[string]figure{
		{round(300, 10), round(100, 30), round(200, 20)},
		{round(100, 40), round(100, 40), round(100, 40)},
	})
	if len(rows) != 12 {
		t.Fatalf("%d rows", len(rows))
	}
	rate, cost := rows[0], rows[6]
	if rate.Ours != 200 || rate.Ratio != 2 || rate.Low != 1 || rate.High != 3 || !*rate.Met || rate.Unit != "calls/s" {
		t.Errorf("%+v", rate)
	}
	if cost.Ours != 20 || cost.Ratio != 0.5 || cost.Low != 0.25 || cost.High != 0.75 || !*cost.Met {
		t.Errorf("%+v", cost)
	}
	// Processor time too short for its clock is no result.
	rows = b.rows([2][]map[string]figure{{round(1, 1)}, {round(1, 0)}})
	if rows[6].Skipped == "" || rows[6].Met != nil {
		t.Errorf("%+v", rows[6])
	}
}

// The command finds the part of the page that it writes, and writes nothing else.
func TestReport(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks/namenode.md")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{out: t.TempDir()}
	file := filepath.Join(b.out, "namenode.md")
	if err := os.WriteFile(file, page, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.report([]beside.Row{{What: "what is new", Skipped: "a test"}}); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(after), "| what is new |") {
		t.Error("the row is not there")
	}
	want, err := beside.Between(string(page), "rows", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := beside.Between(string(after), "rows", ""); err != nil || got != want {
		t.Errorf("the rest of the page has changed: %v", err)
	}
}
