package shuffle_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
)

// count is one process of a distributed word count: it sends each word of its text to
// the partition of the word, and counts the words of its own partition.
func count(ctx context.Context, c shuffle.Config, text string) (map[string]int, error) {
	words, counts := shuffle.Hash(c.Partitions()), map[string]int{}
	return counts, shuffle.Run(ctx, c, func(s *shuffle.Sender) error {
		for word := range strings.FieldsSeq(text) {
			if err := s.SendKey(words, []byte(word), []byte(word)); err != nil {
				return err
			}
		}
		return nil
	}, func(r *shuffle.Receiver) error {
		return r.Each(ctx, func(word []byte) error { counts[string(word)]++; return nil })
	})
}

// A distributed word count without package job. Its processes are goroutines here, each with a runtime of its
// own; over several hosts they differ in the addresses only.
func Example() {
	ctx := context.Background()
	texts := []string{"to be or not to be", "that is the question", "to sleep or to dream"}
	configs := make([]shuffle.Config, len(texts))
	addresses := make([]string, len(texts))
	for rank := range texts {
		rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
		if err != nil {
			panic(err)
		}
		defer rt.Close()
		ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{}})
		if err != nil {
			panic(err)
		}
		addresses[rank] = ln.Addr().String() // all processes are told
		configs[rank] = shuffle.Config{Runtime: rt, Listener: ln, Rank: rank, Size: len(texts), Addresses: addresses}
	}
	var all sync.WaitGroup
	results := make([]map[string]int, len(texts))
	for rank, c := range configs {
		all.Go(func() {
			var err error
			if results[rank], err = count(ctx, c, texts[rank]); err != nil {
				panic(err)
			}
		})
	}
	all.Wait()
	total := map[string]int{}
	for _, counts := range results {
		for word, n := range counts {
			total[word] += n // in one of them, all others have none
		}
	}
	fmt.Println(total["to"], total["be"], total["question"], len(total))
	// Output: 4 2 1 10
}

// Values in place of bytes.
func ExampleTypedSender() {
	ctx := context.Background()
	x, err := shuffle.Join(ctx, shuffle.Config{Threads: 2})
	if err != nil {
		panic(err)
	}
	defer x.Close()
	codec := shuffle.Codec[string]{
		Append: func(b []byte, v string) []byte { return append(b, v...) },
		Decode: func(b []byte) (string, error) { return string(b), nil },
	}
	byLength := func(v string) int { return len(v) % x.Partitions() }
	for thread := range x.Threads() {
		go func() {
			s := shuffle.NewTypedSender(x.Sender(thread), codec, byLength)
			if thread == 0 {
				for _, v := range []string{"one", "two", "three", "four"} {
					if err := s.Send(v); err != nil {
						panic(err)
					}
				}
			}
			if err := s.Close(); err != nil {
				panic(err)
			}
		}()
	}
	got := make([][]string, x.Threads())
	var all sync.WaitGroup
	for thread := range x.Threads() {
		all.Go(func() { // senders may wait for any of them
			for v, err := range shuffle.NewTypedReceiver(x.Receiver(thread), codec).All(ctx) {
				if err != nil {
					panic(err)
				}
				got[thread] = append(got[thread], v)
			}
		})
	}
	all.Wait()
	fmt.Println(got)
	// Output: [[four] [one two three]]
}
