// Package tmpfs tells of directories that lie in memory.
package tmpfs
