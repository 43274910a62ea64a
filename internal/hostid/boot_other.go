//go:build !linux

package hostid

func bootID() string { return "" }
