package namenode

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// newPulse begins; close ends it. Without the right to go ahead of others it fails.
func newPulse() (*pulse, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	p := &pulse{stop: make(chan struct{})}
	started := make(chan error)
	n := 0
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		n++
		p.wg.Go(func() {
			// The thread is not given back: it ends with its goroutine.
			runtime.LockOSThread()
			err := aheadOn(cpu)
			started <- err
			if err == nil {
				p.beat(cpu)
			}
		})
	}
	var failed error
	for range n {
		if err := <-started; err != nil {
			failed = err
		}
	}
	if failed != nil {
		p.close()
		return nil, failed
	}
	return p, nil
}

// aheadOn binds the thread to a processor, and puts it before all threads that are not real-time ones.
func aheadOn(cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0)
}

func (p *pulse) beat(cpu int) {
	const pause = time.Millisecond
	last := monotonic()
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		ts := unix.NsecToTimespec(int64(pause))
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // a signal ends it early, which is no harm
		now := monotonic()
		if now-last > pause+leastGap {
			p.mu.Lock()
			p.gaps = append(p.gaps, gap{cpu, last + pause, now})
			p.mu.Unlock()
		}
		last = now
	}
}
