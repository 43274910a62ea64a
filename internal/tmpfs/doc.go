// Package tmpfs tells which directories lie in memory, and which of these would gain by a mount
// with large pages. It has the kernel put files into large pages, too.
package tmpfs
