// Package slab hands out registered memory.
//
// A [Pool] registers regions with a protection domain as the load needs them,
// up to a limit, and cuts them into slabs. It is a package of mechanism: it
// knows sizes, owners and who waits, and nothing of what the memory is for. What
// a slab held before is still in it when its next user gets it; memory of an
// owner's own is had from a [Private].
//
// # Sizes
//
// Classes are the powers of two from 256 bytes to 1 MiB and the sizes half way
// between them (384, 768 and so on), each with 64 bytes on top for a header
// beside a round payload. A request takes the next larger class, so it wastes a
// third of the slab at most, and nothing at the sizes that a runtime asks for.
//
// The slabs of a class lie in arenas. The first arena of a pool has 16 KiB, so that a
// pool with one user is small. The next ones have as much as is registered, up to
// 128 KiB, and later ones a quarter of that, up to 2 MiB. An arena has 4 KiB more
// than the power of two, where the headers of its slabs go. It is chosen large enough
// that cutting it leaves an eighth over at most, or 4 KiB. (The one exception is the
// class of 768 KiB, of which two fit into 2 MiB.) An arena whose slabs are all free
// serves any class that it suits.
//
// What is longer than the largest class gets a region of its own, which is kept
// for the next request of its kind.
//
// # Who gets memory
//
// A request that cannot be met now waits in [Pool.Get]. Every class is a queue
// of its own, and so are the regions of owners and the large regions. A slab
// that comes back goes to the first of its class, whoever else waits. So a
// request waits only behind those that want the same.
//
// The request that has waited longest is the head. Others pass it as long as
// they leave it what it needs:
//
//   - Slabs of regions that are in use anyway are handed out as if nobody
//     waited.
//   - Small requests (up to the largest class) may bring further regions into
//     use up to an eighth of the limit, or as far as they had come when the head
//     arrived, and never so far that the head would not fit beside them.
//     Whatever else comes free is the head's.
//   - No large request passes.
//   - Free slabs may be scattered over so many arenas that the head does not fit
//     although most memory is free. When 64 requests have passed such a head,
//     the arenas with the fewest slabs in use are closed to everyone else until
//     it does.
//
// So a head gets its memory as soon as those who hold slabs have put them back,
// however many small requests come meanwhile. And small requests never wait for
// a large one, unless it wants more than seven eighths of the pool. Large
// regions in use leave the last eighth of the limit to small requests; a single
// one may exceed that, or a pool could not lend all it has.
//
// # Giving memory back
//
// A region that nobody has used for 4 s is closed. When the pool has to register
// again soon after, it waits twice as long the next time, up to 32 s, so that a
// load that comes and goes keeps its memory; after a longer pause it starts with
// 4 s again. The timer exists only while something is free. [Pool.Trim] gives
// back at once what is free, and so does a request that does not fit under the
// limit otherwise.
//
// Registering and closing may take long: an adapter pins pages, a peer may be in
// the middle of an access. The pool's lock is never held meanwhile. A region
// that cannot be closed stays counted, since the device may still reach it.
//
// # Owners
//
// A key opens a whole region. A peer that holds one may read everything there,
// also what was never meant for it. So memory whose keys are handed to peers
// comes from a [Private], an owner's own set of regions, one for each slab.
// They come from the pool's limit but never hold anything of another owner. The
// owner reuses them while it is active. They are closed, which revokes their
// keys, when the owner closes, when they have been idle as above, or when others
// need the room: the owner that has been inactive for longest loses its free
// regions first.
//
// # Speed
//
// Up to 16 free slabs of each class up to 32 KiB lie on a shelf in front of the
// lock. A slab that comes and goes takes one atomic operation each way. Shelves
// are shut while anybody waits and emptied once a second.
package slab
