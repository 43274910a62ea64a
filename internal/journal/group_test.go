package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// held lets its first entry wait, and remembers how entries come and what comes with them.
type held struct {
	list
	begun, goOn chan struct{}
	once        sync.Once
	sizes       []int // of the calls of Apply
	values      []any
}

func (h *held) Apply(entries []Entry) []any {
	h.once.Do(func() {
		close(h.begun)
		<-h.goOn
	})
	h.sizes = append(h.sizes, len(entries))
	for _, e := range entries {
		h.values = append(h.values, e.Value)
	}
	return h.list.Apply(entries)
}

// What comes while an entry is on its way goes into the log as one entry, with what it was given;
// each caller gets its own answer; a start reads them all.
func TestWaitingEntriesGoTogether(t *testing.T) {
	const waiting = 40
	fs := vfs.NewMem()
	h := &held{begun: make(chan struct{}), goOn: make(chan struct{})}
	j := mustOpen(t, fs, "/j", h)
	before := j.raft.LastIndex()
	var pending []*Pending
	start := func(i int) {
		p, err := j.Start(t.Context(), []byte(fmt.Sprint("entry ", i)), i)
		if err != nil {
			t.Fatal(err)
		}
		pending = append(pending, p)
	}
	start(0)
	<-h.begun
	for i := 1; i <= waiting; i++ {
		start(i)
	}
	close(h.goOn)
	for i, p := range pending {
		<-p.Done()
		if got, err := p.Result(); err != nil || got != i+1 {
			t.Fatalf("entry %d: %v, %v", i, got, err)
		}
	}
	if len(h.sizes) != 2 || h.sizes[1] != waiting || j.raft.LastIndex() != before+2 {
		t.Errorf("applied %d at a time, %d of raft's entries", h.sizes, j.raft.LastIndex()-before)
	}
	for i, v := range h.values {
		if v != i {
			t.Errorf("entry %d came with %v", i, v)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Start(t.Context(), []byte("late"), nil); !errors.Is(err, ErrNotLeader) {
		t.Errorf("an entry after the end: %v", err)
	}
	again := &held{begun: make(chan struct{}), goOn: make(chan struct{})}
	close(again.goOn)
	j = mustOpen(t, fs, "/j", again)
	checkEntries(t, &again.list, waiting+1)
	for i, v := range again.values {
		if v != nil {
			t.Errorf("entry %d came from the log with %v", i, v)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	read := &list{}
	if rep, err := Check(Config{Dir: "/j", FS: fs}, read); err != nil || rep.Damaged() {
		t.Fatal(rep, err)
	}
	checkEntries(t, read, waiting+1)
}

// Entries that are long in sum go in several groups, and one that is longer than a group alone.
func TestGroupsAreBounded(t *testing.T) {
	c := newCommitter(nil)
	sizes := []int{groupBytes + 1, groupBytes / 2, groupBytes / 2, 1, groupBytes}
	for _, n := range sizes {
		c.add(&Pending{entry: Entry{Data: make([]byte, n)}})
	}
	for range groupEntries + 1 {
		c.add(&Pending{entry: Entry{Data: []byte("x")}})
	}
	var got []int
	for {
		group, _ := c.take()
		if len(group) == 0 {
			break
		}
		got = append(got, len(group))
	}
	if want := []int{1, 2, 1, 1, groupEntries, 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("groups of %d, want %d", got, want)
	}
}

// Snapshots are taken after so many entries, however few of raft's they are.
func TestSnapshotsAfterEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		h := &held{begun: make(chan struct{}), goOn: make(chan struct{})}
		j, err := Open(t.Context(), Config{Dir: "/j", FS: fs, SnapshotEntries: 50}, h)
		if err != nil {
			t.Fatal(err)
		}
		snapshots := func() (n int) {
			names, err := fs.List("/j/snapshots")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if bytes.HasSuffix([]byte(name), []byte(metaSuffix)) {
					n++
				}
			}
			return n
		}
		var pending []*Pending
		for i := range 50 {
			if i == 49 {
				close(h.goOn)
				time.Sleep(time.Minute)
				if n := snapshots(); n != 0 {
					t.Errorf("%d snapshots after 49 entries", n)
				}
			}
			p, err := j.Start(context.Background(), []byte("x"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if pending = append(pending, p); i == 0 {
				<-h.begun
			}
		}
		for _, p := range pending {
			<-p.Done()
		}
		time.Sleep(time.Minute)
		if n := snapshots(); n != 1 {
			t.Errorf("%d snapshots after 50 entries", n)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A group that was damaged in the log, but has its checksums, is found by an opening.
func TestDamagedGroup(t *testing.T) {
	fs := vfs.NewMem()
	j := mustOpen(t, fs, "/j", &list{})
	appendEntry(t, j, "entry 0")
	l := raft.Log{Index: j.LastIndex() + 1, Term: 1, Type: raft.LogCommand, Data: []byte{9, 'x'}, Extensions: []byte{grouped}}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(fs, "/j/log", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLog(&l); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: "/j", FS: fs}, &list{}); !errors.Is(err, errGroup) {
		t.Errorf("the opening said %v", err)
	}
}

func FuzzGroup(f *testing.F) {
	f.Add(appendGroup(nil, []*Pending{{entry: Entry{Data: []byte("one")}}, {entry: Entry{Data: []byte("other")}}}), []byte{grouped})
	f.Add([]byte{0, 0, 1, 'x'}, []byte{grouped})
	f.Add([]byte{5, 'x'}, []byte{grouped})
	f.Add([]byte("single"), []byte(nil))
	f.Fuzz(func(t *testing.T, data, extensions []byte) {
		entries, err := entriesOf(nil, &raft.Log{Type: raft.LogCommand, Data: data, Extensions: extensions})
		if err != nil {
			return
		}
		if len(extensions) == 0 {
			if len(entries) != 1 || !bytes.Equal(entries[0].Data, data) {
				t.Fatalf("%x became %x", data, entries)
			}
			return
		}
		var group []*Pending
		for _, e := range entries {
			group = append(group, &Pending{entry: e})
		}
		again, err := entriesOf(nil, &raft.Log{Type: raft.LogCommand, Data: appendGroup(nil, group), Extensions: extensions})
		if err != nil || len(again) != len(entries) {
			t.Fatalf("%d entries became %d: %v", len(entries), len(again), err)
		}
		for i := range again {
			if !bytes.Equal(again[i].Data, entries[i].Data) {
				t.Fatalf("entry %d: %x became %x", i, entries[i].Data, again[i].Data)
			}
		}
	})
}

// Entries for which nobody waits are told of together, in their order; meanwhile they can be asked for.
func TestQueuedEntries(t *testing.T) {
	const queued = 20
	h := &held{begun: make(chan struct{}), goOn: make(chan struct{})}
	told := make(chan []string, 3)
	j, err := Open(t.Context(), Config{Dir: "/j", FS: vfs.NewMem(), Finished: func(group []*Pending) {
		var list []string
		for _, p := range group {
			value, err := p.Result()
			list = append(list, fmt.Sprint(p.Waiter(), value, err))
		}
		told <- list
	}}, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Queue(&Pending{}, []byte("entry 0"), nil, 0); err != nil {
		t.Fatal(err)
	}
	<-h.begun
	var between *Pending
	for i := 1; i < queued; i++ {
		if i == queued/2 {
			if between, err = j.Start(t.Context(), []byte("between"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Queue(&Pending{}, []byte(fmt.Sprint("entry ", i)), nil, i); err != nil {
			t.Fatal(err)
		}
	}
	var asked []any
	j.Queued(func(waiter any) { asked = append(asked, waiter) })
	for i, w := range asked {
		if w != i || len(asked) != queued {
			t.Fatalf("on their way are %v", asked)
		}
	}
	close(h.goOn)
	if got := <-told; fmt.Sprint(got) != "[0 1 <nil>]" {
		t.Errorf("the first one ended as %v", got)
	}
	<-between.Done()
	got := <-told
	if len(got) != queued-1 {
		t.Fatalf("told of %q", got)
	}
	for i, s := range got {
		n := i + 1
		count := n + 1
		if n >= queued/2 {
			count++ // the one between
		}
		if want := fmt.Sprint(n, count, error(nil)); s != want {
			t.Errorf("told %q, want %q", s, want)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j.Queued(func(waiter any) { t.Errorf("%v is on its way after the end", waiter) })
	if err := j.Queue(&Pending{}, []byte("late"), nil, 0); !errors.Is(err, ErrNotLeader) {
		t.Errorf("an entry after the end: %v", err)
	}
}
