package slab

import "math/bits"

// Sizes in bytes.
const (
	smallest = 256
	largest  = 1 << 20
	extra    = 64 // of each slab, for a header beside a round payload

	firstArena = 16 << 10  // a pool that one peer uses has few slabs
	fastArena  = 128 << 10 // up to here an arena has as much as all before it
	lastArena  = 2 << 20
	arenaExtra = 4096 // of each arena, for the extra bytes of its slabs
	arenaSizes = 5

	page = 4096
)

const (
	classCount = 25
	noClass    = -1
)

var (
	strides [classCount]int // bytes of a slab
	leasts  [classCount]int // bytes of the smallest arena that suits the class, as all larger ones do
)

func init() {
	for k := range strides {
		if k%2 == 0 {
			strides[k] = smallest<<(k/2) + extra
		} else {
			strides[k] = smallest<<(k/2)*3/2 + extra
		}
		leasts[k] = lastArena + arenaExtra
		for half := lastArena / 2; half >= firstArena && suits(half+arenaExtra, strides[k]); half /= 2 {
			leasts[k] = half + arenaExtra
		}
	}
}

// classOf is the class of the smallest slabs that hold size bytes, which are
// not more than the largest class has.
func classOf(size int) int {
	n := max(size-extra, smallest)
	e := bits.Len(uint(n - 1)) // 2^(e-1) < n <= 2^e
	k := 2 * (e - 8)
	if n <= 3<<(e-2) {
		k--
	}
	return k
}

// suits tells whether cutting an arena into slabs wastes little enough: an eighth, or
// a page of the smallest.
func suits(arena, stride int) bool {
	return arena >= lastArena || arena >= stride && arena%stride <= max(arena/8, page)
}

// arenaFor is the size of a new arena for a class in a pool that has registered
// so much.
func arenaFor(k int, registered int64) int {
	size := leasts[k]
	for size < lastArena {
		next := (size-arenaExtra)*2 + arenaExtra
		if next <= fastArena+arenaExtra && int64(next) > registered || next > fastArena+arenaExtra && int64(next) > registered/4 {
			break
		}
		size = next
	}
	return size
}

// RegionFor is the size of a region for size bytes that lie in no class. It
// grows in steps of an eighth, so that regions can be used again.
func RegionFor(size int) int {
	step := max(64<<10, 1<<bits.Len(uint(size-1))/16)
	return (size + step - 1) / step * step
}

// Holds is how many slabs for size bytes, which no class exceeds, the pool has room
// for at least when it holds nothing else.
func (p *Pool) Holds(size int) int {
	k := classOf(size)
	least := leasts[k]
	// In a pool that is so small an arena may waste more.
	for half := (least-arenaExtra)/2 + arenaExtra; int64(least) > p.limit && half >= strides[k]; half = (half-arenaExtra)/2 + arenaExtra {
		least = half
	}
	// A rest that is shorter than the least arena holds none.
	room := p.limit / int64(least) * int64(least/strides[k])
	for arena := least; arena < lastArena && int64(arena) <= p.limit/8; {
		arena = (arena-arenaExtra)*2 + arenaExtra
		n := (p.limit - int64(least)) * int64(arena/strides[k]) / int64(arena)
		room = min(room, n)
	}
	return int(room)
}
