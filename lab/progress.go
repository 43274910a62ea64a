package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress tells on standard error what takes long.
type progress struct {
	w        io.Writer
	terminal bool
	quiet    bool
}

func newProgress(f *os.File, quiet bool) *progress {
	return &progress{w: f, terminal: term.IsTerminal(int(f.Fd())), quiet: quiet}
}

func (p *progress) line(format string, args ...any) {
	if !p.quiet {
		fmt.Fprintf(p.w, "lab: "+format+"\n", args...)
	}
}

// step tells that something of some seconds begins; the function it returns
// tells how long it took.
func (p *progress) step(what string) (done func()) {
	p.line("%s ...", what)
	began := time.Now()
	return func() {
		if d := time.Since(began); d > time.Second {
			p.line("%s: %.1f s", what, d.Seconds())
		}
	}
}

// growing shows how a directory grows to a size, in bytes, until the function
// that it returns is called.
func (p *progress) growing(what, directory string, total int64) (done func()) {
	finished := p.step(fmt.Sprintf("%s (%d MB)", what, total/1_000_000))
	if !p.terminal || p.quiet {
		return finished
	}
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription("lab: fetching"),
		progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish())
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = bar.Set64(min(size(directory), total)) // the bar is decoration
			}
		}
	})
	return func() {
		close(stop)
		watching.Wait()
		_ = bar.Finish() // the bar is decoration
		finished()
	}
}

// remove tidies up at the end, when nothing depends on it any more.
func remove(path string) {
	if err := os.RemoveAll(path); err != nil {
		fmt.Fprintf(os.Stderr, "lab: %v: remove it by hand\n", err)
	}
}

// size adds up the files of a directory.
func size(directory string) int64 {
	var sum int64
	files, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil {
		return 0
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
	}
	return sum
}
