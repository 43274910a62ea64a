package datanode

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/native"
)

const (
	// A block with three pages of checksums, the last of which is not full, and a tail.
	sumsBlock = 5<<18 + 700
	// What is kept of them: all, and what is in front of them in the first page.
	sumsOfBlock = 512 + 4*(sumsBlock/512)
	// Where the second page begins, and the third, in the data.
	secondPage, thirdPage = (sumsPage - 512) / 4 * 512, (2*sumsPage - 512) / 4 * 512
)

// sumsOpen returns a DataNode that keeps such a block, and what a client reads it by.
func sumsOpen(t *testing.T) (n *node, data, h []byte) {
	t.Helper()
	n, data = newFixture(t, 1, onDisk(t, nil)).nodes[0], random(1, sumsBlock)
	finalized(t, n, 1, 1001, data)
	h = header(t, 1, 1001, nil)
	must(t, open(t, n, h, 100))
	return n, data, h
}

// spoilSums overwrites the checksums in a replica's file.
func spoilSums(t *testing.T, r *keptReplica) {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.files.Meta), os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 4*(sumsBlock/512)), r.files.SumsOffset)
	must(t, err)
}

// Checksums come from what was kept by the reads before, are right across pages and at the
// end, and are given back with the replica.
func TestKeptSums(t *testing.T) {
	n, data, h := sumsOpen(t)
	read := func(off, length int) {
		t.Helper()
		if !readNow(t, n, h, data, off, length) {
			t.Errorf("%d bytes at %d have to wait", length, off)
		}
	}
	if kept := n.kept.sums.Load(); kept != 0 {
		t.Errorf("%d bytes of checksums are kept before any read", kept)
	}
	read(secondPage-4096, 8192) // the first page, too
	read(sumsBlock-800, 800)    // the third and the tail
	if kept := n.kept.sums.Load(); kept != sumsOfBlock {
		t.Errorf("%d bytes of checksums are kept, want all %d", kept, sumsOfBlock)
	}
	r := n.kept.find(h, time.Now())
	spoilSums(t, r)
	for _, p := range [][2]int{{0, 1}, {secondPage - 1, 2}, {thirdPage - 30_000, native.MaxReadNow}, {sumsBlock - 1, 1}, {sumsBlock - 60_000, 60_000}} {
		read(p[0], p[1])
	}
	n.kept.changing(1)
	if n.kept.sums.Load() == 0 {
		t.Error("the checksums of a replica that is read have gone")
	}
	n.kept.done(r)
	if kept := n.kept.sums.Load(); kept != 0 {
		t.Errorf("%d bytes are kept for no replica", kept)
	}
}

// Without room for more, checksums are read from their file.
func TestKeptSumsAreBounded(t *testing.T) {
	n, data, h := sumsOpen(t)
	n.kept.sums.Add(n.kept.mostSums - sumsPage)
	for range 2 {
		for _, off := range []int{0, secondPage - 512, secondPage, 1 << 20} {
			if !readNow(t, n, h, data, off, 1024) {
				t.Errorf("1024 bytes at %d have to wait", off)
			}
		}
	}
	if over := n.kept.sums.Load() - n.kept.mostSums; over != 0 {
		t.Errorf("%d bytes over the bound are kept", over)
	}
	n.kept.changing(1)
	if left := n.kept.sums.Load(); left != n.kept.mostSums-sumsPage {
		t.Errorf("%d bytes are left of others' %d", left, n.kept.mostSums-sumsPage)
	}
}

// Reads at the same time keep a page once.
func TestKeptSumsOfManyReaders(t *testing.T) {
	n, _, h := sumsOpen(t)
	r := n.kept.find(h, time.Now())
	defer n.kept.done(r)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			b, sums := make([]byte, 1024), make([]byte, 8)
			for off := int64(0); off+1024 <= sumsBlock; off += 64 << 10 {
				if !r.readNow(b, sums, off) || r.Sum.Verify(sums, b) != nil {
					t.Errorf("other checksums at %d", off)
				}
			}
		})
	}
	wg.Wait()
	if kept := n.kept.sums.Load(); kept != sumsOfBlock {
		t.Errorf("%d bytes of checksums are kept, want all %d", kept, sumsOfBlock)
	}
}
