package hdfs

import nativepath "github.com/verbena-data/verbena/hdfs/internal/client/native"

// WindowReads tell how a client has made small positional reads.
type WindowReads = nativepath.WindowStats

// WindowReads returns how many small reads were made one-sidedly so far, from memory that
// DataNodes expose.
func (c *Client) WindowReads() WindowReads {
	if c.native == nil {
		return WindowReads{}
	}
	return c.native.Windows()
}
