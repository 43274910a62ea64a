//go:build !linux

package hostid

func namespace() string { return "" }
