// Command wordcount counts the words of files by several processes. Process N writes the counts of its words, in order, to
// counts.N: go run ./shuffle/examples/wordcount FILE..., or mpirun -n 4 wordcount FILE....
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/job"
)

func main() { job.Main(count) }

func count(ctx context.Context, p *job.Process) error {
	words, counts := shuffle.Hash(p.Partitions()), map[string]int{}
	send := func(s *shuffle.Sender) error {
		return new(dataset.Files).Lines(ctx, flag.Args(), p.Rank, p.Size, func(line []byte) error {
			for word := range bytes.FieldsSeq(line) {
				if err := s.SendKey(words, word, word); err != nil {
					return err
				}
			}
			return nil
		})
	}
	receive := func(r *shuffle.Receiver) error {
		return r.Each(ctx, func(word []byte) error { counts[string(word)]++; return nil })
	}
	if err := shuffle.Run(ctx, p.Config, send, receive); err != nil {
		return err
	}
	var out bytes.Buffer
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&out, "%s\t%d\n", word, counts[word])
	}
	return os.WriteFile(fmt.Sprintf("counts.%d", p.Rank), out.Bytes(), 0o666)
}
