// Package longcopy copies long pieces of memory for another processor to read. Go's
// copy fetches the lines that it overwrites, and of a MiB or more it stores past the
// caches. The lines of memory that messages pass through are in the cache of the
// processor that has read the last message, so fetching them costs as much as the copy.
package longcopy
