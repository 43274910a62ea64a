// Package shuffle exchanges records all to all among the threads of many processes,
// while they are still computing.
//
// This program counts the words of files, by as many processes as there are processors, or as mpirun, srun or an indexed Job of
// Kubernetes have started. Process N writes the counts of its words to counts.N. It is in examples/wordcount:
//
//	package main
//
//	import (
//		"bytes"
//		"context"
//		"flag"
//		"fmt"
//		"maps"
//		"os"
//		"slices"
//
//		"github.com/verbena-data/verbena/shuffle"
//		"github.com/verbena-data/verbena/shuffle/dataset"
//		"github.com/verbena-data/verbena/shuffle/job"
//	)
//
//	func main() { job.Main(count) }
//
//	func count(ctx context.Context, p *job.Process) error {
//		words, counts := shuffle.Hash(p.Partitions()), map[string]int{}
//		send := func(s *shuffle.Sender) error {
//			return new(dataset.Files).Lines(ctx, flag.Args(), p.Rank, p.Size, func(line []byte) error {
//				for word := range bytes.FieldsSeq(line) {
//					if err := s.SendKey(words, word, word); err != nil {
//						return err
//					}
//				}
//				return nil
//			})
//		}
//		receive := func(r *shuffle.Receiver) error {
//			return r.Each(ctx, func(word []byte) error { counts[string(word)]++; return nil })
//		}
//		if err := shuffle.Run(ctx, p.Config, send, receive); err != nil {
//			return err
//		}
//		var out bytes.Buffer
//		for _, word := range slices.Sorted(maps.Keys(counts)) {
//			fmt.Fprintf(&out, "%s\t%d\n", word, counts[word])
//		}
//		return os.WriteFile(fmt.Sprintf("counts.%d", p.Rank), out.Bytes(), 0o666)
//	}
//
// [Run] is one exchange, and package job finds or starts the processes of the program and has them meet.
//
// # Exchanges, senders and receivers
//
// The processes of a job, Config.Size of them, join an [Exchange]. Each has
// Config.Threads partitions, so that partition p is received by thread p modulo Threads
// of process p divided by Threads. Each thread has a [Sender], which pushes records to
// any partition, and a [Receiver], which takes those of its own. A program that wants more of an exchange than Run does, such as
// [Exchange.AllGather], joins it by itself:
//
//	x, err := shuffle.Join(ctx, shuffle.Config{Runtime: rt, Listener: ln, Rank: rank, Size: len(addresses), Addresses: addresses, Threads: 4})
//	go func() {
//		s := x.Sender(0)
//		for ... {
//			err = s.SendKey(shuffle.Hash(x.Partitions()), key, record)
//		}
//		err = s.Close()
//	}()
//	r := x.Receiver(0)
//	for {
//		record, err := r.Next(ctx)
//		if err == io.EOF { break } // all senders of all processes have closed
//		use(record)                // until the next call of Next
//	}
//	err = x.Wait(ctx)           // every process has all that is meant for it
//	err = x.Close()
//
// # Sending is asynchronous
//
// Send copies the record to the end of a part, which has records for one partition, and
// returns. A full part goes to the open block of the stream to that partition's thread:
// into memory of the receiving process, by a one-sided Write, which costs no system call
// over shared memory; or the block travels as a message, where that is better. Blocks go
// out, and peers are told of them, many together, but not later than 2 ms after the last
// part. Threads of one process hand parts over by reference. A partial part goes out by Flush
// and by Close.
//
// So a short record is copied twice on its way to another process of the host, and once within a process: receivers
// read it where it lies. A long one is copied once, also within a process: up to half of what may wait for a
// thread there, 64 KiB with parts of 8 KiB, it goes in memory of its own. Put together
// by Reserve and Commit such a record is not copied at all.
//
// Send blocks when the stream has no room because its receiver has not taken what is there,
// and then only those who send to that receiver. With Config.Spill set, a receiving process
// writes what its threads do not take to disk instead.
//
// # Who waits for whom
//
// A receiver that takes nothing holds up those who send to it as soon as their stream is full. Streams between two
// processes share memory, but each has a page of it to itself, and a full one gets at most twice what is left to the
// others. So senders that have nothing for that receiver go on. One that waits for it sends nothing to anybody else, and does not
// close: the other receivers get neither the rest of its records nor their end.
//
// So a receiver must not wait for the end of another one, and each needs a goroutine of its own. One goroutine that takes
// all of Receiver(0) and then all of Receiver(1) waits forever once there is more for the second one than its streams hold. The same
// is true of a goroutine that sends and receives by turns: it can wait in Send for a thread that waits in Send for it.
//
// In a process of more than 4 threads several of them may collect their records together. There Flush and Close of
// a sender that has sent anything may wait for any receiver of the exchange, since they hand on what others have sent, too.
//
// # Order
//
// A partition's records come as they arrive: those of one sender in its order, mixed with
// those of others. [Receiver.InOrder] sorts them by key, in bounded memory.
//
// # Exactly once, or an error
//
// Blocks are numbered. Those that travel over TCP or an adapter have a checksum, which the
// receiving thread computes anew from what it hands out. Over iWARP in user space the device
// compares one of every segment instead, unless its setting no-crc leaves that out. At the end both sides compare how
// many records, bytes and parts there were. When anything differs, when a process dies, leaves before the
// end, or calls [Exchange.Abort], every call in every process fails with the reason: see
// [ProcessError]. A nil from [Exchange.Wait] says that every record has been received
// once, in all processes.
//
// What the processes say to each other is defined in docs/shuffle.md.
package shuffle
