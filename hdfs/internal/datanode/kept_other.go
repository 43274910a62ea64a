//go:build !linux

package datanode

func (*keptReplica) advise(off, length int64) {}

// readAtOnce does nothing where a read can't be told not to wait.
func readAtOnce(uintptr, []byte, int64, bool) bool { return false }
