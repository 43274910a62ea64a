// Package pressure tells how short of memory the machine and the process's
// cgroup are, and what limits them.
//
// A [System] reads the kernel's files: /proc/meminfo, /proc/pressure/memory, and
// those of the process's memory cgroup, version 2 or 1, found by
// /proc/self/cgroup and /proc/self/mountinfo. Limits nest: each cgroup from the
// process's own up to the highest that is mounted has one, and the one with the
// least room left counts. Files that are not there limit nothing.
//
// # Levels
//
// A [Reading] has a level, which is the worst of these:
//
//   - room: what a cgroup may still use, page cache that can be dropped not
//     counted, is below an eighth of its limit ([Tight]) or a thirty-second
//     ([Critical]); of the whole machine a sixteenth or a sixty-fourth.
//     Memory that the process has registered and not touched yet counts as used: a
//     kernel that counts it late would kill for it;
//   - memory.high of a cgroup is exceeded: Tight;
//   - stalls (PSI): tasks of the cgroup waited for memory for a tenth of the last
//     seconds, some of them (Tight) or all at once (Critical). The machine's
//     stalls count where the cgroup has no file of its own, and only while less
//     than an eighth of the machine's memory is available: they are other
//     people's, too;
//   - the kernel has killed a process of the cgroup for want of memory: Critical.
//
// A level falls when it has been lower for 3 s.
//
// # Watching
//
// A [Watcher] has one goroutine, however many subscribe, and none while nobody
// does. It looks when the kernel reports stalls, by a PSI trigger (some for 200 ms
// in 2 s) where the kernel lets it have one; every second under pressure; and
// every 5 s otherwise. A look reads about ten small files, which takes 0.3 ms.
// Whoever takes memory says so by [Watcher.Take]: when what was taken since the
// last look could have used up a quarter of the room, the caller looks itself
// before it goes on. So a burst is met by a look before it meets the limit.
//
// On systems other than Linux nothing is known: no limit, no pressure.
package pressure
