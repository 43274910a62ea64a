//go:build !unix

package datanode

func connectionBroken(error) bool { return false }
