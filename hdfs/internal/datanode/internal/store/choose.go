package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// ErrNoRoom is returned when no directory has room for a new replica.
var ErrNoRoom = errors.New("out of space")

// Choice is how a directory is chosen for a new replica: in turn, or after HDFS's
// AvailableSpaceVolumeChoosingPolicy. Directories without room are passed over.
type Choice struct {
	// BySpace prefers directories with more room: those that have Threshold bytes more than the
	// fullest one get the share Preference of the replicas, as if there were as many of them as
	// of the others.
	BySpace    bool
	Threshold  uint64
	Preference float64
}

// Want is what a new replica needs.
type Want struct {
	Size int64                   // bytes that it may grow to; 0: not known
	Type hdfspb.StorageTypeProto // 0, or one that no directory has: any
}

type chooser struct {
	choice Choice
	mu     sync.Mutex
	next   map[turn]int
}

// SetChoice changes how a directory is chosen.
func (s *Store) SetChoice(c Choice) {
	s.chooser.mu.Lock()
	defer s.chooser.mu.Unlock()
	s.chooser.choice = c
}

// turn is one of the lists that are gone through in turn.
type turn struct {
	kind  hdfspb.StorageTypeProto
	roomy bool
}

// choose returns the directory for a new replica.
func (s *Store) choose(want Want) (*volume, error) {
	var all, those []*volume
	for _, v := range s.volumes {
		if v.good() {
			all = append(all, v)
			if v.kind == want.Type {
				those = append(those, v)
			}
		}
	}
	if len(those) == 0 {
		those, want.Type = all, 0
	}
	if len(those) == 1 && those[0].hangs.Load() {
		return nil, fmt.Errorf("the data directory %s takes no replica: %w", those[0].dir, ErrHangs)
	}
	if len(those) == 1 {
		return those[0], nil // it will say itself that it is full
	}
	if len(those) == 0 {
		return nil, s.Enough()
	}
	room := make([]uint64, len(those))
	for i, v := range those {
		var err error
		if room[i], err = v.available(); err != nil {
			s.log.Warn("a data directory is passed over", "dir", v.dir, "err", err)
		}
	}
	c := &s.chooser
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = map[turn]int{}
	}
	t := turn{kind: want.Type}
	if c.choice.BySpace {
		those, room, t.roomy = c.choice.part(those, room, uint64(want.Size))
	}
	for range those {
		i := c.next[t] % len(those)
		c.next[t] = i + 1
		if room[i] > uint64(want.Size) {
			return those[i], nil
		}
	}
	return nil, fmt.Errorf("%w: the data directory with the most available space has %d bytes, a block may take %d", ErrNoRoom, slices.Max(room), want.Size)
}

// part returns the directories to choose from.
func (c *Choice) part(those []*volume, room []uint64, size uint64) (part []*volume, partRoom []uint64, roomy bool) {
	least := slices.Min(room)
	if slices.Max(room)-least <= c.Threshold {
		return those, room, false
	}
	var few, much []int
	var mostOfFew uint64
	for i, n := range room {
		if n-least < c.Threshold {
			few, mostOfFew = append(few, i), max(mostOfFew, n)
		} else {
			much = append(much, i)
		}
	}
	weight := c.Preference * float64(len(much))
	chosen := few
	if mostOfFew < size || rand.Float64() < weight/(weight+(1-c.Preference)*float64(len(few))) {
		chosen, roomy = much, true
	}
	for _, i := range chosen {
		part, partRoom = append(part, those[i]), append(partRoom, room[i])
	}
	return part, partRoom, roomy
}
