// Package tmpfs tells which directories lie in memory, and which of these would gain by a mount
// with large pages.
package tmpfs
