package main

import (
	"sync"
	"time"
)

// memoryCopy copies the load's bytes of memory by threads in blocks of a record: what
// the records cost at least that have to be moved at all. All memory has been touched before.
func memoryCopy(l load) measurement {
	total := int(l.bytes())
	from, to := make([]byte, total), make([]byte, total)
	for i := 0; i < total; i += 4096 {
		from[i], to[i] = 1, 1
	}
	before, begin := processorTime(), time.Now()
	var all sync.WaitGroup
	for thread := range l.Threads {
		all.Go(func() {
			share := total / l.Threads
			for at := thread * share; at+l.Record <= (thread+1)*share; at += l.Record {
				copy(to[at:at+l.Record], from[at:at+l.Record])
			}
		})
	}
	all.Wait()
	return measurement{load: l, Wall: time.Since(begin).Seconds(), CPU: processorTime() - before}
}
